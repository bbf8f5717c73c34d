"""What spelling costs and changes: misses, passes and tree sizes under each rule; answers, canonical against any.

The model decodes each answer token by token under each spelling, which fixes the walk. Which passes a rule needs
follows from its trees alone: a pass goes as far along the walk as its tree does. The walk itself is held to stock
decoding by ``tests/server/test_any_spelling.py``. Habits are learned from earlier prompts of the same grammar, as a
server does.

    python -m bench.spelling --prompts 14
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from bench.common import RESULTS, Environment, append, environment
from sgl_compiled.errors import GrammarTooLargeError
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import CompiledGrammar, compile_grammar
from sgl_compiled.grammar.layout import ROOT, actions_ahead, legal_ids
from sgl_compiled.grammar.likely import TreeRule
from sgl_compiled.grammar.tokenizer import TokenizerInfo
from sgl_compiled.model import embedded_model

console = Console()

SECTIONS = [
    "Introduction",
    "Related Work",
    "Method ::: Loss Functions",
    "Method ::: Training",
    "Results and Discussion",
    "Conclusion",
]
TOOLS = ["search_web", "search_mail", "calendar", "weather", "calculator", "none"]
NUMBERS = [str(number) for number in range(1, 21)]
RATING = list("12345")
LETTERS = [chr(65 + index) for index in range(20)]

GRAMMARS: dict[str, tuple[str, ActionGrammar]] = {
    "letters k=1": ("Best option:", ActionGrammar.from_labels(LETTERS, 1)),
    "letters k=3": ("Best options:", ActionGrammar.from_labels(LETTERS, 3)),
    "numbers k=2": ("Best option numbers:", ActionGrammar.from_labels(NUMBERS, 2)),
    "sections k=1": ("Section to read:", ActionGrammar.from_labels(SECTIONS, 1)),
    "sections k=2": ("Sections to read:", ActionGrammar.from_labels(SECTIONS, 2)),
    "sections raw": ("Section to read: ", ActionGrammar.from_labels(SECTIONS, 1, template="raw")),
    "tools k=1": ("Tool to call:", ActionGrammar.from_labels(TOOLS, 1)),
    "yes/no/unsure": ("Answer: ", ActionGrammar.from_labels(["yes", "no", "unsure"], 1, template="raw")),
    "rating form": (
        "Rating:",
        ActionGrammar.from_form(
            [
                '{"clarity": ',
                list("12345"),
                ', "novelty": ',
                list("12345"),
                ', "verdict": "',
                ["accept", "reject"],
                '"}',
            ]
        ),
    ),
    "date regex": ("Date: ", ActionGrammar.from_regex(r"20[0-2][0-9]-(0[1-9]|1[0-2])")),
}
RULES = {
    "canonical": TreeRule(habits=False, deviations=0),
    "canonical, 1 deviation": TreeRule(habits=False, deviations=1),
    "canonical, 2 deviations": TreeRule(habits=False, deviations=2),
    "canonical, habits": TreeRule(habits=True, deviations=0),
    "canonical, habits, 1 deviation": TreeRule(habits=True, deviations=1),
}
QUESTIONS = [
    "Which optimizer was used to train the model?",
    "How large is the data set?",
    "What do the authors conclude about long documents?",
    "Which earlier systems are compared?",
    "Will it rain in Paris tomorrow?",
    "What is 17 times 23?",
    "When does my next meeting start?",
    "Who wrote the first report on the accident?",
    "Is the loss convex?",
    "How many people live in Lisbon?",
    "Does the method need labelled data?",
    "Which mail mentions the invoice?",
    "Why do larger batches train faster?",
    "What are the limits of the approach?",
]


class RuleResult(BaseModel):
    """One rule on one grammar."""

    passes_mean: float
    passes_max: int
    miss_share: float
    positions_per_answer: float
    legal_ids_per_answer: float


class SpellingRecord(BaseModel):
    """One grammar."""

    bench: str = "spelling"
    grammar: str
    prompts: int
    serial_tokens_any: float
    serial_tokens_canonical: float
    decisions_any: float
    decisions_canonical: float
    spelled_canonically: float
    same_answer: float
    logprob_any: float
    logprob_canonical: float
    label_mass_any: float
    label_mass_canonical: float
    rules: dict[str, RuleResult]
    environment: Environment


@dataclass
class Walked:
    """One answer, decoded token by token."""

    tokens: list[int]
    states: list[Any]
    text: str
    logprob: float
    mass: float
    decisions: int


class Model:
    """The embedded model in this process."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        path = embedded_model()
        self.torch = torch
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.name = path.name
        stops = self.model.generation_config.eos_token_id or self.model.config.eos_token_id
        self.info = TokenizerInfo.from_tokenizer(
            self.tokenizer,
            vocab_size=self.model.config.vocab_size,
            stop_ids=[stops] if isinstance(stops, int) else stops,
        )

    def decode(self, prompt: str, compiled: CompiledGrammar) -> Walked:
        """Serial greedy decoding under the grammar's token automaton."""
        torch, automaton = self.torch, compiled.automaton
        out = Walked([], [automaton.start], "", 0.0, 0.0, 0)
        with torch.inference_mode():
            pending, cache = self.tokenizer.encode(prompt), None
            while legal := legal_ids(automaton, out.states[-1], compiled.stop_ids):
                token = legal[0]
                if len(legal) > 1:
                    step = self.model(torch.tensor([pending]), past_key_values=cache, use_cache=True)
                    row, cache, pending = step.logits[0, -1].double().numpy(), step.past_key_values, []
                    token = legal[int(np.argmax(row[list(legal)]))]
                    local = _lse(row[list(legal)])
                    out.logprob += float(row[token]) - local
                    out.mass += local - _lse(row)
                    out.decisions += 1
                if token in compiled.stop_ids:
                    break
                pending.append(token)
                out.tokens.append(token)
                out.states.append(automaton.step(out.states[-1])[token])
        out.text = compiled.answer(out.states[-1], out.tokens).text
        return out


