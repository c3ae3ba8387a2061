"""`outlast show`: the story of a run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from outlast.app.details import RunDetails, run_details
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import json_option, run_argument, workspace_option
from outlast.cli.shared.terminal import dim, find_workspace
from outlast.cli.shared.timeline import legend, sums, timeline
from outlast.formatting.event_text import event_text, indented
from outlast.formatting.run_row import status_text
from outlast.formatting.utilisation import advice, sample_cells, usage_text
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.app.types import Point

_METRICS_MAX = 8


@command(section="runs", interrupt=READ_ONLY, json="RunShown")
@run_argument
@click.option("--all", "-a", "everything", is_flag=True, help="List every checkpoint.")
@json_option
@workspace_option
def show(run_name: str, everything: bool, as_json: bool, workspace_url: str) -> int:
    """Show the story of a run, with a timeline."""
    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    details = run_details(workspace, run)
    state = details.state
    if as_json:
        click.echo(_as_json(details))
        return 0
    click.echo(_head(details))
    if details.metrics:
        click.echo(dim("metrics  " + _values(details.metrics)))
    click.echo()
    for since_s, text in event_text(details.events, everything=everything):
        click.echo(_line(since_s, text))
    now = time.time()
    picture = timeline(state, now)
    if picture:
        click.echo("\n" + picture)
        click.echo(legend(state) + "\n")
        click.echo(sums(state, now))
        usd, origin = details.traffic
        if origin:
            place = details.request.spec.machine.near or workspace.url
            click.echo(f"data transfer   ${usd:.6f} from and to {place} ({origin})")
    return 0


def _head(details: RunDetails) -> str:
    request, state = details.request, details.state
    command = request.spec.command if isinstance(request.spec.command, str) else " ".join(request.spec.command)
    lines = [
        f"{click.style(request.run, bold=True)}  {status_text(state)}" + (f": {state.why}" if state.why else ""),
        dim(f"command  {command}"),
    ]
    if state.waiting:
        lines.append(f"waiting  {state.waiting}")
    if details.unsaved:
        lines.append(f"unsaved  no checkpoint was committed for minutes: {details.unsaved}")
    if state.hint:
        lines.append(f"hint     {state.hint}")
    if details.note.tags:
        lines.append(f"tags     {' '.join(details.note.tags)}")
    if details.note.text:
        lines.append(f"note     {details.note.text}")
    lines += [f"{title:<8} {text}" for title, text in _utilisation(details)]
    if request.spec.params:
        lines.append(dim("params   " + " ".join(f"{k}={v}" for k, v in request.spec.params.items())))
    if request.code.commit:
        dirty = " with uncommitted changes" if request.code.dirty else ""
        lines.append(dim(f"code     {request.code.url or 'git'} {request.code.commit[:12]}{dirty}"))
    return "\n".join(indented(line, 9) for line in lines)


def _utilisation(details: RunDetails) -> list[tuple[str, str]]:
    """Return what the live attempt uses now, or what the last one used, and the advice after the end."""
    state, now = details.state, details.usage
    if now is not None:
        cpu, memory, gpu = sample_cells(now)
        return [("uses", f"CPU {cpu}, memory {memory}" + (f", GPU {gpu}" if gpu else ""))]
    used = [a.usage for a in state.attempts if a.usage is not None]
    lines = [("used", usage_text(used[-1]))] if used else []
    return lines + [("advice", text) for text in advice(state)] if state.ending else lines


def _values(newest: dict[str, Point]) -> str:
    """Return the last value of each metric; a step is repeated only where it differs."""
    last = max(point.step for point in newest.values())
    parts = [
        f"{name} {point.value:.4g}" + ("" if point.step == last else f" (step {point.step})")
        for name, point in newest.items()
    ]
    more = ", …" if len(parts) > _METRICS_MAX else ""
    return f"step {last}: " + ", ".join(parts[:_METRICS_MAX]) + more


def _line(since_s: float, text: str) -> str:
    return f"{describe_s(max(0.0, since_s)):>8}  {text}"


def _as_json(details: RunDetails) -> str:
    import json

    import msgspec

    return json.dumps(
        {
            "run": details.request.run,
            "request": msgspec.to_builtins(details.request),
            "state": msgspec.to_builtins(details.state),
            "metrics": {name: msgspec.to_builtins(point) for name, point in details.metrics.items()},
            "events": [msgspec.to_builtins(event) for event in details.events],
            "unsaved": details.unsaved,
            "note": {"tags": list(details.note.tags), "text": details.note.text},
            "usage": msgspec.to_builtins(details.usage),
        },
        indent=2,
    )
