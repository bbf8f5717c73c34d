"""Every error a user can cause, each with a message that says how to mend it."""

from __future__ import annotations

__all__ = [
    "CompatError",
    "GrammarError",
    "GrammarTooLargeError",
    "ModelError",
    "NumericalError",
    "RequestError",
    "ServerError",
    "SglCompiledError",
    "UnsupportedError",
]


class SglCompiledError(ValueError):
    """Base of all user-facing errors; the message says what is wrong and how to mend it."""


class GrammarError(SglCompiledError):
    """The grammar has no meaning: empty, ambiguous, malformed or unsatisfiable."""


class GrammarTooLargeError(GrammarError):
    """The grammar is well formed but over a documented limit (strings, states, tree positions, compile time)."""


class UnsupportedError(GrammarError):
    """The construct is understood and deliberately refused, by name."""


class RequestError(SglCompiledError):
    """A field of a request is wrong (prompt too long, unknown plan, ...)."""


class NumericalError(SglCompiledError):
    """Logits at a decision hold NaN or no finite legal value, so no choice can be made."""


class ModelError(SglCompiledError):
    """A model or checkpoint cannot be found, read or converted."""


class ServerError(SglCompiledError):
    """The server answered with an error, or could not be started."""


class CompatError(SglCompiledError):
    """The installed SGLang, or its configuration, is not one this plugin works with."""