def _lse(values: Any) -> float:
    top = float(values.max())
    return top + float(np.log(np.exp(values - top).sum()))


def passes(compiled: CompiledGrammar, walked: Walked, rule: TreeRule) -> Iterator[tuple[int, int]]:
    """Positions and legal ids of each pass that a walk takes under a rule, all slots in one pass."""
    at, end = 0, len(walked.tokens)
    automaton = compiled.automaton
    while True:
        state = walked.states[at]
        try:
            tree = compiled.unfold(state, actions_ahead(automaton, state, compiled.horizon), 4096, rule)
        except GrammarTooLargeError:
            tree = compiled.unfold(state, actions_ahead(automaton, state, 1), 4096, rule)
        if not tree.rows:
            return
        yield len(tree), sum(len(row.legal) for row in tree.rows)
        node: int | None = ROOT
        before = at
        while at < end:
            decides = len(legal_ids(automaton, walked.states[at], compiled.stop_ids)) > 1
            if decides and (node is None or tree.row_at(node) is None):
                break
            node = None if node is None else tree.child(node, walked.tokens[at])
            at += 1
        if at == end and (node is not None or not legal_ids(automaton, walked.states[at], compiled.stop_ids)):
            return
        assert at > before, "a pass resolves at least its first decision"


def measure(model: Model, name: str, prompts: Sequence[str]) -> SpellingRecord:
    """Decode every prompt under both spellings, and count each rule's passes."""
    lead, grammar = GRAMMARS[name]
    canonical = compile_grammar(grammar, model.info)
    anything = compile_grammar(grammar, model.info, "any")
    pairs = []
    for question in prompts:
        prompt = f"Question: {question}\n{lead}"
        pairs.append((model.decode(prompt, anything), model.decode(prompt, canonical)))
    rules = {}
    for label, rule in RULES.items():
        fresh = compile_grammar(grammar, model.info, "any")
        counts: list[list[tuple[int, int]]] = []
        for walked, _ in pairs:
            replayed = _replay(fresh, walked)
            counts.append(list(passes(fresh, replayed, rule)))
            fresh.learn(fresh.automaton.start, replayed.tokens)
        decisions = sum(walked.decisions for walked, _ in pairs)
        rules[label] = RuleResult(
            passes_mean=float(np.mean([len(c) for c in counts])),
            passes_max=max(len(c) for c in counts),
            miss_share=sum(max(len(c) - 1, 0) for c in counts) / max(decisions, 1),
            positions_per_answer=float(np.mean([sum(p for p, _ in c) for c in counts])),
            legal_ids_per_answer=float(np.mean([sum(i for _, i in c) for c in counts])),
        )
    spelled = [w.tokens == model.info.encode_batch([w.text])[0] for w, _ in pairs]
    return SpellingRecord(
        grammar=name,
        prompts=len(pairs),
        serial_tokens_any=_mean(len(w.tokens) for w, _ in pairs),
        serial_tokens_canonical=_mean(len(w.tokens) for _, w in pairs),
        decisions_any=_mean(w.decisions for w, _ in pairs),
        decisions_canonical=_mean(w.decisions for _, w in pairs),
        spelled_canonically=_mean(spelled),
        same_answer=_mean(a.text == c.text for a, c in pairs),
        logprob_any=_mean(w.logprob for w, _ in pairs),
        logprob_canonical=_mean(w.logprob for _, w in pairs),
        label_mass_any=_mean(np.exp(w.mass) for w, _ in pairs),
        label_mass_canonical=_mean(np.exp(w.mass) for _, w in pairs),
        rules=rules,
        environment=environment(model.name),
    )


def _replay(compiled: CompiledGrammar, walked: Walked) -> Walked:
    """Find the states of another compilation of the same grammar along a walk."""
    states = [compiled.automaton.start]
    for token in walked.tokens:
        states.append(compiled.automaton.step(states[-1])[token])
    return Walked(walked.tokens, states, walked.text, walked.logprob, walked.mass, walked.decisions)


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def main(
    prompts: Annotated[int, typer.Option(help="Prompts a grammar.")] = len(QUESTIONS),
    only: Annotated[str, typer.Option(help="One grammar by name.")] = "",
) -> None:
    """Measure every grammar and append one record each."""
    model = Model()
    table = Table("grammar", "canonical spelling", "same answer", *(f"passes: {rule}" for rule in RULES), "tokens")
    for name in [only] if only else GRAMMARS:
        record = measure(model, name, QUESTIONS[:prompts])
        append(RESULTS / "spelling.jsonl", record)
        table.add_row(
            name,
            f"{record.spelled_canonically:.2f}",
            f"{record.same_answer:.2f}",
            *(f"{rule.passes_mean:.2f} ({rule.positions_per_answer:.0f})" for rule in record.rules.values()),
            f"{record.serial_tokens_any:.1f}",
        )
        console.print(name, record.rules["canonical, habits, 1 deviation"])
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
