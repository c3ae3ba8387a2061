"""Checkpoints of one large file: a first commit, a second commit and a restore, compared with `cp`.

    .venv/bin/python benchmarks/checkpoint.py [--quick] [--json]

The cases of one table alternate within one run. A separate process commits, so that its memory can be measured.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from measure import PYTHON, Home, Row, Table, home, print_tables, row

from outlast.agent.attempt import AttemptWriter
from outlast.agent.checkpoint.checkpointer import Checkpointer
from outlast.agent.checkpoint.snapshot import take_snapshot
from outlast.agent.paths import paths_for
from outlast.code.record import CodeRecord
from outlast.runs import events as ev
from outlast.runs.checkpoints import restore
from outlast.spec.spec import CheckpointSpec, Spec
from outlast.store.folder import FolderBucket
from outlast.workspace import Workspace

_BYTES = 1_000_000_000
_CHANGED = 0.05


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _settle() -> None:
    """Write all buffered data of the previous case to the disk."""
    os.sync()


def _chill(path: str) -> None:
    """Remove a file from the page cache."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Bench:
    """A run whose attempt 1 has started, a checkpoint folder with one file, and the agent's checkpointer."""

    def __init__(self, where: Home, size: int) -> None:
        self.where = where
        self.size = size
        self.folder = os.path.join(where.root, "checkpoints")
        self.path = os.path.join(self.folder, "model.pt")
        self.copy = os.path.join(where.root, "copy.pt")
        self.back = os.path.join(where.root, "back")
        self.rng = random.Random(4)
        os.makedirs(self.folder)
        self.bucket = Counting(where.environment["OUTLAST_WORKSPACE"])
        self.workspace = Workspace(self.bucket)
        self.run = self.workspace.reserve(Spec(name="saver", command=("true",)), CodeRecord(), who="", version="0").run
        placed = ev.Placed(
            attempt=1, cloud="local", region="here", zone="here-a", type="small", spot=True, price_usd_per_hour=0.01,
            on_demand_usd_per_hour=0.03, machine=self.workspace.machine_name(self.run, 1),
        )  # fmt: skip
        for event in (ev.Submitted(), placed, ev.Started(attempt=1)):
            self.workspace.story(self.run).append_or_raise(event, nonce=self.workspace.ids())
        self.saver = saver(self.workspace, self.run, where.root, self.folder)

    def fill(self) -> None:
        with open(self.path, "wb") as file:
            for at in range(0, self.size, 1 << 24):
                file.write(self.rng.randbytes(min(1 << 24, self.size - at)))
        _settle()

    def change(self, places: int) -> None:
        """Change a share of the file, in several random places."""
        piece = int(self.size * _CHANGED / places)
        with open(self.path, "r+b") as file:
            for number in range(places):
                room = self.size // places
                file.seek(number * room + self.rng.randrange(room - piece))
                file.write(self.rng.randbytes(piece))
        _settle()

    def commit(self) -> float:
        self.bucket.written = 0
        took = _timed(lambda: self.saver.commit(take_snapshot(self.folder)))
        assert self.saver.committer.committed is not None
        assert self.saver.committer.committed.same(take_snapshot(self.folder))
        return took

    def cp(self) -> float:
        return self._copied(["cp", self.path, self.copy], sync=True)

    def cp_back(self) -> float:
        _chill(self.path)
        return self._copied(["cp", self.path, self.copy], sync=False)

    def _copied(self, argv: list[str], *, sync: bool) -> float:
        _settle()
        began = time.perf_counter()
        subprocess.run(argv, check=True)
        if sync:
            with open(self.copy, "rb") as file:
                os.fsync(file.fileno())
        took = time.perf_counter() - began
        os.unlink(self.copy)
        return took

    def cat(self) -> float:
        """Restore a file that is in no cache, as on a fresh machine."""
        _chill(self.path)
        return _timed(lambda: subprocess.run(["cat", self.path], check=True, stdout=subprocess.DEVNULL))

    def hash(self) -> float:
        """Hash on one core, the lower limit of a commit."""
        with open(self.path, "rb") as file:
            return _timed(lambda: hashlib.file_digest(file, "sha256"))

    def restore(self) -> float:
        shutil.rmtree(self.back, ignore_errors=True)
        _settle()
        for entry in self.bucket.list(f"runs/{self.run}/parts/"):
            _chill(os.path.join(self.bucket.root, entry.key))
        checkpoints = list(reversed(self.workspace.story(self.run).refresh().checkpoints))
        took = _timed(lambda: restore(self.bucket, self.run, checkpoints, self.back))
        subprocess.run(["cmp", self.path, os.path.join(self.back, "model.pt")], check=True)
        return took

    def memory_mb(self) -> float:
        """Return the additional memory of a commit in a fresh process."""
        arguments = [self.bucket.url, self.run, self.where.root, self.folder]
        done = subprocess.run([PYTHON, __file__, "--commit", *arguments], check=True, capture_output=True)
        return float(done.stdout)


