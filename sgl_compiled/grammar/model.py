"""Pydantic models as grammars, and answers as instances."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from sgl_compiled.errors import GrammarError
from sgl_compiled.grammar.json_schema import read_schema

__all__ = ["finite_schema", "model_schema", "read_model"]

M = TypeVar("M", bound=BaseModel)


def model_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a model.

    Raises
    ------
    GrammarError
        ``model`` is no pydantic model, or has a field that JSON cannot hold.
    """
    if not isinstance(model, type) or not issubclass(model, BaseModel):
        raise GrammarError(f"model must be a pydantic model class, not {model!r}")
    try:
        return model.model_json_schema()
    except PydanticInvalidForJsonSchema as error:
        raise GrammarError(f"{model.__name__} has a field that JSON cannot hold: {error}") from None


def finite_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a model whose fields all have finitely many values; see :func:`model_schema`."""
    schema = model_schema(model)
    read_schema(schema)
    return schema


def read_model(model: type[M], text: str) -> M:
    """Return the instance that an answer spells.

    Raises
    ------
    GrammarError
        A validator of the model refuses the values, which no grammar could know.
    """
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise GrammarError(
            f"the chosen values are not a valid {model.__name__}, since a validator of the model refuses them; "
            f"express its condition in the fields' types. {error}"
        ) from None
