"""What a user asks for: labels, a regex or a data model, before any tokenizer is known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sgl_compiled.errors import GrammarError, GrammarTooLargeError
from sgl_compiled.grammar.form import TEMPLATES, Constraint, SlotForm, Template
from sgl_compiled.grammar.limits import DEFAULT_LIMITS

__all__ = ["ActionGrammar", "Order"]

Order = Literal["any", "list"]

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class ActionGrammar:
    """A finite choice: ``k`` labels in a template, or the strings of a regex.

    Build one with :meth:`from_labels` or :meth:`from_regex`; the constructor does not validate.
    """

    labels: tuple[str, ...] = ()
    k: int = 1
    distinct: bool = True
    order: Order = "any"
    template: Template = TEMPLATES["json"]
    regex: str | None = None

    @classmethod
    def from_labels(
        cls,
        labels: Sequence[str],
        k: int = 1,
        *,
        distinct: bool = True,
        order: Order = "any",
        template: str | Template = "json",
    ) -> ActionGrammar:
        """Choose ``k`` of ``labels``.

        Parameters
        ----------
        labels : sequence of str
            Literal texts: never a pattern, never normalised, spaces kept.
        k : int
            Number of slots.
        distinct : bool
            A chosen label leaves the later slots.
        order : {"any", "list"}
            ``"list"`` admits only sequences in the order of ``labels``.
        template : {"json", "raw"} or Template
            How the chosen labels are written.

        Raises
        ------
        GrammarError
            Empty list, empty or duplicate label, ``k`` out of range, unknown template, ambiguous labels.
        """
        if isinstance(labels, str | bytes) or not isinstance(labels, Sequence):
            raise GrammarError("labels must be a list of strings; a single string would be read letter by letter")
        _check_labels(labels)
        if isinstance(k, bool) or not isinstance(k, int):
            raise GrammarError(f"k must be a whole number, not {k!r}")
        if k < 1:
            raise GrammarError(f"k is {k}; choose at least one label (k >= 1)")
        if k > DEFAULT_LIMITS.max_slots:
            raise GrammarTooLargeError(f"k is {k}; at most {DEFAULT_LIMITS.max_slots} labels can be chosen at once")
        if distinct and k > len(labels):
            raise GrammarError(
                f"k is {k} but there are only {len(labels)} distinct labels; lower k or set distinct=False"
            )
        if order not in ("any", "list"):
            raise GrammarError(f"unknown order {order!r}; use 'any' or 'list'")
        grammar = cls(tuple(labels), k, bool(distinct), order, _template(template))
        if grammar.template.escape == "none" or not grammar.template.separator.startswith('"'):
            grammar.form().check_unambiguous()
        return grammar

    @classmethod
    def from_regex(cls, pattern: str) -> ActionGrammar:
        """Choose one string of a regex with a finite language (dialect: ``docs/semantics.md``)."""
        if not isinstance(pattern, str):
            raise GrammarError(f"regex must be a string, not {type(pattern).__name__}")
        return cls(regex=pattern)

    def form(self) -> SlotForm:
        """Return the slot form of a label grammar."""
        assert self.regex is None
        written = tuple(self.template.write(label) for label in self.labels)
        separators = (self.template.separator,) * (self.k - 1)
        return SlotForm(
            (self.template.prefix, *separators, self.template.suffix), (written,) * self.k, self._constraint()
        )

    def _constraint(self) -> Constraint:
        if self.order == "list":
            return "increasing" if self.distinct else "nondecreasing"
        return "distinct" if self.distinct else "free"

    def to_spec(self) -> dict[str, Any]:
        """Return a JSON-safe description; :meth:`from_spec` reads it back in another process."""
        return asdict(self)

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> ActionGrammar:
        """Inverse of :meth:`to_spec`; validates again, since the text may come from a client."""
        if spec.get("regex") is not None:
            return cls.from_regex(spec["regex"])
        return cls.from_labels(
            list(spec["labels"]),
            spec["k"],
            distinct=spec["distinct"],
            order=spec["order"],
            template=Template(**spec["template"]),
        )


def _check_labels(labels: Sequence[Any]) -> None:
    if len(labels) == 0:
        raise GrammarError("labels is empty; give at least one label")
    if len(labels) > DEFAULT_LIMITS.max_labels:
        raise GrammarTooLargeError(f"{len(labels)} labels are more than the limit of {DEFAULT_LIMITS.max_labels}")
    seen: dict[str, int] = {}
    for index, label in enumerate(labels):
        if not isinstance(label, str):
            raise GrammarError(f"labels[{index}] is {label!r}; every label must be a string")
        if not label:
            raise GrammarError(f"labels[{index}] is empty; an empty answer cannot be chosen by name")
        if _SURROGATE.search(label):
            raise GrammarError(f"labels[{index}] holds a lone surrogate, which UTF-8 cannot encode; remove it")
        if label in seen:
            raise GrammarError(f"duplicate label {label!r} (labels[{seen[label]}] and labels[{index}]); remove one")
        seen[label] = index
    sizes = [len(label.encode()) for label in labels]
    if max(sizes) > DEFAULT_LIMITS.max_label_bytes:
        raise GrammarTooLargeError(
            f"labels[{sizes.index(max(sizes))}] has {max(sizes)} bytes; the limit is {DEFAULT_LIMITS.max_label_bytes}"
        )
    if sum(sizes) > DEFAULT_LIMITS.max_labels_bytes:
        raise GrammarTooLargeError(
            f"the labels hold {sum(sizes)} bytes in all; the limit is {DEFAULT_LIMITS.max_labels_bytes}; split the list"
        )


def _template(template: str | Template) -> Template:
    if isinstance(template, Template):
        return template
    if template not in TEMPLATES:
        raise GrammarError(f"unknown template {template!r}; use one of {', '.join(map(repr, TEMPLATES))} or a Template")
    return TEMPLATES[template]
