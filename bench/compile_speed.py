"""How long a grammar takes from its text to the first mask, ours against the engines behind SGLang.

    python -m bench.compile_speed            # about thirteen minutes on two cores

Every measurement runs in a process of its own, forked when the tokenizer and the engine's vocabulary are ready, so no
cache knows the grammar; it first takes as many labels of other words (before a schema, two words) to their mask, so
that the vocabulary is warm, as a server's has long been (a forked process copies the pages it touches). ``outlines``,
``llguidance`` and ``xgrammar`` are driven through SGLang's own backend objects. A list of distinct labels is no regular
expression of reasonable size; they get the list with repeats, ours says "distinct". A time counts from the grammar to
the first legal set (engines) or first tree (ours).
"""

from __future__ import annotations

import enum
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from pydantic import BaseModel, Field
from rich.console import Console
from rich.table import Table

from bench.common import RESULTS, Environment, append, environment
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import Spelling, compile_grammar
from sgl_compiled.grammar.layout import decisions_ahead
from sgl_compiled.grammar.tokenizer import TokenizerInfo
from sgl_compiled.model import embedded_model

console = Console(width=120)
WARM_TOPICS = ["river", "stone", "garden", "window", "copper", "forest", "island", "letter", "engine", "harbour"]
TOPICS = ["data", "model", "loss", "result", "method", "baseline", "error", "corpus", "metric", "training"]
NAMES = ("canonical", "any", "outlines", "llguidance", "xgrammar")


class Size(enum.Enum):
    """A field with few values."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


class Order(BaseModel):
    """Scalars."""

    size: Size
    urgent: bool
    count: int = Field(ge=1, le=20)
    kind: Literal["gift", "sample", "return"]


class Basket(BaseModel):
    """A nested model and a list."""

    order: Order
    toppings: list[Literal["cheese", "onion", "olive", "pepper"]] = Field(min_length=1, max_length=3)


class Record(BaseModel):
    """One grammar in one engine: times in milliseconds, or why there are none."""

    bench: str = "compile_speed"
    grammar: str
    engine: str
    median_ms: float | None = None
    times_ms: list[float] = []
    refused: str | None = None
    first_legal: int | None = None
    environment: Environment


class Subject(BaseModel):
    """A grammar as we write it, and as the engines do."""

    name: str
    labels: list[str] = []
    k: int = 1
    json_schema: str | None = None

    def ours(self) -> ActionGrammar:
        if self.json_schema is not None:
            return ActionGrammar.from_json_schema(json.loads(self.json_schema))
        return ActionGrammar.from_labels(self.labels, self.k)

    def regex(self) -> str:
        # The labels hold letters, digits and spaces only.
        one = "(" + "|".join(self.labels) + ")"
        return r'\["' + '", "'.join([one] * self.k) + r'"\]'

    def twin(self) -> Subject:
        """Return what warms the vocabulary: as many labels of other words, or two words beside a schema."""
        if self.json_schema is not None:
            return Subject(name="two words", labels=["yes", "no"])
        return Subject(name="warm", labels=_labels(len(self.labels), WARM_TOPICS), k=self.k)


def _labels(count: int, topics: list[str]) -> list[str]:
    return [f"{topics[i % 10]} {topics[i // 10 % 10]} {i}" for i in range(count)]


def subjects() -> list[Subject]:
    found = []
    for count in (20, 100, 1_000):
        labels = _labels(count, TOPICS)
        found += [Subject(name=f"{count} labels, k={k}", labels=labels, k=k) for k in (1, 2, 3, 4)]
    for model in (Order, Basket):
        found.append(Subject(name=model.__name__, json_schema=json.dumps(model.model_json_schema())))
    return found


def engines(model: Path) -> dict[str, Callable[[Subject], int]]:
    """Return for each engine what takes a subject to its first legal set, and counts that set's ids."""
    from sglang.srt.constrained.llguidance_backend import GuidanceBackend
    from sglang.srt.constrained.outlines_backend import OutlinesGrammarBackend
    from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    width = len(tokenizer)
    info = TokenizerInfo.from_tokenizer(tokenizer, vocab_size=width, stop_ids=[tokenizer.eos_token_id])
    warm = ActionGrammar.from_labels(["yes", "no"], 1)
    compile_grammar(warm, info)
    compile_grammar(warm, info, "any")

    def ours(spelling: Spelling) -> Callable[[Subject], int]:
        def run(subject: Subject) -> int:
            compiled = compile_grammar(subject.ours(), info, spelling)
            layout = compiled.unfold(compiled.automaton.start, decisions_ahead(1), 4_096)
            return len(layout.rows[0].legal)

        return run

    def theirs(backend: Any) -> Callable[[Subject], int]:
        def run(subject: Subject) -> int:
            if subject.json_schema is not None:
                made = backend.dispatch_json(subject.json_schema)
            else:
                made = backend.dispatch_regex(subject.regex())
            if not hasattr(made, "fill_vocab_mask"):
                raise ValueError(f"{type(made).__name__} instead of a grammar")
            mask = made.allocate_vocab_mask(width, 1, "cpu")
            made.fill_vocab_mask(mask, 0)
            # outlines marks what is illegal, in bytes; the others set a bit for what is legal.
            if mask.dtype == torch.bool:
                return int((~mask[0, :width]).sum())
            return sum(int(word).bit_count() for word in (mask[0].to(torch.int64) & 0xFFFFFFFF).tolist())

        return run

    return {
        "canonical": ours("canonical"),
        "any": ours("any"),
        "outlines": theirs(OutlinesGrammarBackend(tokenizer, whitespace_pattern=None)),
        "llguidance": theirs(GuidanceBackend(tokenizer)),
        "xgrammar": theirs(XGrammarGrammarBackend(tokenizer, width, model_eos_token_ids=[tokenizer.eos_token_id])),
    }


