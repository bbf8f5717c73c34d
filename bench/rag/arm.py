"""What an arm is: one way to choose k of the options behind a prompt."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from bench.common import flush, prefill, ready_regex
from bench.rag.tasks import Ask

__all__ = ["Arm", "Choice", "Engine", "SkipArmError", "read_names"]


class SkipArmError(Exception):
    """The arm cannot answer this: something is not installed, or it is not made for so many options."""


@dataclass(frozen=True)
class Choice:
    """An answer and what it took; ``picks`` is None after a protocol error."""

    picks: list[int] | None
    text: str
    output_tokens: int = 0
    passes: int = 0
    positions: int = 0
    token_ids: list[int] | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    min_margin: float | None = None
    error: str | None = None


@dataclass
class Engine:
    """The server under test, and what was made ready on it."""

    url: str
    tokenizer: Any
    _ready: set[str] = field(default_factory=set)

    def generate(self, text: str, sampling: dict[str, Any], **fields: Any) -> Any:
        """POST ``/generate``, greedy."""
        body = {"text": text, "sampling_params": {"temperature": 0, **sampling}, **fields}
        response = httpx.post(self.url + "/generate", json=body, timeout=600, trust_env=False)
        response.raise_for_status()
        return response.json()

    def flush(self) -> None:
        """Empty the radix cache and SGLang's cache of grammars."""
        flush(self.url)
        self._ready.clear()

    def warm(self, prompt: str) -> None:
        """Bring a prompt into the radix cache, once."""
        if prompt not in self._ready:
            prefill(self.url, prompt)
            self._ready.add(prompt)

    def warm_regex(self, regex: str) -> None:
        """Let the server's grammar backend compile a regex, once."""
        if regex not in self._ready:
            ready_regex(self.url, regex)
            self._ready.add(regex)

    def size(self, text: str) -> int:
        """Return the number of the text's tokens."""
        return len(self.tokenizer.encode(text, add_special_tokens=False))

    def cut(self, text: str, tokens: int) -> tuple[str, int]:
        """Return the text's first tokens as text, and how many these are."""
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = encoded["offset_mapping"][:tokens]
        return (text[: offsets[-1][1]] if offsets else ""), len(offsets)


class Arm(ABC):
    """One way to choose; ``choose`` is timed, ``prepare`` (compiling a grammar, filling the prompt cache) is not."""

    name: str

    @abstractmethod
    def prepare(self, engine: Engine, ask: Ask) -> None:
        """Do what a server in use would have done before: the same for every arm, where it applies."""

    @abstractmethod
    def choose(self, engine: Engine, ask: Ask) -> Choice:
        """Choose.

        Raises
        ------
        SkipArmError
            This arm does not apply.
        """


def read_names(text: str, names: Sequence[str], k: int) -> tuple[list[int] | None, str | None]:
    """Return indices of ``k`` distinct names of a JSON list at the start of ``text``, or None and what is wrong."""
    try:
        found, _ = json.JSONDecoder().raw_decode(text.strip())
    except json.JSONDecodeError:
        return None, "not a JSON list" if "]" in text else "cut off"
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        return None, "not a list of strings"
    if any(name not in names for name in found):
        return None, "a name that is not offered"
    if len(set(found)) < len(found):
        return None, "a name twice"
    if len(found) != k:
        return None, f"{len(found)} names instead of {k}"
    return [names.index(name) for name in found], None
