"""A toy tokenizer: longest match over a small vocabulary, one pre-token a separator-free run."""

from __future__ import annotations

from collections.abc import Sequence

from sgl_compiled.grammar.tokenizer import TokenizerInfo
from sgl_compiled.grammar.vocabulary import Vocabulary


def toy(pieces: Sequence[str], stop_ids: Sequence[int] = (0,), *, merge: bool = True) -> TokenizerInfo:
    """Return a tokenizer whose id 0 is the end token and whose other ids spell ``pieces``.

    With ``merge`` the longest piece at each place is taken, whatever it crosses: the worst kind for joints.
    """
    vocabulary = Vocabulary((None, *(piece.encode() for piece in pieces)), frozenset(stop_ids))

    def encode(text: str) -> list[int]:
        data, out, at = text.encode(), [], 0
        while at < len(data):
            fits = [
                (len(piece.encode()), index + 1)
                for index, piece in enumerate(pieces)
                if data.startswith(piece.encode(), at) and (merge or len(piece) == 1)
            ]
            size, token = max(fits)
            out.append(token)
            at += size
        return out

    return TokenizerInfo(vocabulary, lambda texts: [encode(text) for text in texts])
