"""The saver of an attempt that has started."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from outlast.agent.attempt import AttemptWriter
from outlast.agent.checkpoint.checkpointer import Checkpointer
from outlast.agent.paths import AttemptPaths
from outlast.runs import events as ev
from outlast.spec.spec import CheckpointSpec
from outlast.workspace import Workspace
from tests.unit.agent.saving import RUN, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "workspace"))


@pytest.fixture
def saver(store: Store, tmp_path: Path) -> Checkpointer:
    """The saver of attempt 1, which has started."""
    workspace = Workspace(store)
    placed = ev.Placed(
        attempt=1, cloud="local", region="r", zone="z", type="t", spot=True, price_usd_per_hour=1.0, machine="m"
    )
    for number, event in enumerate([ev.Submitted(), placed, ev.Started(attempt=1)]):
        workspace.story(RUN).append_or_raise(event, nonce=str(number))
    home = str(tmp_path / "home")
    place = AttemptPaths(
        home=home,
        code=f"{home}/work",
        checkpoints=f"{home}/work/checkpoints",
        outputs=f"{home}/work/outputs",
        cache=f"{home}/cache",
        notice_file=f"{home}/notice.json",
        done_file=f"{home}/done.json",
    )
    place.make()
    nonces = iter(range(1000))
    attempt = AttemptWriter(workspace, RUN, 1, clock=time.time, ids=lambda: f"n{next(nonces)}")
    return Checkpointer(attempt, place=place, rule=CheckpointSpec(), report=lambda _: None)
