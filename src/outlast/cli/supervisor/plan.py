"""`outlast plan`: the steps that the supervisor would take now, or the choice for one run with its reasons."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from outlast.app.dry_run import dry_run
from outlast.app.planning import describe, plan_of, traffic_text
from outlast.cli.cost.prices import source_text
from outlast.cli.shared.command import UNCHANGED, command
from outlast.cli.shared.options import complete_run, json_option, workspace_option
from outlast.cli.shared.terminal import find_workspace, money, note, table
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.app.types import Explanation, Option, RunView, Step, Workspace

# The origins of prices that are named.
_SOURCES_MAX = 4


def _step_data(step: Step) -> dict[str, object]:
    import msgspec

    data = msgspec.to_builtins(step)
    assert isinstance(data, dict)
    return {"step": data.pop("type").lower(), **data, "text": describe(step)}


def _print_steps(steps: tuple[Step, ...] | list[Step], *, as_json: bool, nothing: str, url: str = "") -> None:
    if as_json:
        import json

        click.echo(json.dumps([_step_data(step) for step in steps], indent=2))
    elif not steps:
        click.echo(nothing)
    else:
        for step in steps:
            crossing = traffic_text(url, step) if url else ""
            click.echo(describe(step) + (f"; {crossing}" if crossing else ""))


@command(
    "plan",
    section="admin",
    progress="querying the clouds",
    interrupt=UNCHANGED,
    json_text="steps: `step`, its fields, `text`; for a run: `choice`, `place`, `sentence`, `options`, `steps`, "
    "`forecast`, `prices`, `environment`",
)
@click.argument("run_name", metavar="RUN", required=False, default="", shell_complete=complete_run)
@json_option
@workspace_option
def plan_command(workspace_url: str, run_name: str, as_json: bool) -> int:
    """Print the steps that the supervisor would take now.

    Changes nothing. With RUN: the machine that is chosen for it, the reasons, and all other options.
    """
    workspace = find_workspace(workspace_url)
    if run_name:
        return print_explanation(workspace, run_name, as_json=as_json)
    world, steps = dry_run(workspace)
    for cloud, why in world.unreachable.items():
        note(f"{cloud} cannot be reached: {why}")
    _print_steps(steps, as_json=as_json, nothing="nothing to do", url=workspace.url)
    return 0


def print_explanation(workspace: Workspace, run_name: str, *, as_json: bool) -> int:
    """Print the choice for one run and its reasons; return the exit code."""
    found = plan_of(workspace, run_name)
    view, mine, explanation, known = found.view, found.steps, found.explanation, found.forecast
    environment = found.environment
    for cloud, why in found.unreachable.items():
        note(f"{cloud} cannot be reached: {why}")
    sources = list(dict.fromkeys(source_text(offer) for offer in (*view.spot_offers, *view.on_demand_offers)))
    prices = "; ".join(sources[:_SOURCES_MAX])
    if as_json:
        data = {**_as_data(view, mine, explanation), "forecast": known, "prices": prices, "environment": environment}
        click.echo(json.dumps(data, indent=2))
    else:
        lines = _as_text(view, mine, explanation, known)
        lines += [f"prices: {prices}"] if prices else []
        click.echo("\n".join([*lines, f"environment: {environment}"] if environment else lines))
    return 0


def _as_text(view: RunView, steps: list[Step], explanation: Explanation | None, known: str) -> list[str]:
    lines: list[str] = []
    if explanation is not None:
        lines += [f"{view.run} {explanation.sentence}" if view.spec.uses_policy else _default_choice(view), ""]
        header = ["", "option", "price/h", "lives", "start", "value/h", "note"]
        lines += [table([_row(option) for option in explanation.options], header=header), ""]
        lines += [f"forecast: {known}", ""] if known else []
    else:
        lines += [_default_choice(view), ""]
    return [*lines, "now: " + ("; ".join(describe(step) for step in steps) or view.state.waiting or "nothing to do")]


def _default_choice(view: RunView) -> str:
    missing = [f"`{name}`" for name, is_set in _limits_set(view).items() if not is_set]
    chosen = "takes the cheapest spot machine" if view.spec.machine.spot else "takes the cheapest on-demand machine"
    return f"{view.run} {chosen}; a choice by deadline needs `[limits]` {' and '.join(missing)}"


def _limits_set(view: RunView) -> dict[str, bool]:
    limits = view.spec.limits
    return {"deadline": bool(limits.deadline_s or limits.deadline_at), "work": bool(limits.work_s or limits.steps)}


def _row(option: Option) -> list[str]:
    return [
        "→" if option.chosen else "",
        option.name,
        money(option.price) if option.price else "",
        describe_s(option.life_s) if option.life_s is not None else "",
        describe_s(option.start_s) if option.start_s else "",
        f"{option.value:+.2f}" if option.price else "",
        option.note,
    ]


def _as_data(view: RunView, steps: list[Step], explanation: Explanation | None) -> dict[str, object]:
    policy = explanation is not None and view.spec.uses_policy
    return {
        "run": view.run,
        "choice": explanation.choice.kind if policy and explanation else None,
        "place": explanation.choice.place if policy and explanation else None,
        "sentence": explanation.sentence if policy and explanation else _default_choice(view),
        "options": [asdict(option) for option in explanation.options] if explanation else [],
        "steps": [describe(step) for step in steps],
    }
