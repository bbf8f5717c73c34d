"""One face for the masks of outlines_core, llguidance and xgrammar over a vocabulary's bytes."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Protocol

import interegular
import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from outlines_core.fsm.outlines_core_rs import Index
from outlines_core.fsm.outlines_core_rs import Vocabulary as OutlinesVocabulary
from outlines_core.fsm.regex import byte_symbol, make_byte_level_fsm, make_deterministic_fsm

from sgl_compiled.grammar.vocabulary import Vocabulary

__all__ = ["ENGINES", "Engine", "Refused", "Walker"]


class Refused(Exception):
    """The engine does not take this pattern."""


class Walker(Protocol):
    """One walk through the language of a pattern."""

    def legal(self) -> set[int]:
        """Legal ids, stop ids included."""
        ...

    def accept(self, token: int) -> None:
        """Take one legal id that is not a stop id."""
        ...


class Engine(Protocol):
    """A mask engine over one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None: ...

    def start(self, pattern: str) -> Walker:
        """Compile a pattern, or raise `Refused`."""
        ...


class Outlines:
    """outlines_core 0.1.26 with interegular, as SGLang's outlines backend drives them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        texts: dict[str, list[int]] = {}
        for index, data in enumerate(vocabulary.token_bytes):
            if data is not None:
                texts.setdefault(_outlines_text(data), []).append(index)
        self.vocabulary = OutlinesVocabulary.from_dict(texts)
        (self.stop,) = vocabulary.stop_ids
        self.latest: tuple[str | None, Any] = (None, None)  # compiling is slow: several walks share one index

    def start(self, pattern: str) -> Walker:
        if self.latest[0] != pattern:
            self.latest = (pattern, self.compile(pattern))
        return _OutlinesWalker(self.latest[1], self.stop)

    def compile(self, pattern: str) -> Any:
        try:
            parsed = interegular.parse_pattern(pattern).to_fsm()
        except (interegular.InvalidSyntax, interegular.Unsupported) as error:
            raise Refused(str(error)) from error
        fsm, _ = make_deterministic_fsm(make_byte_level_fsm(parsed.reduce(), keep_utf8=True))
        try:
            return Index(fsm.fsm_info, self.vocabulary, self.stop, frozenset())
        except ValueError as error:
            raise Refused(str(error)) from error


def _outlines_text(data: bytes) -> str:
    """Whole characters as text, and pieces of characters as the symbols outlines_core uses for lone bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "".join(byte_symbol(byte) for byte in data)


class _OutlinesWalker:
    def __init__(self, index: Any, stop: int) -> None:
        self.index, self.stop, self.state = index, stop, index.get_initial_state()

    def legal(self) -> set[int]:
        allowed = self.index.get_allowed_tokens(self.state)
        return {self.stop} if allowed is None else set(allowed)

    def accept(self, token: int) -> None:
        self.state = self.index.get_next_state(self.state, token)


class LLGuidance:
    """llguidance over the vocabulary's bytes.

    As SGLang drives it, it allows a single token wherever the text is forced (`forcing`); the full legal set needs
    that switched off.
    """

    forcing = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.size = len(vocabulary)
        self.tokenizer = LLTokenizer(TokenizerWrapper(_LLVocabulary(vocabulary)))

    def start(self, pattern: str) -> Walker:
        grammar = json.loads(LLMatcher.grammar_from_regex(pattern))
        if not self.forcing:
            (rules,) = grammar["grammars"]
            rules["lark_grammar"] = '%llguidance {"no_forcing": true}\n' + rules["lark_grammar"]
        matcher = LLMatcher(self.tokenizer, json.dumps(grammar), log_level=0)
        if matcher.is_error():
            raise Refused(matcher.get_error())
        return _LLWalker(matcher, self.size)


class _LLVocabulary:
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        (self.eos_token_id,) = vocabulary.stop_ids
        # Silent ids need bytes of their own here; the prefix 0xFF marks them as special.
        self.tokens = [data or b"\xff<%d>" % index for index, data in enumerate(vocabulary.token_bytes)]
        self.special_token_ids = [index for index, data in enumerate(vocabulary.token_bytes) if data is None]
        self.by_bytes = {data: index for index, data in enumerate(self.tokens)}

    def __call__(self, text: bytes) -> list[int]:
        return [self.by_bytes[bytes([byte])] for byte in text]


class _LLWalker:
    def __init__(self, matcher: Any, size: int) -> None:
        self.matcher, self.size = matcher, size

    def legal(self) -> set[int]:
        mask = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
        bits = np.unpackbits(mask, bitorder="little")
        assert not self.matcher.is_error(), self.matcher.get_error()
        return set(np.flatnonzero(bits[: self.size]).tolist())

    def accept(self, token: int) -> None:
        assert self.matcher.consume_token(token)


class XGrammar:
    """xgrammar over the vocabulary's bytes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self.xgrammar = xgrammar
        self.size = len(vocabulary)
        silent = [index for index, data in enumerate(vocabulary.token_bytes) if data is None]
        info = xgrammar.TokenizerInfo(
            [data or b"" for data in vocabulary.token_bytes],
            vocab_type=xgrammar.VocabType.RAW,
            vocab_size=self.size,
            stop_token_ids=sorted(vocabulary.stop_ids),
        )
        assert set(info.special_token_ids) <= set(silent)
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def start(self, pattern: str) -> Walker:
        if "\x00" in pattern:
            raise Refused("a NUL in the pattern ends the process with a segmentation fault")
        with contextlib.suppress(RuntimeError):
            return _XGrammarWalker(self.xgrammar, self.compiler.compile_regex(pattern), self.size)
        raise Refused(pattern)


class _XGrammarWalker:
    def __init__(self, xgrammar: Any, grammar: Any, size: int) -> None:
        self.matcher = xgrammar.GrammarMatcher(grammar)
        self.size = size
        self.bitmask = xgrammar.allocate_token_bitmask(1, size)

    def legal(self) -> set[int]:
        self.matcher.fill_next_token_bitmask(self.bitmask)
        bits = np.unpackbits(self.bitmask.numpy().view(np.uint8), bitorder="little")
        return set(np.flatnonzero(bits[: self.size]).tolist())

    def accept(self, token: int) -> None:
        assert self.matcher.accept_token(token)


ENGINES: dict[str, type[Engine]] = {"outlines": Outlines, "llguidance": LLGuidance, "xgrammar": XGrammar}
