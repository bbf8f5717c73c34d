"""A tokenizer as the compiler sees it: a way to encode answers, and the bytes of every id."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from sgl_compiled.errors import GrammarError
from sgl_compiled.grammar.vocabulary import Vocabulary

__all__ = ["TokenizerInfo"]


@dataclass(frozen=True)
class TokenizerInfo:
    """Encoder and vocabulary of one tokenizer; two are interchangeable if their fingerprints are equal.

    Parameters
    ----------
    vocabulary : Vocabulary
        Bytes and stop ids.
    encode_batch : callable
        Texts to token id sequences, without special tokens and never parsing special tokens out of the text.
    """

    vocabulary: Vocabulary
    encode_batch: Callable[[Sequence[str]], list[list[int]]] = field(repr=False, compare=False)

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Any, *, vocab_size: int | None = None, stop_ids: Iterable[int] = ()
    ) -> TokenizerInfo:
        """Read a Hugging Face tokenizer.

        Parameters
        ----------
        tokenizer : transformers.PreTrainedTokenizerBase
        vocab_size : int, optional
            Width of the model's logits; ids at or beyond it can never be chosen.
        stop_ids : iterable of int
            The ids at which serial decoding stops (model and generation config, tokenizer, request).
        """
        # A fast tokenizer keeps call options as state and refuses to be shared between threads: the server goes on
        # with its own, compilation takes a copy, one thread at a time.
        own, lock = copy.deepcopy(tokenizer), threading.Lock()

        fast = getattr(own, "backend_tokenizer", None)
        if fast is not None:
            fast.encode_special_tokens = True
            fast.no_padding()
            fast.no_truncation()

        def encode_batch(texts: Sequence[str]) -> list[list[int]]:
            if not texts:
                return []
            with lock:
                if fast is not None:
                    # Without the offsets and masks of the wrapper, a third of the time.
                    return [found.ids for found in fast.encode_batch_fast(list(texts), add_special_tokens=False)]
                encoded = own(list(texts), add_special_tokens=False, split_special_tokens=True)
            return [list(ids) for ids in encoded["input_ids"]]

        return cls(Vocabulary.from_tokenizer(tokenizer, vocab_size=vocab_size, stop_ids=stop_ids), encode_batch)

    def offsets(self, ids: Sequence[int], text: str) -> list[int]:
        """Byte offset in ``text`` at which each token starts, followed by the end offset.

        A word-start space that the tokenizer adds of its own accord at the very beginning counts as zero bytes.

        Raises
        ------
        GrammarError
            If the tokens do not spell ``text`` byte for byte.
        """
        data, known = text.encode(), self.vocabulary.token_bytes
        spelled: list[bytes] = []
        for token in ids:
            piece = known[token] if token < len(known) else None
            if piece is None:
                raise GrammarError(f"the tokenizer cannot spell {text!r} with ordinary tokens (it needs id {token})")
            spelled.append(piece)
        joined = b"".join(spelled)
        lead = 1 if joined != data and joined == b" " + data else 0
        if joined[lead:] != data:
            raise GrammarError(f"the tokenizer changes {text!r} when it encodes it (normalisation); use other labels")
        ends = accumulate(map(len, spelled), initial=-lead)
        return [max(at, 0) for at in ends] if lead else list(ends)
