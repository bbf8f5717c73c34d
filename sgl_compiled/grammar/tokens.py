"""What every consumer of a compiled grammar relies on: an automaton over token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

__all__ = ["State", "TokenAutomaton"]

State: TypeAlias = Any
"""Hashable; each automaton has its own kind."""


class TokenAutomaton(Protocol):
    """A deterministic, acyclic automaton over token ids, expanded lazily.

    Every state that ``step`` returns can reach an accepting state, so a walk never gets stuck.
    """

    @property
    def start(self) -> State:
        """The state before the first answer token."""
        ...

    def step(self, state: State) -> Mapping[int, State]:
        """Legal next token ids (without stop ids) and where each leads, in ascending id order."""
        ...

    def accepts(self, state: State) -> bool:
        """Whether a whole answer ends here, so that the stop ids are legal too."""
        ...

    def actions(self, state: State) -> int:
        """How many actions (slots, or decisions where the grammar has no slots) are already resolved."""
        ...
