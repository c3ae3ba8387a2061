"""The drill as a use case: preempts a training on purpose on the local cloud, and judges whether it would survive."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.app.background import supervise_live_runs
from outlast.drill.evidence import Evidence
from outlast.drill.judge import Report
from outlast.errors import DrillFailed, DrillUndecided, UsageError
from outlast.spec.quantity import describe_s
from outlast.spec.spec import NotifySpec

if TYPE_CHECKING:
    from outlast.clouds.local.cloud import LocalCloud
    from outlast.spec.spec import Spec
    from outlast.workspace import Workspace


_PREEMPTIONS_MAX = 50
_HALF = 0.5

Log = Callable[[str], None]


class DrillOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a drill does. Raises UsageError for values out of range."""

    preemptions: int = 3
    notice: bool = True
    # Also run it undisturbed, and compare the results within the tolerance.
    compare: bool = False
    tolerance: float = 1e-6
    # The mean life of spot machines, for the cost.
    mean_life_s: float = 7200.0
    # From the notice to the power cut.
    grace_s: float = 30.0
    # How long to wait for the moment of a preemption.
    wait_s: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.preemptions <= _PREEMPTIONS_MAX:
            raise UsageError(f"preemptions: {self.preemptions} is not between 1 and {_PREEMPTIONS_MAX}")
        if not (self.tolerance >= 0 and math.isfinite(self.tolerance)):
            raise UsageError(f"tolerance: {self.tolerance:g} must be a finite number of at least 0")


class DrillResult(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a drill and the evidence for it; `undisturbed` if the training also ran without preemptions."""

    report: Report
    drilled: Evidence
    undisturbed: Evidence | None

    @property
    def exit_code(self) -> int:
        """0 if the program survives, 8 if not, 10 if nothing shows whether it resumes: for a job of CI."""
        if self.report.passed:
            return 0
        return DrillUndecided.exit_code if self.report.undecided else DrillFailed.exit_code


def run_drill(workspace: Workspace, spec: Spec, options: DrillOptions, *, source: str, log: Log) -> DrillResult:
    """Drill a run on the local cloud and store the report for the dashboard.

    After Ctrl-C, SIGTERM or SIGHUP its runs are cancelled and KeyboardInterrupt is raised.
    """
    rule, spec = spec.notify, msgspec.structs.replace(spec, notify=None)
    session = DrillSession(workspace, spec, options, source=source, log=log)
    with session.supervised(), contextlib.ExitStack() as undo:
        undo.callback(session.clear)
        drilled, undisturbed = session.play()
        undo.pop_all()
    report = session.name_missing_files(_judged(spec, options, drilled, undisturbed))
    _store(workspace, report, drilled, undisturbed)
    if rule is not None and not (report.passed or report.undecided):
        _notify(workspace, rule, report, log)
    return DrillResult(report=report, drilled=drilled, undisturbed=undisturbed)


def _notify(workspace: Workspace, rule: NotifySpec, report: Report, log: Log) -> None:
    from outlast.notify.messages import Message
    from outlast.notify.outbox import send_now

    if "drill_failed" in rule.events:
        text = f"the drill of {report.run} failed: the training would not survive a preemption"
        message = Message(number=0, event="drill_failed", run=report.run, text=text)
        for problem in send_now(rule, message, workspace=workspace, environment=os.environ).values():
            if problem:
                log(f"notification was not sent: {problem}")


class _Interrupted(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived."""


def _on_signal(_number: int, _frame: object) -> None:
    raise _Interrupted


class DrillSession:
    """The runs of one drill and their supervisor."""

    def __init__(self, workspace: Workspace, spec: Spec, drill_options: DrillOptions, *, source: str, log: Log) -> None:
        from outlast.clouds.local.cloud import LocalCloud

        self.workspace = workspace
        self.spec = spec
        self.drill_options = drill_options
        self.source = source
        self.log = log
        self.cloud: LocalCloud = LocalCloud()
        self.runs: list[str] = []

    @contextlib.contextmanager
    def supervised(self) -> Iterator[None]:
        from outlast.supervisor.loop import Supervisor

        stop = threading.Event()
        supervisor = Supervisor(self.workspace, {self.cloud.name: self.cloud}, report=self._report_bug)
        thread = threading.Thread(target=supervisor.run, kwargs={"stop": stop}, name="supervisor", daemon=True)
        thread.start()
        handled = (signal.SIGTERM, signal.SIGHUP) if _is_main_thread() else ()
        numbers = [number for number in handled if signal.getsignal(number) is not signal.SIG_IGN]
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

    def _report_bug(self, text: str) -> None:
        if text.startswith("bug:"):
            self.log(text)

    def play(self) -> tuple[Evidence, Evidence | None]:
        """Run the training undisturbed, if it is to be compared, and then with preemptions."""
        from outlast.drill.injections import choose

        undisturbed = None
        if self.drill_options.compare:
            self.log("running undisturbed, for comparison …")
            undisturbed = self._run_undisturbed()
        injections = choose(
            self.drill_options.preemptions, notice=self.drill_options.notice, nodes=self.spec.machine.nodes
        )
        drilled = self._run_once(spot=True, injections=injections, known=undisturbed)
        if undisturbed is None and drilled.state.ending == "finished" and not drilled.observed.injected:
            # A short program that never saves: no moment came. Its duration is known now.
            self.log(
                f"it ended after {describe_s(drilled.work_s)} without a moment to preempt; repeating it by the clock …"
            )
            drilled = self._run_once(spot=True, injections=injections, known=drilled)
        elif undisturbed is None and _ended_untested(drilled):
            self.log("it ended before a preemption after a checkpoint; repeating it, now that its length is known …")
            drilled = self._run_once(spot=True, injections=injections, known=drilled)
        if undisturbed is None and self._is_undecided(drilled):
            self.log("nothing shows yet whether it resumed; running it undisturbed, to compare the work …")
            undisturbed = self._run_undisturbed()
            if self._is_undecided(drilled, undisturbed):
                self.log("too little work was committed to compare; preempting it once more, after half of the work …")
                once = choose(1, notice=self.drill_options.notice)
                later = self._run_once(spot=True, injections=once, known=undisturbed, from_share=_HALF)
                drilled = later if _was_tested(later) and not self._is_undecided(later, undisturbed) else drilled
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
            report=self.log,
        )
        self.runs.append(request.run)
        self.log(f"{request.run} is running; its output: `outlast logs -f {request.run}`")
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
            report=self.log,
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
    return drilled.state.ending == "finished" and drilled.saves > 0 and not _was_tested(drilled)


def _was_tested(drilled: Evidence) -> bool:
    from outlast.drill.handovers import handovers

    return any(h.committed for h in handovers(drilled))


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore signals: a second Ctrl-C must not leave machines behind."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if _is_main_thread() else ()
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _judged(spec: Spec, drill_options: DrillOptions, drilled: Evidence, undisturbed: Evidence | None) -> Report:
    from outlast.drill.findings import prices
    from outlast.drill.handovers import handovers
    from outlast.drill.judge import cost, judge, losses, report

    found = judge(
        spec,
        drilled,
        undisturbed=undisturbed,
        grace_s=drill_options.grace_s,
        tolerance=drill_options.tolerance,
        compare=drill_options.compare,
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


def _is_main_thread() -> bool:
    """Return whether signals may be handled here: a program may drill in a thread."""
    return threading.current_thread() is threading.main_thread()
