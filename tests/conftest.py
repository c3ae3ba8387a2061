"""Order of the whole suite: long files first, in random order; the many short ones fill the gaps."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

# Show the values of assertions that fail in helpers, too.
pytest.register_assert_rewrite("tests.support")

# A shell that starts pytest in the background makes it ignore Ctrl-C, and child processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# `nohup` makes it ignore SIGHUP. Child processes inherit an ignored signal, but not a handler.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# One agent kit for all tests: each test has its own home, and would download the libraries again.
os.environ.setdefault("OUTLAST_KIT_CACHE", str(Path(__file__).resolve().parents[1] / ".venv" / "kit-cache"))

# Folders by the duration of their longest file; all others take seconds.
LONG = (
    "volumes_databases",
    "emulator",
    "images",
    "machines",
    "drill",
    "crash",
    "cluster",
    "gcp",
    "e2e",
    "docs",
    "sync",
    "examples",
    "multicloud",
    "aws",
    "dashboard",
    "guides",
    "simulation",
)


# Simulated worlds are bounded by simulated time and steps (`outlast.testing.scheduler`). Their real duration depends on
# the load of the computer.
STEPWISE = ("simulation", "crash")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort after the shuffle: a long file that is distributed last would keep one worker busy while the others idle."""
    for item in items:
        if item.path.parent.name in STEPWISE:
            item.add_marker(pytest.mark.timeout(0))
    ranks = {name: rank for rank, name in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(item.path.parent.name, len(ranks)))
