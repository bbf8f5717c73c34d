"""Fork and join: branches choose what to read with ``select_k``, draft in parallel, and the best drafts are kept.

python programs/draft_sections.py                                # starts a server with the embedded 135M model
python programs/draft_sections.py --url http://127.0.0.1:30000   # uses yours

Output with the embedded model, which neither chooses nor writes well::

    Minimally Supervised Learning of Affective Events Using Discourse Relations
    the method, from 'Acknowledgments': We used the ACP Corpus to extract event pairs.
    the data, from 'Acknowledgments': We used the ACP Corpus to extract event pairs.
    the results, from 'Acknowledgments': We have found that the most important thing is to have a good
    understanding of the topic.
    Kept: Draft 1, Draft 2  (2 forward passes)
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import sglang as sgl
import typer
from papers import SAMPLE, Paper, load_papers
from serving import console, serving

from sgl_compiled import select_k

ASPECTS = ("the method", "the data", "the results")


@sgl.function  # type: ignore[untyped-decorator]
def review(s: Any, paper: Paper, aspects: tuple[str, ...], words: int, keep: int) -> None:
    """Draft a sentence on each aspect, each in a branch of its own, and order the best ``keep`` of them."""
    sections = {section.name: section.text() for section in paper.root.children}
    s += f"Paper: {paper.title}\nSections: " + "; ".join(sections) + "\n"
    branches = s.fork(len(aspects))
    for branch, aspect in zip(branches, aspects, strict=True):
        branch += f"The section to read about {aspect}, as a JSON list: "
        branch += select_k("section", list(sections))
    # A second loop: reading a variable waits for its branch, and all choices are under way by now.
    for branch, aspect in zip(branches, aspects, strict=True):
        branch += "\n" + " ".join(sections[branch["section"][0]].split()[:words]) + f"\nOne sentence on {aspect}: We"
        branch += sgl.gen("draft", max_tokens=40, temperature=0, stop="\n")
    branches.join()
    # join() has gathered each variable of the branches into a list.
    names = [f"Draft {number}" for number in range(1, len(aspects) + 1)]
    for name, draft in zip(names, s["draft"], strict=True):
        s += f"{name}: We{draft}\n"
    s += "The most informative drafts, best first, as a JSON list: "
    s += select_k("kept", names, keep)


def main(
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder; the embedded 135M model by default.")] = None,
    url: Annotated[str | None, typer.Option(help="A running server with the plugin, instead of starting one.")] = None,
    paper: Annotated[int, typer.Option(help="Which paper of the file.")] = 0,
    words: Annotated[int, typer.Option(help="Words of a section that a branch reads.")] = 120,
    keep: Annotated[int, typer.Option(help="Drafts to keep.")] = 2,
    data: Annotated[Path, typer.Option(help="Papers in QASPER's layout.")] = SAMPLE,
) -> None:
    """Review one paper."""
    chosen = load_papers(data)[paper]
    with serving(model, url) as address:
        state = review.run(paper=chosen, aspects=ASPECTS, words=words, keep=keep, backend=sgl.RuntimeEndpoint(address))
        console.print(chosen.title, style="bold", markup=False)
        for aspect, section, draft in zip(ASPECTS, state["section"], state["draft"], strict=True):
            console.print(f"{aspect}, from '{section[0]}': We{draft}", highlight=False, markup=False)
        plan = state.get_meta_info("kept")["plan"]
        console.print(f"Kept: {', '.join(state['kept'])}  [dim]({plan['forwards']} forward passes)")


if __name__ == "__main__":
    typer.run(main)
