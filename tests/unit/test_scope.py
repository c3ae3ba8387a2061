"""A supervisor with a limited scope leaves other runs and their machines alone."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.home import Home

from outlast.clouds.cloud import LABEL_ATTEMPT, LABEL_RUN, LABEL_WORKSPACE, Boot, Requirements
from outlast.clouds.local.cloud import LocalCloud
from outlast.supervisor.loop import Supervisor
from outlast.supervisor.plan import plan
from outlast.workspace import open_workspace


def test_machines_of_runs_outside_the_scope_are_not_reaped(tmp_path: Path) -> None:
    home = Home(tmp_path)
    run = home.run("true")
    cloud = LocalCloud(str(tmp_path / "cloud"), mode="plain")
    workspace = open_workspace(home.workspace.url)
    labels = {LABEL_WORKSPACE: workspace.id, LABEL_RUN: run, LABEL_ATTEMPT: "7"}
    offer = cloud.offers(Requirements())[0]
    cloud.launch(offer, f"{run}-a7-{workspace.id[:6]}", boot=Boot(script="sleep 1000"), labels=labels)
    try:
        # The machine is listed; its run, which may also use another cloud, is outside the scope.
        supervisor = Supervisor(workspace, {"local": cloud})
        assert any("a7" in str(step) for step in plan(supervisor.observer.observe(time.time())))
        seen: list[str] = []

        def scope(name: str) -> bool:
            seen.append(name)
            return len(seen) == 1  # asked for the listing first, then about the run

        other = Supervisor(workspace, {"local": cloud})
        other.observer.read_only = True
        other.observer.others.add(run)
        other.observer.scope = scope
        assert plan(other.observer.observe(time.time())) == ()
    finally:
        home.clean()
