"""An observer that changes nothing sees what a supervisor beside it wrote, although that one deletes the wakeups."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.home import Home

from outlast.code.record import CodeRecord
from outlast.runs.events import Cancelled, Submitted
from outlast.spec.parse import parse
from outlast.supervisor.observe import Observer
from outlast.supervisor.plan import plan


def test_it_reads_events_whose_wakeups_a_supervisor_has_deleted(tmp_path: Path) -> None:
    home = Home(tmp_path)
    workspace = home.workspace
    request = workspace.reserve(parse({"name": "x", "command": "true"}), CodeRecord(), who="ada", version="0")
    story = workspace.story(request.run)
    story.append_or_raise(Submitted(who="ada", at=workspace.clock()), nonce="s")
    workspace.wake(request.run)
    clouds = {"local": home.cloud}
    dashboard = Observer(workspace, clouds, monotonic=time.monotonic, read_only=True)
    supervisor = Observer(workspace, clouds, monotonic=time.monotonic)
    for observer in (dashboard, supervisor):
        observer.observe(time.time())
    assert dashboard.state(request.run).ending == ""
    story.append_or_raise(Cancelled(who="ada", at=workspace.clock()), nonce="c")
    workspace.wake(request.run)
    supervisor.observe(time.time())
    assert not workspace.wakeups(), "the supervisor has deleted them"
    steps = plan(dashboard.observe(time.time()))
    assert dashboard.state(request.run).ending == "cancelled"
    assert steps == plan(supervisor.observe(time.time()))
