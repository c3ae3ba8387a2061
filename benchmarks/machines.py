"""Machines of the local cloud: boot, many at once, stop, deletion, and images of two gigabytes.

    python benchmarks/machines.py [--quick] [--modes root,pidns] [--json]

Images are compared with `cp -a` of the same files, alternating within one run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from statistics import median

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from measure import Table, print_tables, row

from outlast.clouds.cloud import Boot, Range, Requirements
from outlast.clouds.local.cloud import LocalCloud


class Bench:
    """A separate local cloud in one mode."""

    def __init__(self, mode: str) -> None:
        self.root = tempfile.mkdtemp(prefix="outlast-bench-", dir=os.environ.get("TMPDIR"))
        self.cloud = LocalCloud(self.root, mode=mode)
        self.offer = self.cloud.offers(Requirements(cpus=Range(low=1)))[0]
        self._count = 0

    def launch(self, image: str = "", script: str = "echo first line; sleep 100000") -> str:
        self._count += 1
        name = f"m{self._count}"
        self.cloud.launch(self.offer, name, boot=Boot(script=script, image=image), labels={})
        return name

    def until_printed(self, name: str, text: str = "first line", times: int = 1) -> None:
        path = f"{self.root}/machines/{name}/serial.log"
        while True:
            with open(path, encoding="utf-8", errors="replace") as file:
                if file.read().count(text) >= times:
                    return
            time.sleep(0.001)

    def until(self, name: str, status: str) -> None:
        while self.cloud.machine(name).status != status:
            time.sleep(0.001)

    def close(self) -> None:
        for machine in self.cloud.machines():
            self.cloud.delete(machine.name)
        shutil.rmtree(self.root, ignore_errors=True)


def timed(work: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def lives(mode: str, times: int) -> Table:
    """Measure the whole life of machines, one after the other."""
    bench = Bench(mode)
    found: dict[str, list[float]] = {what: [] for what in ("boot", "stop", "start", "kill", "delete")}
    try:
        first = bench.launch()
        bench.until_printed(first)
        for _ in range(times):
            began_s = time.perf_counter()
            name = bench.launch()
            bench.until_printed(name)
            found["boot"].append(time.perf_counter() - began_s)
            bench.until(name, "running")
            found["stop"].append(timed(lambda n=name: bench.cloud.stop(n)))
            began_s = time.perf_counter()
            bench.cloud.start(name)
            bench.until_printed(name, times=2)
            found["start"].append(time.perf_counter() - began_s)
            bench.until(name, "running")
            began_s = time.perf_counter()
            bench.cloud.preempt(name, notice=False)
            bench.until(name, "stopped")
            found["kill"].append(time.perf_counter() - began_s)
            found["delete"].append(timed(lambda n=name: bench.cloud.delete(n)))
    finally:
        bench.close()
    argv = {
        "boot": "launch to the first line of the startup script",
        "stop": "stop",
        "start": "start from the same disk to the first line",
        "kill": "power cut to `stopped`",
        "delete": "delete a stopped machine with its disk",
    }
    return Table(f"One machine, mode {mode} ({times} times)", [row(argv[w], s, "s") for w, s in found.items()])


def crowd(mode: str, count: int, times: int) -> Table:
    """Launch many machines at once, and wait for the first line of the last one."""
    launched, gone = [], []
    for _ in range(times):
        bench = Bench(mode)
        try:
            bench.until_printed(bench.launch())  # warm up: the cloud probes its mode once
            began_s = time.perf_counter()
            threads = [threading.Thread(target=bench.launch) for _ in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for machine in bench.cloud.machines():
                bench.until_printed(machine.name)
            launched.append(time.perf_counter() - began_s)
            gone.append(timed(bench.close))
        finally:
            bench.close()
    rows = [row("all at their first line", launched, "s"), row("all deleted, one after the other", gone, "s")]
    return Table(f"{count} machines at once, mode {mode} ({times} times)", rows)


def images(mode: str, files: int, megabytes: int, times: int) -> Table:
    """Create an image of many files and boot from it, compared with a copy of the same files."""
    bench = Bench(mode)
    size = megabytes * 1_000_000 // files
    fill = (
        f"import os; body = os.urandom({size})\n"
        f"for n in range({files}):\n"
        "    folder = os.path.expanduser(f'~/data/{n // 500}'); os.makedirs(folder, exist_ok=True)\n"
        "    open(f'{folder}/{n}', 'wb').write(body)\n"
    )
    made, booted, bare, copied = [], [], [], []
    try:
        origin = bench.launch(script=f"{sys.executable} -c {fill!r}; echo filled; sleep 100000".replace("\\n", "\n"))
        bench.until_printed(origin, "filled")
        bench.until(origin, "running")
        bench.cloud.stop(origin)
        data = f"{bench.cloud.home_path(origin)}/data"
        for number in range(times):
            copied.append(timed(lambda d=data: subprocess.run(["cp", "-a", d, f"{bench.root}/copy"], check=True)))
            shutil.rmtree(f"{bench.root}/copy")
            made.append(timed(lambda n=number: bench.cloud.snapshot(origin, f"image-{n}")))
            for image, found in (("image-0", booted), ("", bare)):
                began_s = time.perf_counter()
                name = bench.launch(image)
                bench.until_printed(name)
                found.append(time.perf_counter() - began_s)
                bench.cloud.delete(name)
            # A snapshot moves files of the machine into the image.
            data = data if os.path.isdir(data) else next(_folders(bench.root))
    finally:
        bench.close()
    copy_s = median(copied)
    rows = [
        row("cp -a", copied, "s"),
        row("snapshot of the stopped machine", made, "s", against=f"{median(made) / copy_s:.3f}x"),
        row("boot from it, to the first line", booted, "s", against=f"{median(booted) / copy_s:.3f}x"),
        row("boot from `base`, to the first line", bare, "s"),
    ]
    return Table(
        f"An image of {megabytes} MB in {files} files, mode {mode} ({times} times)", rows, "Ratios: to `cp -a`."
    )


def _folders(root: str) -> Iterator[str]:
    for folder, names, _ in os.walk(f"{root}/layers"):
        if "data" in names:
            yield f"{folder}/data"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and smaller images")
    parser.add_argument("--modes", default="", help="comma-separated; every mode that works here")
    options = parser.parse_args()
    working = [mode for mode, why in LocalCloud(tempfile.mkdtemp()).modes().items() if not why]
    print(f"load {os.getloadavg()[0]:.1f}", flush=True)
    for mode in options.modes.split(",") if options.modes else working:
        print_tables(lives(mode, 3 if options.quick else 15))
        print_tables(crowd(mode, 20, 1 if options.quick else 3))
        files, megabytes = (2_000, 200) if options.quick else (20_000, 2_000)
        print_tables(images(mode, files, megabytes, 2 if options.quick else 3))


if __name__ == "__main__":
    main()
