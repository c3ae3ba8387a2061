"""`outlast drill`: preempts a training on purpose, on the local cloud, and reports what would not survive."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

from outlast.app.background import supervise_live_runs
from outlast.cli.run.embedded_supervisor import report_bugs
from outlast.cli.run.options import overrides_from, spec_options
from outlast.cli.shared.command import command
from outlast.cli.shared.options import json_option, parse_option, workspace_option
from outlast.cli.shared.project import load_project, spec_of
from outlast.cli.shared.terminal import find_workspace, note
from outlast.cli.shared.timeline import legend, timeline
from outlast.clouds.traits import DEFAULT_CLOUD
from outlast.errors import DrillFailed, DrillUndecided, UsageError
from outlast.spec.quantity import describe_s, duration_s
from outlast.spec.spec import NotifySpec

if TYPE_CHECKING:
    from outlast.app.types import Evidence, Finding, LocalCloud, Workspace
    from outlast.drill.judge import Report
    from outlast.spec.spec import Spec

_PREEMPTIONS_MAX = 50
_HALF = 0.5
_SIGNS = {"pass": "✓", "note": "i", "warn": "!", "fail": "✗", "skip": "-"}
_COLOURS = {"pass": "green", "note": "cyan", "warn": "yellow", "fail": "red", "skip": "bright_black"}


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
    drill_options = _DrillOptions(options)
    project = load_project(path)
    spec = spec_of(project, overrides_from(options), command)
    workspace = find_workspace(workspace_url, project)
    if spec.image is not None and spec.image.machine.cloud == spec.machine.cloud == DEFAULT_CLOUD:
        from outlast.cli.image.build import with_image

        spec = with_image(workspace, spec, project)
    rule, spec = spec.notify, msgspec.structs.replace(spec, notify=None)
    session = _Drill(workspace, spec, drill_options, source=project.source)
    try:
        with session.supervised(), contextlib.ExitStack() as undo:
            undo.callback(session.clear)
            drilled, undisturbed = session.play()
            undo.pop_all()
    except (KeyboardInterrupt, _Interrupted):
        note("\ncancelled the drill; nothing is left running")
        return 130
    report = session.name_missing_files(_judged(spec, drill_options, drilled, undisturbed))
    _store(workspace, report, drilled, undisturbed)
    if rule is not None and not (report.passed or report.undecided):
        _notify(workspace, rule, report)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _show(report, drilled, undisturbed)
    if report.passed:
        return 0
    return DrillUndecided.exit_code if report.undecided else DrillFailed.exit_code


def _notify(workspace: Workspace, rule: NotifySpec, report: Report) -> None:
    from outlast.notify.messages import Message
    from outlast.notify.outbox import send_now

    if "drill_failed" in rule.events:
        text = f"the drill of {report.run} failed: the training would not survive a preemption"
        message = Message(number=0, event="drill_failed", run=report.run, text=text)
        for problem in send_now(rule, message, workspace=workspace, environment=os.environ).values():
            if problem:
                note(f"notification was not sent: {problem}")


class _DrillOptions:
    """The options of the drill, removed from the others and checked."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.preemptions: int = options.pop("preemptions")
        self.notice = not options.pop("no_notice")
        self.compare: bool = options.pop("compare")
        self.tolerance: float = options.pop("tolerance")
        if not 1 <= self.preemptions <= _PREEMPTIONS_MAX:
            raise UsageError(f"--preemptions: {self.preemptions} is not between 1 and {_PREEMPTIONS_MAX}")
        if not (self.tolerance >= 0 and math.isfinite(self.tolerance)):
            raise UsageError(f"--tolerance: {self.tolerance:g} must be a finite number of at least 0")
        self.mean_life_s = parse_option("--mean-life", options.pop("mean_life"), duration_s, 0.0)
        self.grace_s = parse_option("--grace", options.pop("grace"), duration_s, 0.0)
        self.wait_s = parse_option("--wait", options.pop("wait"), duration_s, 0.0)


class _Interrupted(Exception):
    """SIGTERM or SIGHUP arrived."""


def _on_signal(_number: int, _frame: object) -> None:
    raise _Interrupted


