"""Seams where SGLang decides how much of a prompt is cached and how much runs in one prefill batch."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang.srt.managers.schedule_policy import AddReqResult

from sgl_compiled.grammar.layout import ROOT
from sgl_compiled.runtime.mask_limit import mask_fits
from sgl_compiled.runtime.payload import Probe, decode

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

__all__ = ["add_one_req", "filter_batch", "max_prefix_len", "probe_of"]

_ATTRIBUTE = "sgl_compiled_probe"
_HOLDS_TREE = "sgl_compiled_holds_tree"
_UNREAD = object()


def probe_of(req: Req) -> Probe | None:
    """Return the request's probe, read once; ``None`` for every request that is not ours."""
    known: Any = getattr(req, _ATTRIBUTE, _UNREAD)
    probe: Probe | None = None if known is _UNREAD else known
    if known is _UNREAD:
        params = req.sampling_params
        # Ours never ask for these, and SGLang pairs them with an input that a finished probe no longer has.
        plain = not (req.stream or req.return_logprob or req.return_hidden_states)
        if params.max_new_tokens == 1 and plain:
            probe = decode(params.custom_params, len(req.origin_input_ids), req.vocab_size)
        setattr(req, _ATTRIBUTE, probe)
        if probe is not None and probe.parents:
            # A tree is not a continuation; whatever else happens, it must not enter the cache as one.
            req.skip_radix_cache_insert = True
    return probe


def max_prefix_len(original: Callable[..., int], self: Req, input_len: int) -> int:
    """Keep the rows that a probe reads out of the cached prefix: ``Req._compute_max_prefix_len``."""
    limit = original(self, input_len)
    probe = probe_of(self)
    if probe is None:
        return limit
    return max(0, min(limit, probe.base - (1 if probe.rows[:1] == (ROOT,) else 0)))


def add_one_req(original: Callable[..., Any], self: Any, req: Req, *args: Any, **kwargs: Any) -> Any:
    """Never let chunked prefill cut a tree: ``PrefillAdder.add_one_req``.

    A probe that does not fit into what others have left of this batch's chunk waits a round. One that does not fit
    although it comes first (its prompt is not cached, or no longer) gives up its tree: the prompt alone is computed,
    in chunks if need be, and the caller sends the tree again behind it. The same holds for a batch whose mask would be
    too large, which other requests can fill up as well.
    """
    probe = probe_of(req)
    if probe is None or not probe.parents:
        if getattr(self, _HOLDS_TREE, False) and not mask_fits(self, req):
            return AddReqResult.OTHER
        return original(self, req, *args, **kwargs)
    uncached = self.ceil_paged_tokens(len(req.full_untruncated_fill_ids) - len(req.prefix_indices))
    if (self.rem_chunk_tokens is None or uncached <= self.rem_chunk_tokens) and mask_fits(self, req):
        setattr(self, _HOLDS_TREE, True)
        return original(self, req, *args, **kwargs)
    if self.can_run_list:
        return AddReqResult.OTHER
    drop_tree(req, probe)
    # The whole prompt may be cached, and a prefill needs a token to compute.
    req.init_next_round_input(self.tree_cache)
    return original(self, req, *args, **kwargs)


def filter_batch(
    original: Callable[..., None], self: Any, chunked_req_to_exclude: Any = None, keep_indices: list[int] | None = None
) -> None:
    """Let no probe go on to decode: ``ScheduleBatch.filter_batch``.

    Under the overlap scheduler a prefill's requests join the decode batch before their results are processed, so a
    request that ends with its prefill would still cost one decode step.
    """
    if keep_indices is None and self.forward_mode is not None and self.forward_mode.is_extend():
        probes = [req for req in self.reqs if probe_of(req) is not None]
        if probes:
            others = chunked_req_to_exclude if chunked_req_to_exclude is not None else []
            chunked_req_to_exclude = [*(others if isinstance(others, list) else [others]), *probes]
    original(self, chunked_req_to_exclude, keep_indices)


def drop_tree(req: Req, probe: Probe) -> None:
    """Turn a probe into a plain prefill of its prompt."""
    setattr(req, _ATTRIBUTE, probe.without_tree())
    req.skip_radix_cache_insert = False
    req.origin_input_ids = array("q", req.origin_input_ids[: probe.base])
    req.full_untruncated_fill_ids = req.origin_input_ids + req.output_ids
