"""Tool routing: two tools out of 10, 47 or 199 (MetaTool), or one function out of a few (BFCL).

python programs/route_tools.py                                # starts a server with the embedded 135M model
python programs/route_tools.py --tools 199                    # the large catalogue
python programs/route_tools.py --url http://127.0.0.1:30000   # uses yours

Output with the embedded model, which chooses about as well as chance, for ``--tools 10 --requests 2``::

    I want to know the latest news about Tesla and how it has impacted the stock market.
      ["FinanceTool", "NewsTool"]
      1 forward passes instead of 10; smallest margin 0.05
    What are the current interest rates for mortgages, and can you provide me with a comprehensive guide on how to
    analyze a company's financial statements?
      ["chatspot", "ChartTool"]
      1 forward passes instead of 10; smallest margin 0.37
    2 of 2 the same as serial decoding; the right tools: 1
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import sglang as sgl
import typer
from bfcl import load_bfcl
from menus import Menu, write_prompt
from metatool import CATALOGUES, load_catalogue, load_listed
from serving import console, serving

from sgl_compiled import Client, select_k

ASK = "The tools to call, best first, as a JSON list:"


class Tools(str, Enum):
    """What there is to choose from."""

    TEN = "10"
    FORTY_SEVEN = "47"
    ALL = "199"
    BFCL = "bfcl"


def load(tools: Tools) -> list[Menu]:
    """Return the requests of a setting."""
    if tools is Tools.BFCL:
        return load_bfcl()
    # Every tenth query, the ones that the sample with ten listed tools holds: queries of one pair stand together.
    return load_listed() if tools is Tools.TEN else load_catalogue(CATALOGUES[int(tools.value)])[:250:10]


def prompt_of(menu: Menu) -> str:
    """Return the prompt: the tools with a few words each (fewer where there are many), and the request."""
    return write_prompt(menu, "Tools", ASK, words=6 if len(menu.options) > 50 else 12)


@sgl.function  # type: ignore[untyped-decorator]
def route(s: Any, prompt: str, tools: list[str], k: int) -> None:
    """Choose ``k`` tools."""
    s += prompt
    s += select_k("picked", tools, k)


def main(
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder; the embedded 135M model by default.")] = None,
    url: Annotated[str | None, typer.Option(help="A running server with the plugin, instead of starting one.")] = None,
    tools: Annotated[Tools, typer.Option(help="Tools to choose from; bfcl: a few functions, one of them right.")] = (
        Tools.FORTY_SEVEN
    ),
    requests: Annotated[int, typer.Option(help="How many requests.")] = 4,
) -> None:
    """Route requests, and compare with token-by-token decoding of the same choice."""
    menus = load(tools)[:requests]
    k = 1 if tools is Tools.BFCL else 2
    same = right = 0
    with serving(model, url) as address, Client(address) as client:
        backend = sgl.RuntimeEndpoint(address)
        for menu in menus:
            state = route.run(prompt=prompt_of(menu), tools=menu.names, k=k, backend=backend)
            meta = state.get_meta_info("picked")
            serial = client.select_k(prompt_of(menu), menu.names, k, plan="serial")
            same += serial.labels == state["picked"]
            right += menu.gold == set(state["picked"])
            console.print(menu.question, style="bold", markup=False, highlight=False)
            console.print(f"  {meta['text']}", markup=False, highlight=False)
            console.print(
                f"  {meta['plan']['forwards']} forward passes instead of {serial.plan.forwards}; "
                f"smallest margin {meta['min_margin']:.2f}",
                style="dim",
            )
    console.print(f"{same} of {len(menus)} the same as serial decoding; the right tools: {right}")
    if same != len(menus):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