class _Drill:
    """The runs of one drill and their supervisor."""

    def __init__(self, workspace: Workspace, spec: Spec, drill_options: _DrillOptions, *, source: str) -> None:
        from outlast.clouds.local.cloud import LocalCloud

        self.workspace = workspace
        self.spec = spec
        self.drill_options = drill_options
        self.source = source
        self.cloud: LocalCloud = LocalCloud()
        self.runs: list[str] = []

    @contextlib.contextmanager
    def supervised(self) -> Iterator[None]:
        from outlast.supervisor.loop import Supervisor

        stop = threading.Event()
        supervisor = Supervisor(self.workspace, {self.cloud.name: self.cloud}, report=report_bugs)
        thread = threading.Thread(target=supervisor.run, kwargs={"stop": stop}, name="supervisor", daemon=True)
        thread.start()
        numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, _on_signal) for number in numbers}
        try:
            yield
        finally:
            with _signals_ignored():
                stop.set()
                thread.join(10.0)
                supervise_live_runs(self.workspace)
            for number, handler in before.items():
                signal.signal(number, handler)

    def play(self) -> tuple[Evidence, Evidence | None]:
        """Run the training undisturbed, if it is to be compared, and then with preemptions."""
        from outlast.drill.injections import choose

        undisturbed = None
        if self.drill_options.compare:
            note("running undisturbed, for comparison …")
            undisturbed = self._run_undisturbed()
        injections = choose(self.drill_options.preemptions, notice=self.drill_options.notice)
        drilled = self._run_once(spot=True, injections=injections, known=undisturbed)
        if undisturbed is None and drilled.state.ending == "finished" and not drilled.observed.injected:
            # A short program that never saves: no moment came. Its duration is known now.
            note(
                f"it ended after {describe_s(drilled.work_s)} without a moment to preempt; repeating it by the clock …"
            )
            drilled = self._run_once(spot=True, injections=injections, known=drilled)
        elif undisturbed is None and _ended_untested(drilled):
            note("it ended before a preemption after a checkpoint; repeating it, now that its length is known …")
            drilled = self._run_once(spot=True, injections=injections, known=drilled)
        if undisturbed is None and self._is_undecided(drilled):
            note("nothing shows yet whether it resumed; running it undisturbed, to compare the work …")
            undisturbed = self._run_undisturbed()
            if self._is_undecided(drilled, undisturbed):
                note("too little work was committed to compare; preempting it once more, after half of the work …")
                once = choose(1, notice=self.drill_options.notice)
                later = self._run_once(spot=True, injections=once, known=undisturbed, from_share=_HALF)
                drilled = drilled if self._is_undecided(later, undisturbed) else later
        return drilled, undisturbed

    def _is_undecided(self, drilled: Evidence, undisturbed: Evidence | None = None) -> bool:
        from outlast.drill.judge import judge
        from outlast.drill.resume_check import RESUMES

        grace_s, tolerance = self.drill_options.grace_s, self.drill_options.tolerance
        found = judge(self.spec, drilled, undisturbed=undisturbed, grace_s=grace_s, tolerance=tolerance)
        return drilled.state.ending == "finished" and any(f.question == RESUMES and f.verdict == "skip" for f in found)

    def _left_behind(self, run: str) -> str:
        from outlast.app.left_behind import left_behind_hint

        return left_behind_hint(self.workspace, run)

    def name_missing_files(self, report: Report) -> Report:
        """Add to a failure the files that stayed on this computer."""
        replace = msgspec.structs.replace
        failed = [f for f in report.findings if f.question == "finishes" and f.verdict == "fail"]
        hint = self._left_behind(report.run) if failed else ""
        findings = [replace(f, hint=hint) if hint and f in failed else f for f in report.findings]
        return replace(report, findings=findings)

    def _run_undisturbed(self) -> Evidence:
        undisturbed = self._run_once(spot=False, injections=())
        if undisturbed.state.ending != "finished":
            why = f"{undisturbed.run} {undisturbed.state.ending} without any preemption: {undisturbed.state.why}"
            missing = self._left_behind(undisturbed.run)
            raise DrillFailed(why, hint=missing or f"fix it first; see `outlast logs {undisturbed.run}`")
        return undisturbed

    def _run_once(
        self, *, spot: bool, injections: tuple[Any, ...], known: Evidence | None = None, from_share: float = 0.0
    ) -> Evidence:
        """Submit and watch one run. `known` is the undisturbed run of the same command.

        With `from_share`, it is preempted after this share of the work.
        """
        from outlast.drill.evidence import gather
        from outlast.drill.injections import moment_timeout_s
        from outlast.drill.runner import DrillRunner, spec_for_drill
        from outlast.submit.run import submit

        request = submit(
            self.workspace,
            {self.cloud.name: self.cloud},
            spec_for_drill(self.spec, spot=spot, preemptions=self.drill_options.preemptions),
            environment=os.environ,
            source=self.source,
            report=note,
        )
        self.runs.append(request.run)
        note(f"{request.run} is running; its output: `outlast logs -f {request.run}`")
        wait_s = self.drill_options.wait_s
        if known is not None:
            wait_s = moment_timeout_s(wait_s, undisturbed_s=known.work_s, saves=known.saves)
            wait_s = max(wait_s, known.work_s) if from_share else wait_s
        runner = DrillRunner(
            self.workspace,
            self.cloud,
            request,
            injections=injections,
            wait_s=wait_s,
            grace_s=self.drill_options.grace_s,
            last=known.last_mark if known else None,
            undisturbed_s=known.work_s if known else None,
            by_clock=known is not None and not known.observed.signs,
            from_share=from_share,
            report=note,
        )
        observed = runner.watch()
        self._wait_closed(request.run)
        return gather(self.workspace, request.run, observed)

    def clear(self) -> None:
        """Cancel all runs, and wait until their machines are deleted."""
        from outlast.app.actions import cancel_run

        with _signals_ignored():
            for run in self.runs:
                cancel_run(self.workspace, run)
                self._wait_closed(run)

    def _wait_closed(self, run: str, *, within_s: float = 20.0) -> None:
        story, give_up_at = self.workspace.story(run), time.monotonic() + within_s
        while not story.refresh().closed and time.monotonic() < give_up_at:
            time.sleep(0.02)


