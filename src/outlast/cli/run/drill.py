"""`outlast drill`: preempts a training on purpose, on the local cloud, and reports what would not survive."""

from __future__ import annotations

import shutil
import textwrap
import time
from typing import TYPE_CHECKING, Any

import click
import msgspec

from outlast.app.drilling import DrillOptions, run_drill
from outlast.cli.run.options import overrides_from, spec_options
from outlast.cli.shared.command import command
from outlast.cli.shared.options import json_option, parse_option, workspace_option
from outlast.cli.shared.project import load_project, naming_options, spec_of
from outlast.cli.shared.terminal import find_workspace, note
from outlast.cli.shared.timeline import legend, timeline
from outlast.clouds.traits import DEFAULT_CLOUD
from outlast.spec.quantity import duration_s

if TYPE_CHECKING:
    from outlast.app.types import DrillReport, Evidence, Finding

_SIGNS = {"pass": "✓", "note": "i", "warn": "!", "fail": "✗", "skip": "-"}
_COLOURS = {"pass": "green", "note": "cyan", "warn": "yellow", "fail": "red", "skip": "blue"}


@command(section="runs", interrupt="stopped the drill; its machines are deleted", json="Report")
@spec_options
@click.option("--preemptions", default=3, show_default=True, metavar="N", help="Number of preemptions.")
@click.option("--no-notice", is_flag=True, help="Preempt without notice.")
@click.option("--compare", is_flag=True, help="Also run it undisturbed, and compare the results.")
@click.option("--tolerance", default=1e-6, show_default=True, metavar="X", help="Allowed relative difference.")
@click.option(
    "--mean-life", default="2h", show_default=True, metavar="TIME", help="Mean life of spot machines, for the cost."
)
@click.option(
    "--grace", default="30s", show_default=True, metavar="TIME", help="Time from the notice to the power cut."
)
@click.option(
    "--wait", default="60s", show_default=True, metavar="TIME", help="How long to wait for the moment of a preemption."
)
@json_option
@workspace_option
def drill(workspace_url: str, path: str, command: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Preempt your own training on purpose and report what survives.

    Preempts on the local cloud: before the first checkpoint, in the middle, during a save and right before the end,
    with notice and without. Reports whether the training resumed from the right step, the lost work, and what to
    change. Exits with 0 if it would survive, with 8 if not, and with 10 if nothing shows whether it resumes.
    """
    seconds = {
        name: parse_option(f"--{name.replace('_', '-')}", options.pop(name), duration_s, 0.0)
        for name in ("mean_life", "grace", "wait")
    }
    with naming_options({"preemptions": "--preemptions", "tolerance": "--tolerance"}):
        drill_options = DrillOptions(
            preemptions=options.pop("preemptions"),
            notice=not options.pop("no_notice"),
            compare=options.pop("compare"),
            tolerance=options.pop("tolerance"),
            mean_life_s=seconds["mean_life"],
            grace_s=seconds["grace"],
            wait_s=seconds["wait"],
        )
    project = load_project(path)
    spec = spec_of(project, overrides_from(options), command)
    workspace = find_workspace(workspace_url, project)
    if spec.image is not None and spec.image.machine.cloud == spec.machine.cloud == DEFAULT_CLOUD:
        from outlast.cli.image.build import with_image

        spec = with_image(workspace, spec, project)
    try:
        found = run_drill(workspace, spec, drill_options, source=project.source, log=note)
    except KeyboardInterrupt:
        note("\ncancelled the drill; nothing is left running")
        return 130
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found.report), indent=2).decode())
    else:
        _show(found.report, found.drilled, found.undisturbed)
    return found.exit_code


def _show(report: DrillReport, drilled: Evidence, undisturbed: Evidence | None) -> None:
    from outlast.formatting.two_curves import plot

    now = time.time()
    click.echo("\n" + timeline(drilled.state, now))
    click.echo(legend(drilled.state) + "\n")
    if undisturbed is not None:
        shared = {n: len(p) for n, p in undisturbed.curves.items() if n in drilled.curves}
        name = max(shared, key=lambda n: (shared[n], "loss" in n), default="")
        if name and (drawn := plot(undisturbed.curves[name], drilled.curves[name])):
            click.echo(f"{name}\n{drawn}\n")
    click.echo(_table(report.findings))
    failed = sum(f.verdict == "fail" for f in report.findings)
    if report.passed:
        ending = click.style("passed", fg="green")
    elif report.undecided:
        ending = click.style("could not decide", fg="yellow") + " whether the program resumes"
    else:
        rest = f"{failed} thing{'' if failed == 1 else 's'} would not survive"
        ending = f"{click.style('failed', fg='red')}: {rest}"
    click.echo(f"\nthe drill {ending}")


def _table(findings: list[Finding]) -> str:
    """Return one row per question; long answers wrap, and the hint has a separate line."""
    margin = max(len(f.question) for f in findings)
    columns = max(60, min(120, shutil.get_terminal_size((100, 24)).columns))
    lines = []
    for found in findings:
        sign = click.style(f"{_SIGNS[found.verdict]} {found.verdict:<4}", fg=_COLOURS[found.verdict])
        pieces = textwrap.wrap(found.answer, max(20, columns - margin - 10)) or [""]
        lines.append(f"{sign}  {found.question:<{margin}}  {pieces[0]}")
        lines += [" " * (margin + 10) + piece for piece in pieces[1:]]
        if found.hint and found.verdict != "pass":
            hint = textwrap.wrap(f"hint: {found.hint}", max(20, columns - margin - 10))
            lines += [" " * (margin + 10) + piece for piece in hint]
    return "\n".join(lines)
