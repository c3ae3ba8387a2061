"""Saves of a state by the trainer library, `torch.save`, PyTorch's DCP and Orbax: how long the training loop waits.

    VENV/bin/python benchmarks/trainer_peers.py [--gb 1] [--rounds 3] [--json]

`pip install torch==2.13.0 jax orbax-checkpoint` into VENV beside outlast; a library that is missing is left out. Each
round runs every library in a separate process, one after the other. Such a process saves once, then twice more with a
state that changed everywhere, and with outlast twice more with one that changed in 5 % of its bytes. Before each save
it copies the state in memory on one core: the ratio to that copy depends less on the load than times do.

JAX's arrays cannot change, so Orbax need not copy those that are in memory already; it copies NumPy's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from measure import Row, Table, print_tables, row

# Each with the module that it needs.
LIBRARIES = {
    "outlast": "torch",
    "torch.save": "torch",
    "DCP async_save": "torch",
    "Orbax async, NumPy": "orbax.checkpoint",
    "Orbax async, JAX": "orbax.checkpoint",
}
_LAYERS = 8
_SAVES = 3
# Saves a state; returns when the loop may go on. The result waits until the state is on disk.
Save = Callable[[int, dict[str, Any]], Callable[[], object]]


def outlast_save(folder: str) -> Save:
    import outlast

    run = outlast.training(folder=folder, every="1h")

    def save(step: int, state: dict[str, Any]) -> Callable[[], object]:
        run.save(step, state)
        return run._saver.wait

    return save


def torch_save(folder: str) -> Save:
    import torch

    def save(step: int, state: dict[str, Any]) -> Callable[[], object]:
        path = os.path.join(folder, f"{step}.pt")
        torch.save(state, path)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        return lambda: None

    return save


def dcp_save(folder: str) -> Save:
    import torch.distributed.checkpoint as dcp

    def save(step: int, state: dict[str, Any]) -> Callable[[], object]:
        saved: Any = dcp.async_save(state, checkpoint_id=os.path.join(folder, str(step)))
        return lambda: saved.result()

    return save


def orbax_save(folder: str) -> Save:
    import orbax.checkpoint as ocp

    saver = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())

    def save(step: int, state: dict[str, Any]) -> Callable[[], object]:
        saver.save(os.path.join(folder, str(step)), args=ocp.args.PyTreeSave(state))
        return lambda: saver.wait_until_finished()

    return save


def random_state(library: str, gigabytes: float) -> dict[str, Any]:
    import numpy

    rng = numpy.random.default_rng(1)
    size = int(gigabytes * 1e9 / _LAYERS / 4)
    state: dict[str, Any] = {}
    for n in range(_LAYERS):
        array = numpy.frombuffer(bytearray(rng.bytes(size * 4)), dtype=numpy.int32)
        state[f"layer{n}"] = array
        if library == "Orbax async, JAX":
            import jax

            state[f"layer{n}"] = jax.numpy.array(array)
        elif LIBRARIES[library] == "torch":
            import torch

            state[f"layer{n}"] = torch.from_numpy(array)
    return state


def changed(state: dict[str, Any], share: float) -> dict[str, Any]:
    """Return the state with this share of its bytes changed, in one place of it."""
    count = int(share * _LAYERS * len(state["layer0"]))
    for name, array in state.items():
        part = min(count, len(array))
        if hasattr(array, "at"):
            state[name] = array.at[:part].add(1).block_until_ready() if part else array
        else:
            array[:part] += 1
        count -= part
    return state


def one_process(library: str, gigabytes: float) -> dict[str, list[float]]:
    """Measure one library. `…, copies` are ratios to the copy before the save."""
    import numpy

    folder = tempfile.mkdtemp(prefix="outlast-bench-")
    save = {
        "outlast": outlast_save,
        "torch.save": torch_save,
        "DCP async_save": dcp_save,
        "Orbax async, NumPy": orbax_save,
        "Orbax async, JAX": orbax_save,
    }[library](folder)
    state = random_state(library, gigabytes)
    target = numpy.empty_like(numpy.asarray(state["layer0"]))

    def copy() -> float:
        began = time.perf_counter()
        for array in state.values():
            numpy.copyto(target, numpy.asarray(array))
        return time.perf_counter() - began

    copy()
    found: dict[str, list[float]] = {}

    def measure(step: int, kind: str) -> None:
        one = copy()
        began = time.perf_counter()
        wait = save(step, state)
        stall = time.perf_counter() - began
        wait()
        disk = time.perf_counter() - began
        for name, value in (("copy", one), ("stall", stall), ("stall, copies", stall / one), ("disk", disk)):
            found.setdefault(f"{kind} {name}", []).append(value)
        shutil.rmtree(os.path.join(folder, str(step - 1)), ignore_errors=True)

    try:
        for step in range(_SAVES):
            measure(step, "later" if step else "first")
            state = changed(state, 1.0)
        if library == "outlast":
            measure(_SAVES, "later")
            for step in (_SAVES + 1, _SAVES + 2):
                state = changed(state, 0.05)
                measure(step, "5 %")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _installed(library: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import {LIBRARIES[library]}"], capture_output=True).returncode == 0


def rounds(gigabytes: float, times: int, only: list[str]) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    libraries = [library for library in only or LIBRARIES if _installed(library)]
    for _ in range(times):
        for library in libraries:
            argv = [sys.executable, os.path.abspath(__file__), "--measure", library, "--gb", str(gigabytes)]
            done = subprocess.run(argv, check=True, stdout=subprocess.PIPE)
            measured = json.loads(done.stdout.splitlines()[-1])
            print(f"{library}: {measured}", file=sys.stderr, flush=True)
            for name, values in measured.items():
                found.setdefault(library, {}).setdefault(name, []).extend(values)
    return found


def table(found: dict[str, dict[str, list[float]]], gigabytes: float) -> Table:
    rows: list[Row] = []
    middle = statistics.median
    own = found["outlast"]
    for library, values in found.items():
        ratio = middle(values["later stall, copies"])
        goal: dict[str, Any] = {"against": f"{ratio:.2f}x one copy"}
        if library == "outlast":
            goal |= {
                "goal": "<= 1.2x, and least",
                "met": ratio <= 1.2
                and all(
                    ratio < middle(other["later stall, copies"]) for name, other in found.items() if name != library
                ),
            }
        rows.append(row(f"{library}: the loop waits", values["later stall"], "s", **goal))
        first = middle(values["first stall, copies"])
        rows.append(row("... for the first save", values["first stall"], "s", against=f"{first:.2f}x one copy"))
        rows.append(row("... until it is on disk", values["later disk"], "s"))
    ratio = middle(own["later disk"]) / middle(own["5 % disk"])
    faster = {"against": f"{ratio:.1f}x as fast", "goal": ">= 3x", "met": ratio >= 3}
    rows.append(row("outlast, 5 % changed: until it is on disk", own["5 % disk"], "s", **faster))
    stall = middle(own["5 % stall, copies"])
    rows.append(row("... the loop waits", own["5 % stall"], "s", against=f"{stall:.2f}x one copy"))
    return Table(f"Saves of a state of {gigabytes:g} GB", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(LIBRARIES), default=[])
    parser.add_argument("--measure", choices=list(LIBRARIES), help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(one_process(options.measure, options.gb)))
        return
    found = rounds(options.gb, options.rounds, options.only)
    if options.json:
        print(json.dumps(found))
    else:
        print_tables(table(found, options.gb))


if __name__ == "__main__":
    main()