def _ended_untested(drilled: Evidence) -> bool:
    """Return whether a program that saves finished before it was preempted with a checkpoint."""
    from outlast.drill.handovers import handovers

    tested = any(h.committed for h in handovers(drilled))
    return drilled.state.ending == "finished" and drilled.saves > 0 and not tested


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore signals: a second Ctrl-C must not leave machines behind."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _judged(spec: Spec, drill_options: _DrillOptions, drilled: Evidence, undisturbed: Evidence | None) -> Report:
    from outlast.drill.findings import prices
    from outlast.drill.handovers import handovers
    from outlast.drill.judge import cost, judge, losses, report

    found = judge(
        spec, drilled, undisturbed=undisturbed, grace_s=drill_options.grace_s, tolerance=drill_options.tolerance
    )
    passed = handovers(drilled)
    placed = next((a for a in drilled.state.attempts if a.spot), None)
    figures = None
    if passed and placed is not None:
        recovery_s, lost_s = losses(passed)
        figures = prices(
            mean_life_s=drill_options.mean_life_s,
            recovery_s=recovery_s,
            lost_s=lost_s,
            spot_usd_per_hour=placed.price_usd_per_hour,
            on_demand_usd_per_hour=placed.on_demand_usd_per_hour,
        )
        found.append(cost(figures))
    return report(drilled, undisturbed, found, figures)


def _store(workspace: Workspace, report: Report, drilled: Evidence, undisturbed: Evidence | None) -> None:
    """Store the report for the dashboard."""
    from outlast.drill.records import store_drill
    from outlast.user import current_user

    store_drill(workspace, report, drilled, undisturbed, who=current_user())


def _show(report: Report, drilled: Evidence, undisturbed: Evidence | None) -> None:
    from outlast.drill.curve import plot

    now = time.time()
    click.echo("\n" + timeline(drilled.state, now))
    click.echo(legend() + "\n")
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
