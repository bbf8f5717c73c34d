"""The expression that a program adds to its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from sglang.lang.choices import token_length_normalized
from sglang.lang.ir import SglSelect

from sgl_compiled.client import request_body
from sgl_compiled.grammar.model import finite_schema, read_model
from sgl_compiled.hooks import install
from sgl_compiled.runtime.schema import SelectResponse

__all__ = ["SglSelectK", "select_k"]


class SglSelectK(SglSelect):  # type: ignore[misc]
    """A select expression: the interpreter then gives it a variable, an event and a place in tracing by itself."""

    def __init__(self, name: str, body: dict[str, Any], model: type[BaseModel] | None = None) -> None:
        choices = list(body.get("labels", ()))
        super().__init__(name, choices, 0.0, token_length_normalized)
        self.body = body
        self.model = model

    def value(self, answer: SelectResponse) -> Any:
        """Return what the program's variable holds: labels, an instance of the model, or else the text."""
        if self.model is not None:
            return read_model(self.model, answer.text)
        return answer.labels if "labels" in self.body else answer.text

    def __repr__(self) -> str:
        """Return the expression as a program would write it."""
        return f"SelectK({self.name}, {self.body})"


def select_k(
    name: str,
    labels: Sequence[str] | None = None,
    k: int = 1,
    *,
    regex: str | None = None,
    model: type[BaseModel] | None = None,
    **options: Any,
) -> SglSelectK:
    r"""Choose ``k`` of ``labels`` (or one string of ``regex``, or a ``model``) at this point of an SGLang program.

    The chosen text is appended to the program. ``s[name]`` is the list of labels, the instance of a model, or else the
    text; ``s.get_meta_info(name)`` is the whole response as a dict: probabilities, margins, plan, usage.

    Parameters
    ----------
    name : str
        Variable that takes the choice.
    labels : sequence of str, optional
    k : int
    regex : str, optional
    model : type of pydantic.BaseModel, optional
        Every field must have finitely many values.
    **options
        Further fields of the request: ``distinct``, ``order``, ``template``, ``spelling``, ``plan``, ... A ``form``,
        ``json_schema`` or ``tools`` goes here too, instead of labels.

    Needs a ``RuntimeEndpoint`` as backend: the choice is made inside the server.

    Examples
    --------
    >>> @sgl.function
    ... def route(s, question, tools):
    ...     s += "Question: " + question + "\nTools: "
    ...     s += select_k("picked", tools, k=2)
    """
    # The interpreter runs in the client's process, where SGLang loads no plugins.
    install(("lang",))
    if model is not None:
        options["json_schema"] = finite_schema(model)
    return SglSelectK(name, request_body(None, labels, k, regex=regex, **options), model)