def measure(run: Callable[[Subject], int], subject: Subject, limit_s: float) -> tuple[float, int]:
    """Return milliseconds and first legal ids, from a process of its own.

    Raises
    ------
    TimeoutError
        It took longer than ``limit_s``.
    ValueError
        The engine refused the grammar.
    """

    def child(pipe: Connection) -> None:
        try:
            run(subject.twin())
            pipe.send("warm")
            start = time.perf_counter()
            legal = run(subject)
        except Exception as error:
            # Whatever an engine raises is its answer to this grammar.
            pipe.send(f"{type(error).__name__}: {error}"[:200])
        else:
            pipe.send((1e3 * (time.perf_counter() - start), legal))

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(theirs,))
    process.start()
    theirs.close()
    try:
        answer: tuple[float, int] | str = "warm"
        for _ in ("warming", "measuring"):
            if not ours.poll(limit_s):
                raise TimeoutError(f"more than {limit_s:.0f} s")
            answer = ours.recv()
            if answer != "warm":
                break
    except EOFError:
        raise ValueError("the process died") from None
    finally:
        process.kill()
        process.join()
    if isinstance(answer, str):
        raise ValueError(answer)
    return answer


def main(
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder; the embedded model by default.")] = None,
    repeats: Annotated[int, typer.Option(help="Processes a measurement.")] = 3,
    limit_s: Annotated[float, typer.Option(help="Longest compilation that is waited for.")] = 30.0,
    out: Annotated[Path, typer.Option(help="JSONL file, appended to.")] = RESULTS / "compile_speed.jsonl",
) -> None:
    """Measure every grammar in every engine."""
    torch.set_num_threads(1)
    path = model or embedded_model()
    runs, where = engines(path), environment(path.name)
    table = Table("grammar", *NAMES, title="milliseconds to the first mask")
    for subject in subjects():
        cells = []
        for name in NAMES:
            record = Record(grammar=subject.name, engine=name, environment=where)
            try:
                found = [measure(runs[name], subject, limit_s) for _ in range(repeats)]
                record.times_ms = [round(ms, 3) for ms, _ in found]
                record.median_ms, record.first_legal = statistics.median(record.times_ms), found[0][1]
            except (TimeoutError, ValueError) as error:
                record.refused = str(error)
            append(out, record)
            cells.append(f"{record.median_ms:,.1f}" if record.median_ms is not None else str(record.refused)[:24])
        table.add_row(subject.name, *cells)
        console.print(subject.name, *cells)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
