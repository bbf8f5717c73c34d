"""Every row of a tree against a separate forward of its path, with a control that must fail."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.gpu.client import BenchClient, random_prompt
from bench.gpu.records import Record
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import compile_grammar
from sgl_compiled.grammar.layout import DecisionRow, TreeLayout, actions_ahead, unfold
from sgl_compiled.grammar.tokenizer import TokenizerInfo

FLOOR = 1e-3
"""Tolerance in log-probability where two plain forwards agree to the last bit."""


@dataclass(frozen=True)
class Tree:
    """A prompt and the tree behind it."""

    prompt: list[int]
    layout: TreeLayout

    def path(self, node: int) -> list[int]:
        out: list[int] = []
        while node >= 0:
            out.append(self.layout.tokens[node])
            node = self.layout.parents[node]
        return out[::-1]


def make_tree(tokenizer: Any, labels: list[str], k: int, actions: int, prompt: list[int]) -> Tree:
    """Unfold the first ``actions`` actions of a choice of ``k`` labels."""
    info = TokenizerInfo.from_tokenizer(tokenizer, vocab_size=len(tokenizer), stop_ids=[tokenizer.eos_token_id])
    compiled = compile_grammar(ActionGrammar.from_labels(labels, k), info)
    start = compiled.automaton.start
    ahead = actions_ahead(compiled.automaton, start, actions)
    return Tree(prompt, unfold(compiled.automaton, start, ahead, stop_ids=compiled.stop_ids, max_positions=4096))


def random_layout(vocabulary: int, positions: int, *, legal: int = 8, seed: int = 0) -> TreeLayout:
    """Return a tree of random tokens, up to twenty children a node, in which every position is read."""
    rng = random.Random(seed)
    parents = [(index - 20) // 20 if index >= 20 else -1 for index in range(positions)]
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    rows = [DecisionRow(node, (), tuple(sorted(rng.sample(range(vocabulary), legal)))) for node in range(-1, positions)]
    tokens = [rng.randrange(300, vocabulary) for _ in range(positions)]
    return TreeLayout(tuple(tokens), tuple(parents), tuple(depths), tuple(rows), {}, {})


def trees_for(tokenizer: Any, prompt_tokens: tuple[int, ...], labels: int) -> list[Tree]:
    """Trees of several shapes behind prompts of several lengths."""
    numbers = [str(value) for value in range(1, labels + 1)]
    names = ["Results", "Results and Discussion", "Method", "Method ::: Training", "Data"]
    shapes = [(numbers, 3, 2), (names, 2, 2), (["A", "B", "C", "D"], 3, 3)]
    out = []
    for length in prompt_tokens:
        prompt = random_prompt(len(tokenizer), length, seed=length)
        out += [make_tree(tokenizer, *shape, prompt) for shape in shapes]
        # More than one tile of queries and of keys, in an order that no grammar gives.
        out.append(Tree(prompt, random_layout(len(tokenizer), 12 * labels, seed=length)))
    return out


async def reference(client: BenchClient, tree: Tree) -> list[np.ndarray]:
    """Log-probabilities of each row's legal ids, each row from a forward of its own."""
    rows = tree.layout.rows
    return [np.array(await client.logprobs([*tree.prompt, *tree.path(row.node)], row.legal)) for row in rows]


def rows_of(tree: Tree, numbers: list[float]) -> list[np.ndarray]:
    """Split a probe's numbers into log-probabilities a row."""
    rows = tree.layout.rows
    values = np.array(numbers)
    at, out = len(rows), []
    for lse, row in zip(values[: len(rows)], rows, strict=True):
        out.append(values[at : at + len(row.legal)] - lse)
        at += len(row.legal)
    return out


def deviation(one: list[np.ndarray], other: list[np.ndarray]) -> list[float]:
    """Largest difference of each row."""
    return [float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True)]


async def noise(client: BenchClient, tree: Tree, most: int = 24) -> list[float]:
    """How far two plain forwards of one text are apart: prompt cached against nothing cached."""
    out = []
    for row in tree.layout.rows[:most]:
        text = [*tree.prompt, *tree.path(row.node)]
        cached = await client.logprobs(text, row.legal)
        await client.flush()
        fresh = await client.logprobs(text, row.legal)
        out.append(float(np.abs(np.array(cached) - np.array(fresh)).max()))
    return out


async def exactness(client: BenchClient, tokenizer: Any, prompt_tokens: tuple[int, ...], labels: int) -> list[Record]:
    """Compare trees alone, uncached, and in batches mixed with plain requests."""
    trees = trees_for(tokenizer, prompt_tokens, labels)
    apart = await noise(client, trees[0])
    tolerance = max(FLOOR, 3 * max(apart))
    references = []
    for tree in trees:
        await client.prefill(tree.prompt)
        references.append(await reference(client, tree))
    alone, fresh, control = [], [], []
    for tree, expected in zip(trees, references, strict=True):
        await client.prefill(tree.prompt)
        alone += deviation(rows_of(tree, (await client.probe(tree.prompt, tree.layout))[0]), expected)
        control += deviation(rows_of(tree, (await client.probe(tree.prompt, tree.layout, unmasked=True))[0]), expected)
    for tree, expected in zip(trees, references, strict=True):
        await client.flush()
        fresh += deviation(rows_of(tree, (await client.probe(tree.prompt, tree.layout))[0]), expected)
    mixed = await _mixed(client, tokenizer, trees, references)
    # A row directly behind the prompt sees no other branch, so not every row of the control can fail.
    control_median = float(np.median(control))
    out = []
    for arm, values in (("alone", alone), ("prompt not cached", fresh), ("mixed batches", mixed)):
        passed = max(values) <= tolerance and control_median > 5 * tolerance
        out.append(
            Record(
                stage="exactness",
                arm=arm,
                status="passed" if passed else "wrong",
                workload={"trees": len(trees), "positions": [len(tree.layout) for tree in trees]},
                correctness={
                    "rows": len(values),
                    "max_deviation": max(values),
                    "median_deviation": float(np.median(values)),
                    "tolerance": tolerance,
                    "noise_max": max(apart),
                    "unmasked_median_deviation": control_median,
                    "unmasked_max_deviation": max(control),
                },
            )
        )
    return out


async def _mixed(
    client: BenchClient, tokenizer: Any, trees: list[Tree], references: list[list[np.ndarray]]
) -> list[float]:
    """Send probes together with fresh prompts and continuations of cached ones."""
    out: list[float] = []
    await client.flush()
    for tree in trees[::2]:
        await client.prefill(tree.prompt)
    for round_ in range(3):
        plain = [
            client.prefill(random_prompt(len(tokenizer), 40 + 30 * index, seed=1000 * round_ + index))
            for index in range(6)
        ]
        continuations = [
            client.prefill([*tree.prompt, *random_prompt(len(tokenizer), 20, seed=round_ + 77)]) for tree in trees[:4]
        ]
        probes = [client.probe(tree.prompt, tree.layout) for tree in trees]
        results, _ = await asyncio.gather(asyncio.gather(*probes), asyncio.gather(*plain, *continuations))
        for tree, expected, (numbers, _) in zip(trees, references, results, strict=True):
            out += deviation(rows_of(tree, numbers), expected)
    return out
