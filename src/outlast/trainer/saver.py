"""The saver: a process of its own that writes what the trainer has copied into shared memory.

A thread would halve the trainer's speed through the interpreter's lock. It reads one order a line from its standard
input and answers each with a line; when the trainer is gone it finishes what it has and goes, too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from outlast.errors import OutlastError
from outlast.trainer.files import Arena, after, aligned, folder_name, give_name, parts_written, write_rank

# How long rank 0 waits for the others' parts.
_RANKS_S = 600.0


def carry_out(order: dict[str, Any], arena: Arena) -> None:
    """Write one rank's part; rank 0 gives the whole its name when all have written theirs."""
    staged = os.path.join(order["folder"], folder_name(order["step"]) + ".tmp")
    os.makedirs(staged, exist_ok=True)
    view = memoryview(arena.map)
    _, large = aligned(order["buffers"])
    begin = after(large)
    buffers, body = view[:large], view[begin : begin + order["body"]]
    try:
        write_rank(staged, order["rank"], stream=order["stream"], body=body, arena=buffers, sizes=order["buffers"])
    finally:
        body.release()
        buffers.release()
        view.release()
    if order["rank"] != 0:
        return
    deadline = time.monotonic() + _RANKS_S
    while (parts := parts_written(staged, order["ranks"])) is None:
        if time.monotonic() > deadline:
            raise OutlastError(f"step {order['step']}: not all {order['ranks']} ranks have saved")
        time.sleep(0.01)
    give_name(staged, order["step"], parts=parts, keep=order["keep"], told=order["told"])


def main() -> None:
    arena: Arena | None = None
    for line in sys.stdin:
        order = json.loads(line)
        began = time.monotonic()
        try:
            if arena is None or (arena.path, arena.size) != (order["arena"], order["size"]):
                arena = Arena(order["arena"], order["size"], create=False)
            carry_out(order, arena)
            answer: dict[str, Any] = {"step": order["step"], "took_s": time.monotonic() - began}
        except OSError as problem:
            answer = {"step": order["step"], "error": f"{problem.strerror}: {problem.filename or order['folder']}"}
        except OutlastError as problem:
            answer = {"step": order["step"], "error": str(problem)}
        try:
            print(json.dumps(answer), flush=True)
        except BrokenPipeError:
            return


if __name__ == "__main__":
    main()
