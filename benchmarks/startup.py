"""Duration of short commands, compared with a bare interpreter and with importing their dependencies."""

from __future__ import annotations

import resource
import statistics
from collections.abc import Callable, Mapping

from measure import OUTLAST, PYTHON, Home, Row, Table, home, interleaved, row

from outlast.code.record import CodeRecord
from outlast.runs import events as ev
from outlast.spec.spec import Spec
from outlast.store.lease import Lease
from outlast.workspace import Heartbeat

_GOAL = 4.0
_BARE = "python -c pass"
# The lower limit of `ps` with these two packages: no garbage collection while importing, no clean-up at exit.
_FLOOR = "import gc; gc.set_threshold(50_000); import click, msgspec, os; os._exit(0)"


def write_run(home: Home, name: str, *, ended: bool) -> None:
    """Write a realistic story of a run, without machines."""
    workspace = home.workspace
    spec = Spec(name=name, command=("true",))
    run = workspace.reserve(spec, CodeRecord(), who="bench", version="0").run
    now = workspace.clock()
    events: list[ev.Event] = [
        ev.Submitted(who="bench", at=now),
        ev.Placed(
            attempt=1, cloud="local", region="here", zone="here-a", type="small", spot=True, price_usd_per_hour=0.01,
            on_demand_usd_per_hour=0.03, machine=workspace.machine_name(run, 1), at=now,
        ),
        ev.Started(attempt=1, at=now),
        ev.Saved(attempt=1, checkpoint="0001-00001", step=1, bytes=1000, at=now),
    ]  # fmt: skip
    if ended:
        events += [
            ev.Finished(attempt=1, exit_code=0, at=now),
            ev.Released(attempt=1, cost_usd=0.01, seconds=9, at=now),
        ]
    story = workspace.story(run)
    for event in events:
        story.append_or_raise(event, nonce=workspace.ids())
    if not ended:
        workspace.write_heartbeat(run, Heartbeat(attempt=1, phase="running", step=1, length=len(events)))


def measure(times: int) -> Table:
    cases: dict[str, Callable[[], float]] = {}
    spent: dict[str, list[float]] = {}

    def add(what: str, where: Home, *argv: str) -> None:
        def timed() -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            took = where.time_s(argv)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.setdefault(what, []).append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            return took

        cases[what] = timed

    with home() as empty, home() as live, home() as ended:
        write_run(live, "live", ended=False)
        Lease(live.workspace.bucket, "supervisor", who="elsewhere:1", ttl_s=6.0).hold()
        for _ in range(100):
            write_run(ended, "old", ended=True)
        add(_BARE, empty, PYTHON, "-c", "pass")
        add("python -c 'import msgspec'", empty, PYTHON, "-c", "import msgspec")
        add("python -c 'import click, msgspec'", empty, PYTHON, "-c", "import click, msgspec")
        add("... the same, exiting as outlast does", empty, PYTHON, "-c", _FLOOR)
        add("python -c 'import outlast'", empty, PYTHON, "-c", "import outlast")
        add("outlast --help", empty, OUTLAST, "--help")
        add("outlast ps, empty workspace", empty, OUTLAST, "ps")
        add("outlast ps, 1 live run", live, OUTLAST, "ps")
        add("outlast ps --all, 100 ended runs", ended, OUTLAST, "ps", "--all")
        found = interleaved(cases, times=times)
    return Table(
        f"Start of short commands ({times} times each, interleaved)",
        [_row(what, found, spent) for what in found],
        "Peer: SkyPilot 0.14.1 needs 2.3-2.8 s of CPU for `sky --help`, about 130x a bare interpreter, and 3.8-4.7 s "
        "for `sky status` with nothing running.",
    )


def _row(what: str, found: Mapping[str, list[float]], spent: Mapping[str, list[float]]) -> Row:
    ratio, processor = (statistics.median(of[what]) / statistics.median(of[_BARE]) for of in (found, spent))
    against = f"{ratio:.2f}x bare, by processor time {processor:.2f}x"
    milliseconds = [1e3 * sample for sample in found[what]]
    if not what.startswith("outlast"):
        return row(what, milliseconds, "ms", against=against)
    return row(what, milliseconds, "ms", against=against, goal=f"<= {_GOAL:g}x", met=ratio <= _GOAL)
