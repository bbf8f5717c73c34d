"""All spellings of a language that may be infinite, cut off after so many tokens as `max_new_tokens` cuts decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from sgl_compiled.grammar.spellings import SpellingAutomaton
from sgl_compiled.grammar.tokens import State

__all__ = ["BoundedSpelling"]


class BoundedSpelling:
    """Token automaton of a language's spellings of at most ``max_tokens`` tokens, and of the beginnings of longer ones.

    A state is one of ``inner`` and the number of tokens that are left. Where none is left the answer ends, inside a
    text or not.

    Parameters
    ----------
    inner
        All spellings of the language, which may be infinite.
    max_tokens
        At least 1.
    """

    truncated = True

    def __init__(self, inner: SpellingAutomaton, max_tokens: int) -> None:
        self.inner = inner
        self.start: State = (inner.start, max_tokens)

    def step(self, state: State) -> Mapping[int, State]:
        """See :class:`~sgl_compiled.grammar.tokens.TokenAutomaton`."""
        return _fewer(self.inner.step, state)

    @property
    def grown(self) -> bool:
        """See :class:`~sgl_compiled.grammar.spellings.SpellingAutomaton`."""
        return self.inner.grown

    def accepts(self, state: State) -> bool:
        """Tell whether the answer may end here: the text is whole, or no token is left."""
        return not state[1] or self.whole(state)

    def whole(self, state: State) -> bool:
        """Tell whether the text up to here is one of the language."""
        return self.inner.accepts(state[0])

    def actions(self, state: State) -> int:
        """Return the slots filled for sure."""
        return self.inner.actions(state[0])

    def single(self, state: State) -> bool:
        """Tell whether nothing is decided from here on."""
        return not state[1] or self.inner.single(state[0])

    def canonical(self, state: State) -> Mapping[int, State]:
        """Return the legal ids with which the tokenizer itself spells some rest of the text, and where each leads."""
        return _fewer(self.inner.canonical, state)

    def likely(self, state: State) -> Mapping[int, State]:
        """Return the ids that won here before, and the canonical ones."""
        return _fewer(self.inner.likely, state)

    def learn(self, state: State, tokens: Sequence[int]) -> None:
        """Remember where decided tokens left the canonical spelling, however many tokens were left."""
        self.inner.learn(state[0], tokens)


def _fewer(step: Callable[[int], Mapping[int, int]], state: State) -> Mapping[int, State]:
    at, left = state
    return _Counted(step(at), left - 1) if left else {}


class _Counted(Mapping[int, State]):
    """A mapping to the language's states, seen as one to states with so many tokens left."""

    def __init__(self, found: Mapping[int, int], left: int) -> None:
        self._found = found
        self._left = left

    def __getitem__(self, token: int) -> State:
        return self._found[token], self._left

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)
