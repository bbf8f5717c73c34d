"""Command line: ``sgl-compiled demo``, ``doctor`` and ``calibrate``."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from sgl_compiled import __version__
from sgl_compiled.compat import SGLANG_VERSION, TARGETS, check_targets, sglang_version

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Exact constrained choices for SGLang.")
console = Console()

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def demo(context: typer.Context) -> None:
    """Choose sections of a real paper through compiled control (its options: sgl-compiled demo -- --help)."""
    script = PROGRAMS / "hierarchical_rag.py"
    if not script.exists():
        console.print("The demo program is part of the repository: clone it and run the command there.")
        raise typer.Exit(1)
    raise typer.Exit(subprocess.call([sys.executable, str(script), *context.args]))


@app.command()
def doctor(
    model: Annotated[Path | None, typer.Option(help="A checkpoint folder to judge as well.")] = None,
) -> None:
    """Check the installed SGLang against the table of targets; exit 1 on a mismatch."""
    installed = sglang_version()
    console.print(f"sgl_compiled {__version__}, SGLang {installed or 'not installed'} (written for {SGLANG_VERSION})")
    if installed is None:
        console.print(f"Install it: pip install sglang=={SGLANG_VERSION}")
        raise typer.Exit(1)
    # Importing SGLang on a CPU warns about kernels that it will not use.
    warnings.simplefilter("ignore")
    wrong = {mismatch.target.path: mismatch for mismatch in check_targets(TARGETS)}
    table = Table("feature", "hook", "target", "signature")
    for target in TARGETS:
        mismatch = wrong.get(target.path)
        verdict = f"[red]expected ({', '.join(target.params)}), found {mismatch.found}" if mismatch else "[green]ok"
        table.add_row(target.feature, target.hook, target.path.removeprefix("sglang."), verdict)
    console.print(table)
    reasons = _model_reasons(model) if model is not None else []
    for reason in reasons:
        console.print(f"[red]{reason}")
    if model is not None and not reasons:
        console.print(f"[green]{model} can be served with select_k")
    if wrong or reasons:
        raise typer.Exit(1)
    console.print(f"[green]all {len(TARGETS)} targets match")


@app.command()
def calibrate(
    url: Annotated[str, typer.Option(help="A running server with the plugin.")] = "http://127.0.0.1:30000",
    replays: Annotated[
        int, typer.Option(min=0, max=1000, help="Choices to replay serially too, for flip_risk; the server must idle.")
    ] = 0,
    api_key: Annotated[str | None, typer.Option(help="The server's --api-key.")] = None,
) -> None:
    """Measure what passes cost on a server, so that plan='auto' knows from the first request on."""
    with console.status("Timing passes"):
        query = {"replays": replays}
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            response = httpx.post(
                url + "/v1/select_k/calibrate", params=query, headers=headers, timeout=3600, trust_env=False
            )
        except httpx.TransportError as error:
            console.print(f"[red]no server answers at {url} ({error}); start one, or pass its address with --url")
            raise typer.Exit(1) from None
    if response.status_code != httpx.codes.OK:
        console.print(f"[red]{url} answered {response.status_code}: {response.text[:300]}")
        raise typer.Exit(1)
    found = response.json()
    console.print(
        f"{found['passes']} passes timed (median error of the fit {found['error']:.0%}): "
        f"{found['a_ms']:.1f} ms a pass, {found['wide_ms']:.1f} more if it has several tokens, "
        f"{found['b_ms']:.3f} ms a token, {1e6 * found['c_ms']:.2f} ns a token and token of prefix, "
        f"{found['d_ms']:.3f} ms a decision row"
    )
    if found["parity"] is not None:
        _print_parity(found["parity"])


def _print_parity(found: dict[str, Any]) -> None:
    deviation = found["logits"]
    console.print(
        f"{found['rows']} decisions replayed serially: logits deviate by {deviation['mean']:.2g} in the mean, "
        f"{deviation['p95']:.2g} at p95, {deviation['p99']:.2g} at p99, {deviation['max']:.2g} at most; "
        f"{found['flips']} decided differently. "
        f"Decisions with a margin up to {2 * deviation['max']:.2g} are now marked flip_risk"
    )


def _model_reasons(model: Path) -> list[str]:
    from transformers import AutoConfig

    from sgl_compiled.runtime.refusals import model_reasons

    try:
        config = AutoConfig.from_pretrained(model)
        return list(model_reasons(config, config.get_text_config()))
    except (OSError, ValueError) as error:
        return [f"cannot read {model}: {error}"]


if __name__ == "__main__":
    app()
