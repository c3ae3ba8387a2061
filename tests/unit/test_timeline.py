"""The timeline of a run in the terminal: one line per attempt, and one per node of a distributed run."""

from __future__ import annotations

import click

from outlast.cli.shared.timeline import legend, timeline
from outlast.runs import events as ev
from outlast.runs.state import RunState, fold

PLACE = {"cloud": "local", "region": "r", "zone": "z", "type": "t", "spot": True, "price_usd_per_hour": 1.0}


def placed(attempt: int, *machines: str, at: float) -> ev.Placed:
    members = machines if len(machines) > 1 else ()
    return ev.Placed(attempt=attempt, machine=machines[0], members=members, at=at, **PLACE)  # type: ignore[arg-type]


def lines(state: RunState) -> list[str]:
    return click.unstyle(timeline(state, 200.0, width=60)).splitlines()


def story(first: tuple[str, ...], second: tuple[str, ...]) -> RunState:
    return fold(
        [
            ev.Submitted(at=100.0),
            placed(1, *first, at=100.0),
            ev.Started(attempt=1, at=110.0),
            ev.Saved(attempt=1, checkpoint="c", at=140.0),
            ev.Noticed(attempt=1, node=len(first) - 1, why="preempted", grace_s=30.0, at=150.0),
            placed(2, *second, at=151.0),
            ev.Stopped(attempt=1, outcome="preempted", at=160.0),
            ev.Started(attempt=2, at=170.0),
            ev.Finished(attempt=2, at=200.0),
        ]
    )


def test_each_node_of_a_distributed_run_has_a_line() -> None:
    state = story(("a", "b"), ("a", "c"))
    first, second, kept, lost, _axis = lines(state)
    assert first.split()[0] == "1"
    assert second.split()[0] == "2"
    # The survivor waits for the replacement, which boots.
    assert kept.startswith("node 0 ····")
    assert "▒-" in kept
    assert "-█" in kept
    assert lost.startswith("node 1 ····")
    assert "✗·" in lost
    assert "·█" in lost
    assert "-" not in lost
    assert "waiting for the other nodes" in click.unstyle(legend(state))


def test_a_run_on_one_machine_has_no_lines_of_nodes() -> None:
    state = story(("a",), ("b",))
    assert len(lines(state)) == 3
    assert "nodes" not in click.unstyle(legend(state))
