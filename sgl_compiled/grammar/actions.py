"""What a user asks for: labels, a regex or a data model, before any tokenizer is known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from sgl_compiled.errors import GrammarError, GrammarTooLargeError
from sgl_compiled.grammar.form import TEMPLATES, Constraint, SlotForm, Template, size_of
from sgl_compiled.grammar.limits import DEFAULT_LIMITS

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["ActionGrammar", "Order", "checked_form"]

Order = Literal["any", "list"]

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class ActionGrammar:
    """A choice: ``k`` labels in a template, the strings of a regex, or literals around slots.

    Finite, unless ``max_tokens`` cuts a regex off.

    Build one with :meth:`from_labels`, :meth:`from_regex`, :meth:`from_form`, :meth:`from_json_schema`,
    :meth:`from_model` or :meth:`from_tools`; the constructor does not validate.
    """

    labels: tuple[str, ...] = ()
    k: int = 1
    distinct: bool = True
    order: Order = "any"
    template: Template = TEMPLATES["json"]
    regex: str | None = None
    slot_form: SlotForm | None = None
    max_tokens: int | None = None

    @classmethod
    def from_labels(
        cls,
        labels: Sequence[str],
        k: int = 1,
        *,
        distinct: bool = True,
        order: Order = "any",
        template: str | Template | Mapping[str, Any] = "json",
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
        template : {"json", "raw"}, Template or mapping
            How the chosen labels are written. A mapping holds fields of :class:`Template`; those it leaves out are
            ``"raw"``'s.

        Raises
        ------
        GrammarError
            Empty list, empty or duplicate label, ``k`` out of range, unknown template, ambiguous labels.
        GrammarTooLargeError
            Too many labels or bytes.
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
        _check_bytes((*labels, *grammar._literals()))
        if grammar.template.escape == "none" or not grammar.template.separator.startswith('"'):
            grammar.form().check_unambiguous()
        return grammar

    @classmethod
    def from_regex(cls, pattern: str, max_tokens: int | None = None) -> ActionGrammar:
        """Choose one string of a regex (dialect: ``docs/semantics.md``).

        Parameters
        ----------
        pattern : str
            Parsed when it is compiled. Its language must be finite unless ``max_tokens`` is given.
        max_tokens : int, optional
            Cut the answer off after so many tokens, as ``max_new_tokens`` cuts decoding; with ``spelling="any"`` only.
        """
        if not isinstance(pattern, str):
            raise GrammarError(f"regex must be a string, not {type(pattern).__name__}")
        if max_tokens is not None and not 1 <= max_tokens <= DEFAULT_LIMITS.max_answer_tokens:
            raise GrammarError(f"max_tokens is {max_tokens}; use 1 to {DEFAULT_LIMITS.max_answer_tokens}")
        return cls(regex=pattern, max_tokens=max_tokens)

    @classmethod
    def from_form(cls, parts: Sequence[str | Sequence[str]]) -> ActionGrammar:
        """Choose one text for each slot of ``parts``, which mixes literals (strings) and slots (lists of strings).

        Raises
        ------
        GrammarError
            A slot without choices, duplicate choices, or an answer that could be read in two ways.
        """
        if isinstance(parts, str | bytes) or not isinstance(parts, Sequence):
            raise GrammarError("form must be a list of literals (strings) and slots (lists of strings)")
        form = _read_parts(parts)
        form.check_unambiguous()
        return cls(slot_form=form)

    @classmethod
    def from_json_schema(cls, schema: Mapping[str, Any]) -> ActionGrammar:
        """Choose a JSON value of a schema that admits finitely many (subset: ``docs/semantics.md``)."""
        from sgl_compiled.grammar.json_schema import read_schema

        return cls(slot_form=read_schema(schema))

    @classmethod
    def from_model(cls, model: type[BaseModel]) -> ActionGrammar:
        """Choose the fields of a pydantic model: literals, enums, booleans, small ranges, lists, nested models.

        Raises
        ------
        GrammarError
            A field with infinitely many values; the message names it.
        """
        from sgl_compiled.grammar.model import model_schema

        return cls.from_json_schema(model_schema(model))

    @classmethod
    def from_tools(cls, tools: Sequence[Mapping[str, Any]]) -> ActionGrammar:
        """Choose one of ``tools`` (as in the OpenAI API) and its arguments: ``{"name": ..., "arguments": {...}}``."""
        from sgl_compiled.grammar.json_schema import tools_schema

        return cls.from_json_schema(tools_schema(tools))

    def form(self) -> SlotForm:
        """Return the slot form of every grammar but a regex."""
        assert self.regex is None
        if self.slot_form is not None:
            return self.slot_form
        written = tuple(self.template.write(label) for label in self.labels)
        return SlotForm(self._literals(), (written,) * self.k, self._constraint())

    def _literals(self) -> tuple[str, ...]:
        return self.template.prefix, *(self.template.separator,) * (self.k - 1), self.template.suffix

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
            return cls.from_regex(spec["regex"], spec.get("max_tokens"))
        if spec.get("slot_form") is not None:
            form = spec["slot_form"]
            slots = tuple(map(tuple, form["slots"]))
            return cls(slot_form=checked_form(tuple(form["literals"]), slots, form["constraint"]))
        return cls.from_labels(
            list(spec["labels"]),
            spec["k"],
            distinct=spec["distinct"],
            order=spec["order"],
            template=spec["template"],
        )


def checked_form(
    literals: tuple[str, ...], slots: tuple[tuple[str, ...], ...], constraint: Constraint = "free"
) -> SlotForm:
    """Return a slot form, within the limits.

    Raises
    ------
    GrammarError
        A slot without choices, duplicate choices, choices that are no text.
    GrammarTooLargeError
        Too many slots, choices or bytes.
    """
    limits = DEFAULT_LIMITS
    if len(literals) != len(slots) + 1 or constraint not in get_args(Constraint):
        raise GrammarError("a form has one literal more than slots, and a known constraint")
    if constraint != "free" and len(set(slots)) > 1:
        raise GrammarError(f"constraint {constraint!r} needs the same choices in every slot")
    if constraint in ("distinct", "increasing") and slots and len(slots) > len(slots[0]):
        raise GrammarError(f"{len(slots)} slots cannot hold different ones of {len(slots[0])} choices")
    if not slots:
        raise GrammarError("the grammar leaves nothing to choose; give at least one slot")
    if len(slots) > limits.max_slots:
        raise GrammarTooLargeError(f"the grammar has {len(slots)} slots; the limit is {limits.max_slots}")
    for index, choices in enumerate(slots):
        if not choices:
            raise GrammarError(f"slot {index} has no choices; give at least one")
        if len(choices) > limits.max_labels:
            raise GrammarTooLargeError(f"slot {index} has {len(choices)} choices; the limit is {limits.max_labels}")
        twice, times = Counter(choices).most_common(1)[0]
        if times > 1:
            raise GrammarError(f"slot {index} holds {twice!r} twice; remove one")
    texts = (*literals, *(choice for choices in slots for choice in choices))
    for text in texts:
        if _SURROGATE.search(text):
            raise GrammarError(f"{text!r} holds a lone surrogate, which UTF-8 cannot encode; remove it")
    _check_bytes(texts)
    for index, choices in enumerate(slots):
        longest = max(map(size_of, choices))
        # A lone choice is no more than a literal.
        if len(choices) > 1 and longest > limits.max_label_bytes:
            raise GrammarTooLargeError(
                f"slot {index} has a choice of {longest} bytes; the limit is {limits.max_label_bytes}"
            )
    return SlotForm(literals, slots, constraint)


def _read_parts(parts: Sequence[Any]) -> SlotForm:
    literals, slots = [""], list[tuple[str, ...]]()
    for index, part in enumerate(parts):
        if isinstance(part, str):
            literals[-1] += part
        elif isinstance(part, Sequence) and all(isinstance(choice, str) for choice in part):
            slots.append(tuple(part))
            literals.append("")
        else:
            raise GrammarError(f"form[{index}] is neither a string (a literal) nor a list of strings (a slot)")
    return checked_form(tuple(literals), tuple(slots))


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
    sizes = list(map(size_of, labels))
    if max(sizes) > DEFAULT_LIMITS.max_label_bytes:
        raise GrammarTooLargeError(
            f"labels[{sizes.index(max(sizes))}] has {max(sizes)} bytes; the limit is {DEFAULT_LIMITS.max_label_bytes}"
        )


def _check_bytes(texts: Iterable[str]) -> None:
    size, limit = sum(map(size_of, texts)), DEFAULT_LIMITS.max_labels_bytes
    if size > limit:
        raise GrammarTooLargeError(
            f"the labels and the texts around them hold {size} bytes in all; the limit is {limit}; shorten them"
        )


def _template(template: str | Template | Mapping[str, Any]) -> Template:
    if isinstance(template, str):
        if template not in TEMPLATES:
            names = ", ".join(map(repr, TEMPLATES))
            raise GrammarError(f"unknown template {template!r}; use one of {names}, or a Template")
        return TEMPLATES[template]
    if isinstance(template, Mapping):
        known = [field.name for field in fields(Template)]
        if unknown := set(template) - set(known):
            raise GrammarError(f"unknown template field {min(unknown, key=str)!r}; a template has {', '.join(known)}")
        template = replace(TEMPLATES["raw"], **template)
    if not isinstance(template, Template):
        raise GrammarError(f"template must be a name, a Template or its fields, not {type(template).__name__}")
    if template.escape not in ("json", "none"):
        raise GrammarError(f"unknown template escape {template.escape!r}; use 'json' or 'none'")
    for name in ("prefix", "separator", "suffix"):
        text = getattr(template, name)
        if not isinstance(text, str):
            raise GrammarError(f"the template's {name} is {text!r}; it must be a string")
        if _SURROGATE.search(text):
            raise GrammarError(f"the template's {name} holds a lone surrogate, which UTF-8 cannot encode; remove it")
    return template
