"""Form filling: the fields of a pydantic model, chosen as one string of a finite language.

python programs/fill_form.py                                # starts a server with the embedded 135M model
python programs/fill_form.py --url http://127.0.0.1:30000   # uses yours

Cards that the embedded model fills, which chooses about as well as chance (token-by-token decoding of these takes 28
forward passes a card)::

    Minimally Supervised Learning of Affective Events Using Discourse Relations
      Card(kind='survey', has_experiments=True, languages='English', difficulty=1)
    PO-EMO: Conceptualization, Annotation, and Modeling of Aesthetic Emotions in German and English Poetry
      Card(kind='survey', has_experiments=True, languages='English', difficulty=1)
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import sglang as sgl
import typer
from papers import SAMPLE, Paper, load_papers
from pydantic import BaseModel
from serving import console, serving

from sgl_compiled import Client, select_k


class Card(BaseModel):
    """What a reader wants to know first; every field has finitely many values."""

    kind: Literal["new method", "new data", "analysis", "survey"]
    has_experiments: bool
    languages: Literal["English", "several", "none"]
    difficulty: Literal[1, 2, 3]


def prompt_of(paper: Paper) -> str:
    """Return the prompt: the title, the sections, and the beginning of the text."""
    sections = ", ".join(section.name for section in paper.root.children)
    opening = " ".join(paper.root.text().split()[:80])
    return f"Paper: {paper.title}\nSections: {sections}\nText: {opening}\nCard of the paper, as JSON: "


@sgl.function  # type: ignore[untyped-decorator]
def fill(s: Any, prompt: str) -> None:
    """Fill a card."""
    s += prompt
    s += select_k("card", model=Card)


def main(
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder; the embedded 135M model by default.")] = None,
    url: Annotated[str | None, typer.Option(help="A running server with the plugin, instead of starting one.")] = None,
    papers: Annotated[int, typer.Option(help="How many papers.")] = 3,
    data: Annotated[Path, typer.Option(help="Papers in QASPER's layout.")] = SAMPLE,
) -> None:
    """Fill cards, and compare with token-by-token decoding of the same form."""
    chosen = load_papers(data)[:papers]
    same = 0
    with serving(model, url) as address, Client(address) as client:
        backend = sgl.RuntimeEndpoint(address)
        for paper in chosen:
            state = fill.run(prompt=prompt_of(paper), backend=backend)
            meta = state.get_meta_info("card")
            serial = client.select_model(prompt_of(paper), Card, plan="serial")
            same += serial.value == state["card"]
            console.print(paper.title, style="bold", markup=False, highlight=False)
            console.print(f"  {state['card']!r}", markup=False, highlight=False)
            console.print(
                f"  {meta['plan']['forwards']} forward passes instead of {serial.response.plan.forwards}", style="dim"
            )
    console.print(f"{same} of {len(chosen)} the same as serial decoding")
    if same != len(chosen):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
