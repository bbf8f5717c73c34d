"""Decisions in the tokenizer process: compile, plan, send passes, walk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sgl_compiled.control.walk import Decision, Row, forced, walk
from sgl_compiled.errors import GrammarTooLargeError, RequestError, ServerError
from sgl_compiled.grammar.compile import CompiledGrammar, GrammarCompiler
from sgl_compiled.grammar.layout import TreeLayout, actions_ahead, decisions_ahead, unfold
from sgl_compiled.grammar.limits import DEFAULT_LIMITS
from sgl_compiled.grammar.slots import SlotAutomaton
from sgl_compiled.grammar.tokenizer import TokenizerInfo
from sgl_compiled.grammar.tokens import State
from sgl_compiled.plan.cost import CostModel, OnlineCost, Sample
from sgl_compiled.plan.memory import PrefixMemory, RankMemory
from sgl_compiled.plan.narrow import SlotRanking
from sgl_compiled.plan.passes import Plan
from sgl_compiled.plan.planner import Candidate
from sgl_compiled.runtime.calibration import load_cost, load_epsilon, measure_cost, save_cost, setting
from sgl_compiled.runtime.mask_limit import mask_positions
from sgl_compiled.runtime.payload import encode, encode_star
from sgl_compiled.runtime.rows import KEY
from sgl_compiled.runtime.serial import reference_key
from sgl_compiled.runtime.sizes import plan_for

__all__ = ["PassRecord", "SelectEngine", "Selection"]

RETRIES = 4
"""Times a pass is sent again because its prompt had left the cache, before the answer is decoded serially."""


@dataclass(frozen=True)
class PassRecord:
    """One extend: answer tokens evaluated in it, rows read, tokens found in the cache, and its time."""

    positions: int
    rows: int
    cached_tokens: int
    ms: float


@dataclass
class Selection:
    """An answer under way, and at the end the answer."""

    compiled: CompiledGrammar
    plan: Plan
    prompt: list[int]
    state: State
    tokens: list[int] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    passes: list[PassRecord] = field(default_factory=list)
    considered: tuple[Candidate, ...] = ()
    expected_cached: int = 0
    ranking: SlotRanking | None = None
    stage: int = 0
    decoded_tokens: int = 0
    complete: bool = False
    seen: list[tuple[tuple[int, ...], TreeLayout, list[Row]]] = field(default_factory=list)


class SelectEngine:
    """Answers ``select_k`` requests on a running SGLang server.

    Parameters
    ----------
    manager : sglang.srt.managers.tokenizer_manager.TokenizerManager
    limits : mapping
        SGLang's ``scheduler_info``: ``max_total_num_tokens``, the server's KV slots, and ``max_req_input_len``, the
        length from which it refuses an input.
    """

    def __init__(self, manager: Any, limits: Mapping[str, Any]) -> None:
        self.manager = manager
        self.capacity = int(limits["max_total_num_tokens"])
        # Two pages stay free for what the scheduler keeps back while it admits.
        pages = 2 * int(manager.server_args.page_size)
        self.room = min(int(limits["max_req_input_len"]) - 1, self.capacity - pages)
        self.cost = OnlineCost(load_cost(setting(manager.server_args)) or _default_cost(manager))
        self.prefixes = PrefixMemory(self.capacity)
        self.ranks = RankMemory()
        self.epsilon = load_epsilon(setting(manager.server_args))
        self.active = 0
        self._compiler: GrammarCompiler | None = None
        self._compiler_lock = asyncio.Lock()

    async def compiler(self) -> GrammarCompiler:
        """Return the compiler for the served tokenizer, built on first use."""
        async with self._compiler_lock:
            if self._compiler is None:
                self._compiler = await asyncio.to_thread(self._build_compiler)
        return self._compiler

    def _build_compiler(self) -> GrammarCompiler:
        config = self.manager.model_config
        info = TokenizerInfo.from_tokenizer(
            self.manager.tokenizer, vocab_size=config.vocab_size, stop_ids=config.hf_eos_token_id or ()
        )
        return GrammarCompiler(info)

    async def select(
        self,
        compiled: CompiledGrammar,
        prompt: Sequence[int],
        plan: str,
        http: Any = None,
        *,
        keep_rows: bool = False,
    ) -> Selection:
        """Resolve one answer.

        Parameters
        ----------
        compiled : CompiledGrammar
        prompt : sequence of int
            Prompt token ids.
        plan : str
            ``"auto"`` or a plan's name.
        http : starlette Request, optional
            Aborts the passes when its client is gone.
        keep_rows : bool
            Keep what every pass evaluated in ``Selection.seen``.

        Raises
        ------
        RequestError
            Prompt empty or too long, or an unknown plan.
        NumericalError
            The model returned NaN.
        """
        self.check_prompt(compiled, prompt)
        self.active += 1
        try:
            selection = await self._begin(compiled, prompt, plan)
            await self._resolve(selection, http, keep_rows)
        finally:
            self.active -= 1
        return selection

    async def _begin(self, compiled: CompiledGrammar, prompt: Sequence[int], plan: str) -> Selection:
        """Plan a selection; nothing is sent yet."""
        cached = self.prefixes.cached(prompt)
        # A grammar's first plan unfolds many trees, and others wait for the loop's thread.
        chosen, considered = await asyncio.to_thread(
            plan_for,
            compiled,
            plan,
            self.cost.model,
            cached=cached,
            fresh=len(prompt) - cached,
            positions=self.positions(len(prompt)),
            load=self.active,
            ranks=self.ranks,
        )
        self.prefixes.add(prompt)
        tokens, state = forced(compiled.automaton, compiled.automaton.start)
        selection = Selection(
            compiled, chosen, list(prompt), state, list(tokens), considered=considered, expected_cached=cached
        )
        if isinstance(compiled.automaton, SlotAutomaton):
            selection.ranking = SlotRanking(compiled.automaton.place, chosen.width)
        return selection

    async def _resolve(self, selection: Selection, http: Any, keep_rows: bool) -> None:
        """Send passes until the answer is complete."""
        compiled = selection.compiled
        if selection.plan.name == "serial":
            await self.serial(selection, http)
            return
        while not selection.complete:
            layout = await asyncio.to_thread(self._layout, selection)
            if not layout.rows:
                tail, selection.state = forced(compiled.automaton, selection.state)
                selection.tokens += tail
                selection.complete = True
                return
            rows = await self.evaluate(selection, layout, http)
            if rows is None:
                await self.serial(selection, http)
                return
            if keep_rows:
                selection.seen.append((tuple(selection.tokens), layout, rows))
            if selection.ranking is not None:
                for row, spec in zip(rows, layout.rows, strict=True):
                    selection.ranking.add(spec.state, spec.legal, row.logits)
            step = walk(
                compiled.automaton,
                selection.state,
                layout,
                rows,
                compiled.stop_ids,
                position=len(selection.tokens),
            )
            compiled.learn(selection.state, step.tokens)
            selection.tokens += step.tokens
            selection.decisions += step.decisions
            selection.state, selection.complete = step.state, step.complete
            selection.stage += 1
            if selection.ranking is not None:
                for decision in step.decisions:
                    rank = selection.ranking.rank(decision.state, decision.token, decision.legal)
                    if rank is not None:
                        self.ranks.observe(rank)

    def check_prompt(self, compiled: CompiledGrammar, prompt: Sequence[int]) -> None:
        """Refuse a prompt that is empty, not of this vocabulary, or too long to hold beside an answer."""
        if not prompt:
            raise RequestError("the prompt has no tokens; the first decision needs at least one (a BOS token will do)")
        vocab = self.manager.model_config.vocab_size
        bad = next((token for token in prompt if not 0 <= token < vocab), None)
        if bad is not None:
            raise RequestError(f"prompt token id {bad} is outside the vocabulary of {vocab} ids")
        longest = compiled.max_tokens
        if len(prompt) + longest >= self.room:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens and the answer up to {longest}, but the server holds "
                f"{self.room}; shorten the prompt or raise --context-length / --max-total-tokens"
            )

    def positions(self, prompt_tokens: int) -> int:
        """Tree tokens that fit beside the prompt and, with the last prompt token, into one prefill chunk."""
        args = self.manager.server_args
        room = self.room - prompt_tokens
        chunk = args.chunked_prefill_size
        if chunk and chunk > 0:
            room = min(room, chunk - args.page_size - 1)
        if args.device != "cpu":
            room = min(room, mask_positions(prompt_tokens, args.page_size))
        return max(0, min(DEFAULT_LIMITS.max_tree_positions, room))

    def _layout(self, selection: Selection) -> TreeLayout:
        automaton = selection.compiled.automaton
        room = self.positions(len(selection.prompt) + len(selection.tokens))
        if selection.plan.name != "chunked":
            try:
                horizon = actions_ahead(automaton, selection.state, selection.plan.actions(selection.stage))
                if selection.plan.width is not None and selection.ranking is not None:
                    return unfold(
                        automaton,
                        selection.state,
                        horizon,
                        stop_ids=selection.compiled.stop_ids,
                        max_positions=room,
                        keep=selection.ranking.keep,
                    )
                return selection.compiled.unfold(selection.state, horizon, room)
            except GrammarTooLargeError:
                # A wider tree than the planner's typical one: this pass takes one decision instead.
                pass
        return selection.compiled.unfold(selection.state, decisions_ahead(1), room)

    async def evaluate(self, selection: Selection, layout: TreeLayout, http: Any) -> list[Row] | None:
        """Evaluate ``layout`` behind the tokens taken so far; ``None`` if its prompt cannot be kept in the cache."""
        base = [*selection.prompt, *selection.tokens]
        for _ in range(RETRIES):
            start = time.perf_counter()
            out = await self.generate(
                {"custom_params": encode(layout, len(base)), "max_new_tokens": 1, "temperature": 0.0},
                [*base, *layout.tokens],
                http,
            )
            ms = 1e3 * (time.perf_counter() - start)
            meta = out["meta_info"]
            if not meta.get(KEY):
                raise ServerError("the scheduler did not evaluate the probe; is the plugin on in every process?")
            n_rows, numbers = meta[KEY][0]
            evaluated = len(layout) if n_rows == len(layout.rows) else 0
            cached = int(meta.get("cached_tokens") or 0)
            if not selection.passes and cached < selection.expected_cached // 2:
                # Flushed or evicted since: what else is remembered is no better.
                self.prefixes.clear()
                self.prefixes.add(selection.prompt)
            self.cost.observe(Sample(len(base) + evaluated - cached, cached, n_rows, ms))
            selection.passes.append(PassRecord(len(selection.tokens) + evaluated, n_rows, cached, ms))
            if n_rows == len(layout.rows):
                return _rows(layout, numbers)
            # The tree was dropped to compute its prompt; that is cached now, so the tree can follow.
            assert n_rows <= 1
        return None

    async def serial(self, selection: Selection, http: Any) -> None:
        """Decode the whole answer token by token under the same token automaton."""
        compiled = selection.compiled
        start = time.perf_counter()
        out = await self.generate(
            {
                "regex": reference_key(compiled.grammar, compiled.spelling),
                "max_new_tokens": compiled.max_tokens + 1,
                "temperature": 0.0,
            },
            selection.prompt,
            http,
        )
        ms = 1e3 * (time.perf_counter() - start)
        state = compiled.automaton.start
        tokens: list[int] = []
        for token in out["output_ids"]:
            following = compiled.automaton.step(state)
            if token not in following:
                break
            state = following[token]
            tokens.append(token)
        tail, state = forced(compiled.automaton, state)
        if not compiled.automaton.accepts(state):
            raise ServerError(f"serial decoding ended inside an answer: {out['meta_info'].get('finish_reason')}")
        cached = int(out["meta_info"].get("cached_tokens") or 0)
        selection.passes.append(PassRecord(len(tokens), 0, cached, ms))
        selection.tokens, selection.state, selection.complete = [*tokens, *tail], state, True
        selection.decisions.clear()
        selection.decoded_tokens = len(out["output_ids"])

    async def calibrate(self) -> tuple[CostModel, list[Sample]]:
        """Measure the cost of passes, use it from now on, and keep it for the next start of this server."""
        vocab = self.manager.model_config.vocab_size
        start = int(time.time() * 1e3) % vocab

        async def send(positions: int, rows: int, prefix: int) -> Sample:
            # A prompt of its own for each length, so that nothing else has put it into the cache.
            prompt = [(start + prefix + i * 7) % vocab for i in range(prefix)]
            custom = encode_star(prefix, positions, rows)
            sampling = {"custom_params": custom, "max_new_tokens": 1, "temperature": 0.0}
            begun = time.perf_counter()
            out = await self.generate(sampling, [*prompt, *([start] * positions)], None)
            cached = int(out["meta_info"].get("cached_tokens") or 0)
            return Sample(prefix + positions - cached, cached, rows, 1e3 * (time.perf_counter() - begun))

        room = self.room // 2
        model, samples = await measure_cost(send, longest_prefix=room, widest=self.positions(room))
        self.cost = OnlineCost(model)
        save_cost(setting(self.manager.server_args), model)
        return model, samples

    async def generate(
        self, sampling_params: dict[str, Any], input_ids: list[int], http: Any, **fields: Any
    ) -> dict[str, Any]:
        """Send one request to the scheduler; ``fields`` are further ones of SGLang's ``GenerateReqInput``."""
        from sglang.srt.managers.io_struct import GenerateReqInput

        request = GenerateReqInput(input_ids=input_ids, sampling_params=sampling_params, **fields)
        stream = self.manager.generate_request(request, http)
        try:
            out: dict[str, Any] = await stream.__anext__()
        finally:
            await stream.aclose()
        reason = out["meta_info"].get("finish_reason") or {}
        if reason.get("type") == "abort":
            raise ServerError(f"the request was aborted: {reason.get('message', 'no reason given')}")
        return out


def _rows(layout: TreeLayout, numbers: Any) -> list[Row]:
    values = np.asarray(numbers, dtype=np.float64)
    out, at = [], len(layout.rows)
    for lse, row in zip(values[: len(layout.rows)], layout.rows, strict=True):
        out.append(Row(values[at : at + len(row.legal)], float(lse)))
        at += len(row.legal)
    assert at == len(values)
    return out


def _default_cost(manager: Any) -> CostModel:
    """Cost model before anything was measured: order of magnitude by device."""
    if str(manager.server_args.device) == "cpu":
        return CostModel(a_ms=60.0, b_ms=4.0, c_ms=2e-4, d_ms=1.0)
    return CostModel(a_ms=2.0, b_ms=0.02, floor_ms=3.5)
