"""A run that commits nothing: `show` and `ps` report the reason that its agent gives."""

from __future__ import annotations

from pathlib import Path

from outlast.code.record import CodeRecord
from outlast.runs import events as ev
from outlast.spec.spec import Spec
from outlast.workspace import Heartbeat, open_workspace
from tests.integration.cli.console import Console


def test_the_reason_why_nothing_is_committed_is_shown(tmp_path: Path) -> None:
    console = Console(tmp_path)
    workspace = open_workspace(str(console.workspace))
    run = workspace.reserve(Spec(name="stuck", command=("true",)), CodeRecord(), who="", version="0").run
    placed = ev.Placed(
        attempt=1, cloud="local", region="r", zone="z", type="t", spot=True, price_usd_per_hour=1.0, machine="m"
    )
    for number, event in enumerate([ev.Submitted(), placed, ev.Started(attempt=1)]):
        workspace.story(run).append_or_raise(event, nonce=str(number))
    workspace.write_heartbeat(run, Heartbeat(attempt=1, phase="running", unsaved="`model.pt` is open for writing"))
    assert "no checkpoint was committed for minutes: `model.pt` is open for writing" in console.well("show", run)
    assert console.json("show", run)["unsaved"] == "`model.pt` is open for writing"
    assert "no checkpoint: `model.pt` is open for writing" in " ".join(console.well("ps").split())
    [row] = console.json("ps")
    assert row["unsaved"] == "`model.pt` is open for writing"
    workspace.write_heartbeat(run, Heartbeat(attempt=1, phase="running"))
    assert "no checkpoint" not in console.well("show", run)
    assert console.json("show", run)["unsaved"] == ""
