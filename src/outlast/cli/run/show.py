"""`outlast show`: the story of a run."""

from __future__ import annotations

import time

import click

from outlast.billing.egress import DATE, crosses, egress_usd
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import json_option, run_argument, workspace_option
from outlast.cli.shared.terminal import dim, find_workspace
from outlast.cli.shared.timeline import legend, sums, timeline
from outlast.formatting.event_text import event_text, indented
from outlast.formatting.run_row import status_text
from outlast.runs.metrics import Point, stitched
from outlast.runs.story import Story
from outlast.spec.quantity import describe_s
from outlast.workspace import RunRequest

_PIECES = 16
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
    request = workspace.request(run)
    story = workspace.story(run)
    story.refresh()
    # Only the newest pieces: the command is fast however much was logged.
    curves = stitched(workspace.bucket, run, story.state, newest=_PIECES)
    newest = {name: points[-1] for name, points in curves.series.items()}
    heartbeat = workspace.heartbeat(run) if story.state.alive else None
    unsaved = heartbeat.unsaved if heartbeat else ""
    if as_json:
        click.echo(_as_json(request, story, newest, unsaved))
        return 0
    click.echo(_head(request, story, unsaved))
    if newest:
        click.echo(dim("metrics  " + _values(newest)))
    click.echo()
    for since_s, text in event_text(story.events, everything=everything):
        click.echo(_line(since_s, text))
    now = time.time()
    picture = timeline(story.state, now)
    if picture:
        click.echo("\n" + picture)
        click.echo(legend() + "\n")
        click.echo(sums(story.state, now))
        if any(crosses(workspace.url, attempt.cloud) for attempt in story.state.attempts):
            cost = egress_usd(story.state, workspace.url)
            click.echo(f"data transfer   at most ${cost:.6f} between aws and gcp (list prices of {DATE})")
    return 0


def _head(request: RunRequest, story: Story, unsaved: str) -> str:
    command = request.spec.command if isinstance(request.spec.command, str) else " ".join(request.spec.command)
    state = story.state
    lines = [
        f"{click.style(request.run, bold=True)}  {status_text(state)}" + (f": {state.why}" if state.why else ""),
        dim(f"command  {command}"),
    ]
    if state.waiting:
        lines.append(f"waiting  {state.waiting}")
    if unsaved:
        lines.append(f"unsaved  no checkpoint was committed for minutes: {unsaved}")
    if state.hint:
        lines.append(f"hint     {state.hint}")
    if request.spec.params:
        lines.append(dim("params   " + " ".join(f"{k}={v}" for k, v in request.spec.params.items())))
    if request.code.commit:
        dirty = " with uncommitted changes" if request.code.dirty else ""
        lines.append(dim(f"code     {request.code.url or 'git'} {request.code.commit[:12]}{dirty}"))
    return "\n".join(indented(line, 9) for line in lines)


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


def _as_json(request: RunRequest, story: Story, newest: dict[str, Point], unsaved: str) -> str:
    import json

    import msgspec

    return json.dumps(
        {
            "run": request.run,
            "request": msgspec.to_builtins(request),
            "state": msgspec.to_builtins(story.state),
            "metrics": {name: msgspec.to_builtins(point) for name, point in newest.items()},
            "events": [msgspec.to_builtins(event) for event in story.events],
            "unsaved": unsaved,
        },
        indent=2,
    )