class Counting(FolderBucket):
    """A folder that counts the written bytes of parts."""

    written = 0

    def write(self, key: str, body: bytes | memoryview) -> None:
        self.written += len(body)
        super().write(key, body)


def saver(workspace: Workspace, run: str, root: str, folder: str) -> Checkpointer:
    attempt = AttemptWriter(workspace, run, 1, clock=time.time, ids=workspace.ids)
    place = msgspec.structs.replace(paths_for(workspace.request(run), root, cache=""), checkpoints=folder)
    return Checkpointer(attempt, paths=place, rule=CheckpointSpec(keep=2), report=print)


def commit_alone(url: str, run: str, root: str, folder: str) -> None:
    """Return the peak over the base in MB, measured in a separate process."""
    own = saver(Workspace(FolderBucket(url)), run, root, folder)
    own.committer._count = time.time_ns() % 90_000 + 1000  # distinct names
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    base = _peak_mb()
    assert own.commit(take_snapshot(folder))
    print(_peak_mb() - base)


def _peak_mb() -> float:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024 / 1e6


def measured(times: int, size: int) -> list[Table]:
    found: dict[str, list[float]] = {}

    def note(what: str, value: float) -> None:
        found.setdefault(what, []).append(value)

    with home() as where:
        bench = Bench(where, size)
        bench.fill()
        bench.commit()
        for _ in range(times):
            bench.fill()
            note("cp", bench.cp())
            _settle()
            note("commit", bench.commit())
            note("sha256", bench.hash())
            for places in (1, 5):
                bench.change(places)
                note(f"second {places}", bench.commit())
                note(f"bytes {places}", 100 * bench.bucket.written / size)
            note("cat", bench.cat())
            note("cp back", bench.cp_back())
            note("restore", bench.restore())
        for _ in range(2):
            bench.fill()
            note("memory", bench.memory_mb())
    return [_saving(found, size), _restoring(found, size)]


def _ratios(found: dict[str, list[float]], ours: str, theirs: str) -> list[float]:
    return [b / a for a, b in zip(found[ours], found[theirs], strict=True)]


def _speed(found: dict[str, list[float]], ours: str, theirs: str) -> str:
    ratios = sorted(_ratios(found, ours, theirs))
    return f"{ratios[len(ratios) // 2]:.2f}x the speed of {theirs}, worst {ratios[0]:.2f}x"


def _ms(what: str, samples: list[float], **rest: object) -> Row:
    return row(what, [1e3 * sample for sample in samples], "ms", **rest)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _saving(found: dict[str, list[float]], size: int) -> Table:
    fast = _median(_ratios(found, "commit", "cp")) >= 0.8
    rows = [
        _ms("cp and fsync", found["cp"]),
        _ms("commit", found["commit"], against=_speed(found, "commit", "cp"), goal=">= 0.8x", met=fast),
        _ms("for scale: sha256 of it on one core", found["sha256"]),
    ]
    for places in (1, 5):
        said = "in one place" if places == 1 else f"in {places} places"
        rows.append(_ms(f"second commit, 5 % changed {said}", found[f"second {places}"]))
        sent = found[f"bytes {places}"]
        # With --quick, a part is a fiftieth of the file, so a change in five places cannot meet the goal.
        goal = {"goal": "<= 10 %", "met": max(sent) <= 10} if size == _BYTES else {}
        rows.append(row("... bytes uploaded", sent, "%", **goal))
    memory = found["memory"]
    rows.append(row("memory of the commit, over the base", memory, "MB", goal="< 200 MB", met=max(memory) < 200))
    return Table(f"Commit of one file of {size / 1e9:g} GB to a folder ({len(found['cp'])} times)", rows)


def _restoring(found: dict[str, list[float]], size: int) -> Table:
    rows = [
        _ms("cat > /dev/null", found["cat"]),
        _ms("cp, without fsync", found["cp back"]),
        _ms("restore", found["restore"], against=_speed(found, "restore", "cp back")),
    ]
    return Table(f"Restore of one file of {size / 1e9:g} GB from a folder ({len(found['cat'])} times)", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a fifth of the size, fewer repetitions")
    parser.add_argument("--times", type=int, default=0, help="repetitions")
    parser.add_argument("--json", action="store_true", help="data instead of tables")
    parser.add_argument("--commit", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.commit:
        commit_alone(*asked.commit)
        return
    tables = measured(asked.times or (3 if asked.quick else 7), _BYTES // 5 if asked.quick else _BYTES)
    if asked.json:
        sys.stdout.buffer.write(msgspec.json.encode(tables) + b"\n")
    else:
        print_tables(*tables)


if __name__ == "__main__":
    main()
