"""A distributed training without a framework: all ranks add up numbers in lockstep, over sockets, as DDP does.

`python lockstep.py STEPS PACE_S LAYOUT`; layouts: `shards` (each rank saves its shard), `first` (rank 0 saves all),
`copies` (each rank saves the same to one file beside the program, as PyTorch's tutorials do).
With HOLD_UNTIL=N, the attempts before number N never finish: they wait in lockstep for the end of a machine. With
HOLD_NODES=N, those with fewer than N machines do.
The result depends on every step of every rank, so that a lost or repeated step changes it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

STEPS, PACE_S, LAYOUT = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
ATTEMPT, HOLD = int(os.environ["OUTLAST_ATTEMPT"]), int(os.environ.get("HOLD_UNTIL", "0"))
HOLD_NODES = int(os.environ.get("HOLD_NODES", "0"))
RANK, NODES = int(os.environ["OUTLAST_NODE_RANK"]), int(os.environ["OUTLAST_NODES"])
FOLDER = Path(os.environ["OUTLAST_CHECKPOINT_DIR"])
stopping = False
# A training computes; this program only takes its time.
pause = threading.Event().wait


def on_sigterm(_number: int, _frame: Any) -> None:
    global stopping
    stopping = True


def connect() -> list[Any]:
    """Return the streams to the other ranks (rank 0), or to rank 0."""
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if RANK == 0:
        server = socket.create_server(("", address[1]))
        streams = {}
        while len(streams) < NODES - 1:
            stream = server.accept()[0].makefile("rw")
            streams[int(stream.readline())] = stream
        return [streams[rank] for rank in sorted(streams)]
    for _ in range(600):
        try:
            stream = socket.create_connection(address, timeout=600).makefile("rw")
            stream.write(f"{RANK}\n")
            stream.flush()
            return [stream]
        except OSError:
            pause(0.05)
    raise TimeoutError("rank 0 does not answer")


def gather(streams: list[Any], value: object) -> list[Any]:
    """Exchange a value with all ranks; return all values in the order of the ranks."""
    if RANK == 0:
        values = [value, *(json.loads(stream.readline()) for stream in streams)]
        for stream in streams:
            stream.write(json.dumps(values) + "\n")
            stream.flush()
        return values
    streams[0].write(json.dumps(value) + "\n")
    streams[0].flush()
    found: list[Any] = json.loads(streams[0].readline())
    return found


def save(step: int, value: str) -> None:
    if LAYOUT == "first" and RANK:
        return
    if LAYOUT == "copies":
        Path("snapshot.tmp").write_text(json.dumps({"rank": 0, "step": step, "value": value}))
        Path("snapshot.tmp").rename("snapshot.json")
        return
    folder = FOLDER / f"step-{step:06d}"
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"shard-{RANK}.tmp"
    draft.write_text(json.dumps({"rank": RANK, "step": step, "value": value}))
    draft.rename(folder / f"shard-{RANK}.json")
    for old in sorted(FOLDER.glob("step-*"))[:-2]:
        for file in old.iterdir():
            file.unlink(missing_ok=True)
        old.rmdir()


def load() -> tuple[int, str]:
    mine = RANK if LAYOUT == "shards" else 0
    found = sorted(Path().glob("snapshot.json") if LAYOUT == "copies" else FOLDER.glob(f"step-*/shard-{mine}.json"))
    if not found:
        return 0, f"begin {RANK if LAYOUT == 'shards' else 0}"
    state = json.loads(found[-1].read_text())
    assert state["rank"] == mine, "this is the shard of another rank"
    return int(state["step"]), str(state["value"])


def main() -> int:
    signal.signal(signal.SIGTERM, on_sigterm)
    streams = connect()
    step, value = load()
    steps = gather(streams, step)
    assert set(steps) == {steps[0]}, f"the ranks resume from different steps: {steps}"
    print(f"rank {RANK} of {NODES} begins at step {step}", flush=True)
    while step < STEPS:
        pause(PACE_S)
        values = gather(streams, [value, stopping])
        holds = (ATTEMPT < HOLD and step >= 10 * ATTEMPT) or (NODES < HOLD_NODES and step >= 20 * (HOLD_NODES - NODES))
        if holds and not any(stops for _, stops in values):
            continue
        joined = "".join(one for one, _ in values)
        own = str(RANK) if LAYOUT == "shards" else ""
        value = hashlib.sha256(f"{joined}{step}{own}".encode()).hexdigest()[:16]
        step += 1
        stop = any(stops for _, stops in values)
        if stop or step % 5 == 0 or step == STEPS:
            save(step, value)
        if stop and step < STEPS:
            print(f"rank {RANK} stops at step {step}", flush=True)
            return 143
    values = gather(streams, value)
    if RANK == 0:
        folder = Path(os.environ["OUTLAST_OUTPUT_DIR"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.txt").write_text(" ".join(values))
    print(f"rank {RANK} is done: {value}", flush=True)
    return 0


sys.exit(main())
