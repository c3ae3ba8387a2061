"""An Executor on the local cloud of a test's home."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import outlast
from outlast.clouds.local.cloud import LocalCloud
from tests.support.home import Home


@pytest.fixture
def here(home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Let this process be the user's program."""
    for name, value in home.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home.project)
    return home


@contextmanager
def executor(**options: Any) -> Iterator[outlast.Executor]:
    """Open an executor whose calls are cancelled if the test fails: it must not wait for them."""
    pool = outlast.Executor(**options)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def preempt_one(cloud: LocalCloud, *, notice: bool) -> bool:
    """Preempt a running worker machine; return False if none is running."""
    running = sorted(machine.name for machine in cloud.machines() if machine.status == "running")
    if not running:
        return False
    # The one that was preempted last has a new name, which sorts differently: each gets its turn.
    chosen = running[int.from_bytes(os.urandom(2), "big") % len(running)]
    cloud.preempt(chosen, notice=notice)
    return True
