"""Multi-hop questions: pick k of 20 paragraphs with ``select_k`` (MuSiQue).

python programs/pick_paragraphs.py                                # starts a server with the embedded 135M model
python programs/pick_paragraphs.py --url http://127.0.0.1:30000   # uses yours

Output with the embedded model, which chooses about as well as chance (``*`` marks a supporting paragraph)::

    How many Publix stores are in the state that borders the east of the state where Hello Love's performer lived in
    when he died?
      * Hello Love (song)
      - The Countess of Parma
      - Santa Monica, California
      3 forward passes instead of 22
    ...
    3 of 3 the same as serial decoding; all supporting paragraphs (*) among the picked: 0
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import sglang as sgl
import typer
from menus import Menu, write_prompt
from musique import SAMPLE, load_musique
from serving import console, serving

from sgl_compiled import Client, select_k

ASK = "The paragraphs needed to answer it, most useful first, as a JSON list:"


def prompt_of(menu: Menu) -> str:
    """Return the prompt: twenty titles with the beginning of each paragraph, and the question."""
    return write_prompt(menu, "Paragraphs", ASK, words=20)


@sgl.function  # type: ignore[untyped-decorator]
def pick(s: Any, prompt: str, titles: list[str], k: int) -> None:
    """Pick ``k`` paragraphs by title, then answer."""
    s += prompt
    s += select_k("picked", titles, k)
    s += "\nShort answer:"
    s += sgl.gen("answer", max_tokens=16, temperature=0, stop="\n")


def main(
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder; the embedded 135M model by default.")] = None,
    url: Annotated[str | None, typer.Option(help="A running server with the plugin, instead of starting one.")] = None,
    questions: Annotated[int, typer.Option(help="How many questions.")] = 3,
    k: Annotated[int, typer.Option(help="Paragraphs to pick.")] = 3,
    data: Annotated[Path, typer.Option(help="Questions in MuSiQue's layout.")] = SAMPLE,
) -> None:
    """Pick paragraphs, and compare with token-by-token decoding of the same choice."""
    menus = load_musique(data)[:questions]
    same = found = 0
    with serving(model, url) as address, Client(address) as client:
        backend = sgl.RuntimeEndpoint(address)
        for menu in menus:
            state = pick.run(prompt=prompt_of(menu), titles=menu.names, k=k, backend=backend)
            plan = state.get_meta_info("picked")["plan"]
            serial = client.select_k(prompt_of(menu), menu.names, k, plan="serial")
            same += serial.labels == state["picked"]
            found += menu.gold <= set(state["picked"])
            console.print(menu.question, style="bold", markup=False, highlight=False)
            for title in state["picked"]:
                console.print(f"  {'*' if title in menu.gold else '-'} {title}", markup=False, highlight=False)
            console.print(f"  {plan['forwards']} forward passes instead of {serial.plan.forwards}", style="dim")
    console.print(
        f"{same} of {len(menus)} the same as serial decoding; all supporting paragraphs (*) among the picked: {found}"
    )
    if same != len(menus):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
