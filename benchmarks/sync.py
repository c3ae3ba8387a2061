"""Sync: the time from a save to its arrival, and the first copy of 5,000 files; compared with `lsyncd` and rsync.

    .venv/bin/python benchmarks/sync.py [--quick] [--only saves|first] [--json]

The machine is one of the local cloud, reached by ssh. Files arrive in a folder that it shares with this
computer, so that arrivals can be observed directly.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from measure import OUTLAST, Home, Row, Table, home, print_tables, row

from outlast.clouds.cloud import Boot, HostAccess, Requirements
from outlast.machines import sshfiles
from outlast.machines.ssh import Link

_FILES = 5000
_BYTES = 8000
_LSYNCD = """\
settings {{ nodaemon = true, logfile = "{log}", statusFile = "{log}.status" }}
sync {{ default.rsync, source = "{source}", target = "{target}", delay = {delay},
       rsync = {{ archive = true, rsh = "{shell}" }} }}
"""


def make_tree(folder: Path, *, files: int) -> None:
    """Create code and small data; a tenth of it is incompressible."""
    rng = random.Random(7)
    line = b"the quick brown fox jumps over the lazy dog\n"
    for number in range(files):
        path = folder / f"part{number % 50}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(_BYTES // 10) + line * (_BYTES // len(line)))


class Bench:
    """One machine, and a folder that both sides share."""

    def __init__(self, where: Home) -> None:
        self.home = where
        where.environment["OUTLAST_SSH_DIR"] = os.environ["OUTLAST_SSH_DIR"] = os.path.join(where.root, "ssh")
        self.there = Path(where.root) / "there"
        self.there.mkdir()
        boot = Boot(script="#!/bin/sh\nexec sleep 100000\n", host=HostAccess(writable=(str(self.there),)))
        where.cloud.launch(where.cloud.offers(Requirements())[0], "dev", boot=boot, labels={})
        while where.cloud.machine("dev").status != "running":
            time.sleep(0.02)
        self.link = Link(where.cloud, "dev")
        self.link.refresh()
        self.shell = self.link.rsync_shell()

    def first_copies(self, *, times: int) -> list[Row]:
        source = Path(self.home.root) / "first"
        make_tree(source, files=_FILES)
        plain: list[float] = []
        ours: list[float] = []
        for turn in range(times + 1):
            target = self.there / f"plain{turn}"
            one = self._timed(["rsync", "-a", "-e", self.shell, f"{source}/", f"{self.link.host}:{target}/"])
            folder = self.there / f"ours{turn}"
            two = self._timed([OUTLAST, "sync", str(source), f"dev:{folder}"])
            for made in (target, folder):
                assert sum(1 for path in made.rglob("*.py")) == _FILES, made
                shutil.rmtree(made)
            if turn:  # the first turn warms up the disk and the connection
                plain.append(one)
                ours.append(two)
        shutil.rmtree(source)
        ratio = statistics.median(ours) / statistics.median(plain)
        files = f"first copy, {_FILES:,} files"
        return [
            row(f"{files}, `rsync -a`", plain, "s"),
            row(f"{files}, `outlast sync`", ours, "s", against=f"{ratio:.2f}x", goal="<= 1.2x rsync", met=ratio <= 1.2),
        ]

    def _timed(self, argv: list[str]) -> float:
        os.sync()
        return self.home.time_s(argv)

    def saves(self, *, times: int) -> list[Row]:
        with contextlib.ExitStack() as stack:
            places = {"outlast sync": stack.enter_context(self._ours())}
            if shutil.which("lsyncd"):
                places["lsyncd, delay 0, shared connection"] = stack.enter_context(self._lsyncd(delay=0))
                places["lsyncd, delay 1, shared connection"] = stack.enter_context(self._lsyncd(delay=1))
            else:
                print("lsyncd is not here (`apt-get install lsyncd`): its rows are left out")
            found: dict[str, list[float]] = {name: [] for name in places}
            for turn in range(times + 2):
                for name, (source, target) in places.items():
                    took = self._save(source, target, turn)
                    if turn >= 2:
                        found[name].append(took * 1e3)
        best = min((statistics.median(took) for name, took in found.items() if "lsyncd" in name), default=0.0)
        rows = []
        for name, took in found.items():
            mine = name == "outlast sync"
            median, p95 = statistics.median(took), sorted(took)[int(len(took) * 0.95)]
            rows.append(
                row(
                    f"save to arrival, {name}",
                    took,
                    "ms",
                    against=f"p95 {p95:.1f} ms",
                    goal="ahead of lsyncd's best" if mine and best else "",
                    met=median < best if mine and best else None,
                )
            )
        return rows

    def _save(self, source: Path, target: Path, turn: int) -> float:
        path = f"part{turn % 50}/module{turn % 50}.py"
        body = f"turn = {turn}  # {random.random()}\n".encode()
        time.sleep(random.uniform(0.15, 0.25))
        began = time.perf_counter()
        (source / path).write_bytes(body)
        while True:
            with contextlib.suppress(OSError):
                if (target / path).read_bytes() == body:
                    return time.perf_counter() - began
            assert time.perf_counter() < began + 30, f"{path} did not arrive in {target}"
            time.sleep(0.0003)

    @contextlib.contextmanager
    def _ours(self) -> Iterator[tuple[Path, Path]]:
        source, target = self._pair("ours")
        process = self.home.start([OUTLAST, "sync", str(source), f"dev:{target}", "--watch", "--json"],
                                  stdout=subprocess.PIPE)  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if b'"copied"' in line:
                break
        try:
            yield source, target
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()

    @contextlib.contextmanager
    def _lsyncd(self, *, delay: int) -> Iterator[tuple[Path, Path]]:
        source, target = self._pair(f"lsyncd{delay}")
        config = Path(self.home.root) / f"lsyncd{delay}.lua"
        config.write_text(
            _LSYNCD.format(
                log=f"{config}.log",
                source=source,
                target=f"{self.link.host}:{target}",
                delay=delay,
                shell=f"{sshfiles.need('ssh')} -F {sshfiles.config_path()}",
            )
        )
        process = self.home.start(["lsyncd", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while sum(1 for _ in target.rglob("*.py")) < _FILES:
            assert process.poll() is None, Path(f"{config}.log").read_text()
            time.sleep(0.2)
        try:
            yield source, target
        finally:
            process.terminate()
            process.wait()

    def _pair(self, name: str) -> tuple[Path, Path]:
        source, target = Path(self.home.root) / name, self.there / name
        make_tree(source, files=_FILES)
        target.mkdir()
        return source, target


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", action="store_true", help="data")
    parser.add_argument("--only", choices=["saves", "first"], help="one of the two")
    argv = parser.parse_args()
    with home() as where:
        bench = Bench(where)
        try:
            rows = [] if argv.only == "first" else bench.saves(times=10 if argv.quick else 50)
            rows += [] if argv.only == "saves" else bench.first_copies(times=2 if argv.quick else 5)
        finally:
            bench.link.close()
    load = os.getloadavg()[0]
    table = Table(f"Sync over ssh, a tree of {_FILES:,} files (load {load:.1f})", rows)
    if argv.json:
        print(msgspec.json.encode(table).decode())
    else:
        print_tables(table)


if __name__ == "__main__":
    main()
