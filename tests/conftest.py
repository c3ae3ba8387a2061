"""The order of the whole suite: what takes long comes first, in random order, and the many short ones fill the gaps."""

from __future__ import annotations

import signal

import pytest

# A shell that puts us into the background has us ignore Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# What `nohup` starts ignores the end of its terminal, and so would they. A handler is not inherited and does as little.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# Folders by how long the longest of their files takes; the rest takes seconds.
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


# Simulated worlds are bounded by their own time and steps (`outlast.testing.scheduler`). The real time that they take
# depends on how busy the computer is.
STEPWISE = ("simulation", "crash")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After the shuffle. A long file that is handed out last keeps one process busy while the others have nothing."""
    for item in items:
        if item.path.parent.name in STEPWISE:
            item.add_marker(pytest.mark.timeout(0))
    ranks = {name: rank for rank, name in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(item.path.parent.name, len(ranks)))
