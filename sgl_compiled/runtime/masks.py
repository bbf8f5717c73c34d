"""Tree masks as arrays; polarity: True = may attend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["ancestor_mask", "extend_mask"]


def ancestor_mask(parents: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Which tree tokens each tree token may attend to: itself and its ancestors.

    Parameters
    ----------
    parents : sequence of int, length n
        Index of each token's parent, -1 for a child of the prompt; parents stand before their children.

    Returns
    -------
    ndarray of bool, shape (n, n)
        ``mask[i, j]`` is True where token ``i`` may attend to token ``j``.
    """
    mask = np.eye(len(parents), dtype=np.bool_)
    for index, parent in enumerate(parents):
        assert parent < index
        if parent >= 0:
            mask[index] |= mask[parent]
    return mask


def extend_mask(prompt_rows: int, prefix_len: int, parents: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return the whole mask of a probe's extend rows over its cached prefix, its new prompt rows and its tree.

    Parameters
    ----------
    prompt_rows : int
        New prompt tokens in the extend (causal).
    prefix_len : int
        Cached tokens before them.
    parents : sequence of int

    Returns
    -------
    ndarray of bool, shape (prompt_rows + n, prefix_len + prompt_rows + n)
    """
    n = len(parents)
    base = prefix_len + prompt_rows
    mask = np.zeros((prompt_rows + n, base + n), dtype=np.bool_)
    mask[:prompt_rows, :base] = np.tril(np.ones((prompt_rows, base), dtype=np.bool_), k=prefix_len)
    mask[prompt_rows:, :base] = True
    mask[prompt_rows:, base:] = ancestor_mask(parents)
    return mask
