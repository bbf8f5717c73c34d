"""Size limits of grammar compilation, checked before anything is unrolled."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sgl_compiled.errors import GrammarTooLargeError

__all__ = ["DEFAULT_LIMITS", "Deadline", "Limits"]


@dataclass(frozen=True)
class Limits:
    """What one grammar may cost; a grammar over a limit is refused with the limit's name.

    Attributes
    ----------
    max_pattern_chars
        Length of a regular expression, in characters.
    max_nfa_states
        States of the nondeterministic automaton.
    max_repeat_states
        States that the copies of one bounded repeat add, counted before it is unrolled.
    max_automaton_states
        States of the deterministic byte automaton.
    max_strings
        Strings of a finite language that may be listed one by one.
    max_strings_bytes
        Bytes of all those strings together. A trie node takes a token of a byte or more, so this bounds tries too.
    max_labels
        Labels of one action grammar.
    max_label_bytes
        Bytes of one label (UTF-8), or of one choice of a form or schema.
    max_labels_bytes
        Bytes of all labels of one action grammar together, with the literal texts around them.
    max_window_bytes
        Bytes that are encoded for ``spelling="canonical"``: each choice with the texts and choices next to it.
    max_slots
        Labels that one action may choose (k).
    max_tree_positions
        Token positions of one evaluated tree.
    max_likely_positions
        Token positions that the likely spellings take in one tree of ``spelling="any"``.
    max_deviation_positions
        Token positions of a tree of ``spelling="any"`` up to which unlikely spellings are added.
    max_truncated_positions
        Token positions of one tree where the answer is cut off after ``max_tokens``.
    max_answer_tokens
        The largest ``max_tokens``.
    max_legal_ids
        Legal ids of all rows of a tree of ``spelling="any"`` together; its first row is always read.
    tree_seconds
        Processor time of one tree of ``spelling="any"``, whose states may be new.
    compile_seconds
        Wall time of each automaton of a regular expression (one for the language, one for groups), a net under the
        counted limits.
    """

    max_pattern_chars: int = 500_000
    max_nfa_states: int = 1_000_000
    max_repeat_states: int = 10_000
    max_automaton_states: int = 50_000
    max_strings: int = 100_000
    max_strings_bytes: int = 4_000_000
    max_labels: int = 50_000
    max_label_bytes: int = 4_096
    max_labels_bytes: int = 4_000_000
    max_window_bytes: int = 32_000_000
    max_slots: int = 64
    max_tree_positions: int = 4_096
    max_likely_positions: int = 1_024
    max_deviation_positions: int = 128
    max_truncated_positions: int = 64
    max_answer_tokens: int = 256
    max_legal_ids: int = 65_536
    tree_seconds: float = 1.0
    compile_seconds: float = 5.0


DEFAULT_LIMITS = Limits()


class Deadline:
    """The moment at which an automaton of a regular expression takes too long; counted from now."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._seconds = limits.compile_seconds
        self._at = time.monotonic() + self._seconds

    def check(self) -> None:
        """Refuse to go on past the deadline.

        Raises
        ------
        GrammarTooLargeError
        """
        if time.monotonic() > self._at:
            raise GrammarTooLargeError(
                f"The regular expression did not compile within {self._seconds} s; "
                "lower the bounds of its repeats or split it."
            )
