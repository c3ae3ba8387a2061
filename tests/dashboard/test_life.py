"""Checks of the sample workspace that the other tests use."""

from __future__ import annotations

from outlast.drill.records import drills, read
from tests.support.dashboard import Lived


def test_the_sample_runs_have_the_expected_outcomes(lived: Lived) -> None:
    names = lived.names
    demo = lived.state(names.demo)
    assert demo.ending == "finished"
    assert sum(attempt.preempted for attempt in demo.attempts) == 2
    assert not lived.state(names.running).ending
    assert lived.state(names.failed).ending == "failed"
    assert lived.state(names.cancelled).ending == "cancelled"


def test_a_drill_leaves_its_report_and_its_curves_in_the_workspace(lived: Lived) -> None:
    assert drills(lived.workspace) == [lived.names.drill]
    drill = read(lived.workspace, lived.names.drill)
    assert drill.report.findings
    assert drill.report.undisturbed_run == lived.names.undisturbed
    assert len(drill.undisturbed["loss"]) == 15
    assert drill.drilled["loss"].keys() <= drill.undisturbed["loss"].keys()
