"""A workspace whose runs end as the test decides: real driver and stories, without machines or a supervisor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from outlast.clouds.local.cloud import LocalCloud
from outlast.code.record import CodeRecord
from outlast.errors import Exists, Missing
from outlast.runs import events as run_events
from outlast.runs.metrics import Row, line_of, write_piece
from outlast.spec.parse import parse
from outlast.store.bucket import Entry
from outlast.sweep import events as ev
from outlast.sweep.driver import Driver
from outlast.sweep.record import Sweep, SweepStory, reserve
from outlast.sweep.state import SweepState
from outlast.sweep.trial import with_flags
from outlast.workspace import Workspace


class Died(BaseException):
    """The writing process died."""


class Memory:
    """A bucket in memory whose writer can die before or after any write, while `mortal` is set."""

    url = "memory://"

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self.writes = 0
        self.mortal = False
        self.dies_at = -1
        self._ticks = itertools.count(1)

    def _write(self, act: Callable[[], None]) -> None:
        """Count two points per write: before and after it."""
        for point in (0, 1):
            self.writes += self.mortal
            if self.mortal and self.writes == self.dies_at:
                raise Died
            if not point:
                act()

    def get(self, key: str) -> bytes:
        if key not in self.bodies:
            raise Missing(key)
        return self.bodies[key]

    def put(self, key: str, body: bytes, *, durable: bool = False) -> None:
        self._write(lambda: self.bodies.__setitem__(key, body))

    def now(self, key: str) -> float:
        self.put(key, b"")
        return float(next(self._ticks))

    def create(self, key: str, body: bytes, *, durable: bool = True) -> None:
        if key in self.bodies:
            raise Exists(key)
        self._write(lambda: self.bodies.__setitem__(key, body))

    def head(self, key: str) -> Entry:
        return Entry(key, len(self.get(key)), 0.0)

    def list(self, prefix: str, *, after: str = "", limit: int = 0) -> Iterator[Entry]:
        keys = [key for key in sorted(self.bodies) if key.startswith(prefix) and key > after]
        for key in keys[: limit or None]:
            yield Entry(key, len(self.bodies[key]), 0.0)

    def children(self, prefix: str) -> Sequence[str]:
        return sorted({key.removeprefix(prefix).split("/")[0] for key in self.bodies if key.startswith(prefix)})

    def delete(self, key: str) -> None:
        self._write(lambda: self.bodies.pop(key, None) and None)


class Computer:
    """A user's sweep, and control over its runs."""

    def __init__(self, **search: Any) -> None:
        self.bucket = Memory()
        self.workspace = Workspace(self.bucket)  # type: ignore[arg-type]
        table = {"name": "try", "command": ["python", "train.py"], "sweep": {"goal": "min:loss", **search}}
        spec = with_flags(parse(table))
        assert spec.sweep is not None
        self.sweep: Sweep = reserve(self.workspace, spec, CodeRecord(), who="me", version="", path="")
        opened = ev.Opened(who="me", trials=spec.sweep.trials)
        SweepStory(self.bucket, self.sweep.name).append_or_raise(opened, nonce="opened")  # type: ignore[arg-type]

    @property
    def story(self) -> SweepStory:
        found = SweepStory(self.bucket, self.sweep.name)  # type: ignore[arg-type]
        found.refresh()
        return found

    @property
    def state(self) -> SweepState:
        return self.story.state

    def driver(self) -> Driver:
        return Driver(self.workspace, {"local": LocalCloud()}, self.sweep, environment={})

    def end(self, run: str, metrics: Mapping[str, Sequence[float]] | None = None, *, failed: str = "") -> None:
        """Write the events and metrics of a run that logs these curves and finishes, or fails."""
        story = self.workspace.story(run)
        story.refresh()
        if not story.state.attempts:
            self.start(run)
        self.log(run, metrics or {})
        event: Any = run_events.Failed(why=failed) if failed else run_events.Finished(attempt=1)
        self.workspace.story(run).append_or_raise(event, nonce=f"{run} ends")

    def start(self, run: str) -> None:
        placed = run_events.Placed(
            attempt=1, cloud="local", region="r", zone="z", type="t", spot=True, price_usd_per_hour=1.0, machine="m"
        )
        for event in (placed, run_events.Started(attempt=1, at=1.0)):
            self.workspace.story(run).append_or_raise(event, nonce=f"{run} {type(event).__name__}")

    def log(self, run: str, metrics: Mapping[str, Sequence[float]]) -> None:
        length = max(map(len, metrics.values()), default=0)
        rows = [
            Row(n, 0.0, {name: curve[n] for name, curve in metrics.items() if n < len(curve)}) for n in range(length)
        ]
        number = len(list(self.bucket.list(f"runs/{run}/metrics/1/"))) + 1
        write_piece(self.bucket, run, 1, number, b"".join(map(line_of, rows)))  # type: ignore[arg-type]

    def play(self, loss: Callable[[dict[str, Any]], float], driver: Driver | None = None) -> SweepState:
        """Drive until the sweep is over; every submitted run ends with this loss."""
        driver = driver or self.driver()
        while not self.state.over:
            self.bucket.mortal = True
            try:
                driver.round()
            finally:
                self.bucket.mortal = False
            for trial in self.state.open:
                submitted = f"runs/{trial.run}/story/00000001.json" in self.bucket.bodies
                if submitted and not self.workspace.story(trial.run).refresh().ending:
                    self.end(trial.run, {"loss": [loss(trial.params)]})
        return self.state
