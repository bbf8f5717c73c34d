"""Regular expressions to byte automata, in the dialect of docs/semantics.md."""

from __future__ import annotations

from sgl_compiled.errors import GrammarError
from sgl_compiled.grammar.automaton import ByteAutomaton
from sgl_compiled.grammar.limits import DEFAULT_LIMITS, Deadline, Limits
from sgl_compiled.grammar.nfa import build_nfa, determinise
from sgl_compiled.grammar.regex_syntax import parse_regex

__all__ = ["compile_regex", "require_finite", "require_texts"]


def compile_regex(pattern: str, limits: Limits = DEFAULT_LIMITS) -> ByteAutomaton:
    """Compile a regular expression that must match the whole text.

    Parameters
    ----------
    pattern
        Dialect of docs/semantics.md: ASCII classes, no lookaround, no backreferences.
    limits
        Sizes checked before anything is unrolled.

    Returns
    -------
    ByteAutomaton
        Over the UTF-8 bytes of the text. The language may be infinite (see `require_finite`), and is empty
        for a class without members.

    Raises
    ------
    GrammarError
        When the pattern is malformed.
    UnsupportedError
        When it uses a construct that is refused by name.
    GrammarTooLargeError
        When a limit is passed.
    """
    deadline = Deadline(limits)
    program = parse_regex(pattern, limits).program
    return determinise(build_nfa(program, limits, deadline), limits, deadline)


def require_texts(automaton: ByteAutomaton) -> ByteAutomaton:
    """Return the automaton if its language is not empty.

    Raises
    ------
    GrammarError
        With the remedy.
    """
    if automaton.is_empty():
        raise GrammarError("The grammar matches no text at all; remove the contradiction (an empty class, for one).")
    return automaton


def require_finite(automaton: ByteAutomaton) -> ByteAutomaton:
    """Return the automaton if its language is finite and not empty.

    Raises
    ------
    GrammarError
        With the remedy, for an infinite or an empty language.
    """
    if not require_texts(automaton).is_finite():
        raise GrammarError(
            "The grammar matches infinitely many texts, and select_k chooses among finitely many: bound every "
            "'*', '+' and {m,}, as in {0,8}, or give max_tokens with spelling='any', or use generate(regex=...)."
        )
    return automaton
