"""The trainer library: the stall of `run.save`, compared with one copy of the state in memory; and the import time.

    python benchmarks/trainer.py [--gb 1] [--json]

The state is NumPy arrays (`pip install numpy`; PyTorch is compared if installed). The cases alternate within one run;
median and worst. `copy` is one memcpy of the state into allocated memory, the lower limit of any snapshot.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from measure import Table, print_tables, row


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def stalls(gigabytes: float, rounds: int) -> dict[str, list[float]]:
    import numpy

    import outlast

    folder = tempfile.mkdtemp(prefix="outlast-bench-")
    run = outlast.training(folder=folder, every="1h")
    rng = numpy.random.default_rng(1)
    state = {f"layer{n}": rng.random(int(gigabytes * 1e9 / 64), dtype=numpy.float64) for n in range(8)}
    target = {name: numpy.empty_like(array) for name, array in state.items()}
    found: dict[str, list[float]] = {"copy": [], "save returns": [], "save is on disk": [], "plain write + fsync": []}

    def copy() -> None:
        for name, array in state.items():
            numpy.copyto(target[name], array)

    copy()
    run.save(0, state, wait=True)  # warm up: allocate the memory of both
    for step in range(1, rounds + 1):
        found["copy"].append(timed(copy))
        began = time.perf_counter()
        run.save(step, state)
        found["save returns"].append(time.perf_counter() - began)
        run._saver.wait()
        found["save is on disk"].append(time.perf_counter() - began)
        found["plain write + fsync"].append(timed(lambda: plain(folder, state)))
        if "torch" in sys.modules or _has_torch():
            found.setdefault("torch.save + fsync", []).append(timed(lambda: torch_save(folder, state)))
    found |= {"restore": [], "read the file": []}
    for _ in range(rounds):
        for path in (os.path.join(folder, "plain"), run_file(run.environment.checkpoints)):
            chill(path)
        found["read the file"].append(timed(lambda: read(folder)))
        found["restore"].append(timed(run.restore))
    run.close()
    shutil.rmtree(folder)
    return found


def formats(gigabytes: float, rounds: int) -> dict[str, list[float]]:
    """Compare the default format with pickle: encoding and decoding without the disk."""
    import numpy

    from outlast.trainer import state as states

    rng = numpy.random.default_rng(1)
    arrays = {f"layer{n}": rng.random(int(gigabytes * 1e9 / 64), dtype=numpy.float64) for n in range(8)}
    objects = {"history": [{"step": n, "loss": n / 7, "phase": "train"} for n in range(30_000)]}
    found: dict[str, list[float]] = {}
    for _ in range(rounds * 4):
        for what, state in (("arrays", arrays), ("120,000 small objects", objects)):
            for pickle in (False, True):
                name = f"{what}, {'pickle=True' if pickle else 'plain data'}"
                began = time.perf_counter()
                stream, body, buffers = states.dump(state, pickle=pickle)
                found.setdefault(f"encode {name}", []).append(time.perf_counter() - began)
                views = [buffer.view() for buffer in buffers]
                taken = timed(lambda: states.load(stream, memoryview(body), views, path=""))  # noqa: B023
                found.setdefault(f"decode {name}", []).append(taken)
    return found


def overhead(gigabytes: float, rounds: int) -> dict[str, list[float]]:
    """Return the total cost of saves for a loop: the stall and the slower steps during a save, relative to the interval
    that `auto` chooses from the stall and a mean life of two hours."""
    import numpy

    import outlast

    folder = tempfile.mkdtemp(prefix="outlast-bench-")
    run = outlast.training(folder=folder)
    rng = numpy.random.default_rng(1)
    state = {f"layer{n}": rng.random(int(gigabytes * 1e9 / 64), dtype=numpy.float64) for n in range(8)}
    work = rng.random(400_000)

    def step() -> float:
        return timed(lambda: numpy.sin(work).sum())

    run.save(0, state, wait=True)
    found: dict[str, list[float]] = {"a save costs the loop": [], "auto interval": []}
    for number in range(1, rounds + 1):
        before = [step() for _ in range(200)]
        cost = timed(lambda n=number: run.save(n, state))
        beside = []
        while run._saver.busy:
            beside.append(step())
        after = [step() for _ in range(200)]
        found["a save costs the loop"].append(cost + sum(beside) - len(beside) * statistics.mean(before + after))
        found["auto interval"].append(run.interval_s)
    run.close()
    shutil.rmtree(folder)
    return found


def plain(folder: str, state: dict[str, Any]) -> None:
    with open(os.path.join(folder, "plain"), "wb", buffering=0) as file:
        for array in state.values():
            file.write(memoryview(array).cast("B"))
        os.fsync(file.fileno())


def run_file(checkpoints: str) -> str:
    return os.path.join(checkpoints, max(os.listdir(checkpoints)), "rank-0", "buffers.bin")


def chill(path: str) -> None:
    """Remove a file from the page cache, as on a fresh machine."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(folder: str) -> None:
    """Read into new memory, as a restore does."""
    with open(os.path.join(folder, "plain"), "rb", buffering=0) as file:
        file.readall()


def _has_torch() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.__version__)


def torch_save(folder: str, state: dict[str, Any]) -> None:
    import torch

    path = os.path.join(folder, "torch")
    torch.save({name: torch.from_numpy(array) for name, array in state.items()}, path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def imports(rounds: int = 15) -> dict[str, list[float]]:
    """Measure CPU time, which other programs influence less."""
    codes = {
        "python -c pass": "pass",
        "import outlast": "import outlast",
        "outlast.training": "import outlast; outlast.training",
    }
    found: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(rounds):
        for name, code in codes.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", code], check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            found[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {**imports(), **stalls(options.gb, options.rounds), **overhead(options.gb, options.rounds)}
    encoded = formats(options.gb, options.rounds)
    if options.json:
        print(json.dumps(found | encoded))
        return
    print_tables(table(found, options))
    rows = [row(name, [1000 * value for value in values], "ms") for name, values in encoded.items()]
    print_tables(Table(f"The format of a state: {options.gb:g} GB of arrays, and small objects", rows))


def table(found: dict[str, list[float]], options: argparse.Namespace) -> Table:
    middle = {name: statistics.median(values) for name, values in found.items()}
    waits = middle["save returns"] / middle["copy"]
    share = middle["a save costs the loop"] / middle["auto interval"]
    written = middle["save is on disk"] / middle["plain write + fsync"]
    more_ms = [1000 * (one - middle["python -c pass"]) for one in found["import outlast"]]
    compared: dict[str, dict[str, Any]] = {
        "save returns": {"against": f"{waits:.2f}x one copy", "goal": "<= 1.5x", "met": waits <= 1.5},
        "a save costs the loop": {"against": f"{share:.2%} of the time", "goal": "<= 1 %", "met": share <= 0.01},
        "save is on disk": {"against": f"{written:.2f}x a plain write and fsync"},
    }
    rows = [row(name, values, "s", **compared.get(name, {})) for name, values in found.items()]
    fast = statistics.median(more_ms) <= 30
    rows.append(row("import outlast, over a bare interpreter", more_ms, "ms", goal="<= 30 ms", met=fast))
    return Table(f"The trainer library, a state of {options.gb:g} GB ({options.rounds} times)", rows)


if __name__ == "__main__":
    main()
