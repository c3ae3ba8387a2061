"""The saver: a separate process that writes the states that the trainer has copied into shared memory.

A thread would halve the trainer's speed because of the interpreter lock. It reads one request per line from its
standard input and responds with a line. When the trainer ends, it finishes the save in progress and exits.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import Any

from outlast.errors import OutlastError
from outlast.trainer.arena import Arena
from outlast.trainer.files import (
    SavedPieces,
    after,
    aligned,
    folder_name,
    parts_written,
    piece_bytes,
    publish,
    write_rank,
)

# How long the first rank of a folder waits for the parts of the others.
_RANKS_S = 600.0


def carry_out(request: dict[str, Any], arena: Arena, last: SavedPieces | None) -> SavedPieces:
    """Write one rank's part; the first rank of a folder publishes the checkpoint once all have written theirs.

    Returns the pieces that it wrote.
    """
    rank, name = request["rank"], folder_name(request["step"])
    staged = os.path.join(request["folder"], name + ".tmp")
    # Remains of an interrupted save; its files may be links to those of a complete checkpoint.
    shutil.rmtree(os.path.join(staged, f"rank-{rank}"), ignore_errors=True)
    os.makedirs(staged, exist_ok=True)
    view = memoryview(arena.map)
    _, large = aligned(request["buffers"])
    begin = after(large)
    buffers, body = view[:large], view[begin : begin + request["body"]]
    try:
        entries = write_rank(
            staged,
            rank,
            stream=request["stream"],
            body=body,
            arena=buffers,
            sizes=request["buffers"],
            last=last,
            unchanged=request["unchanged"],
        )
    finally:
        body.release()
        buffers.release()
        view.release()
    local = range(*request["ranks_here"])
    if rank == local.start:
        _publish(request, staged, local)
    folder = os.path.join(request["folder"], name, f"rank-{rank}")
    return SavedPieces(folder=folder, piece=piece_bytes(large), entries=entries)


def _publish(request: dict[str, Any], staged: str, local: range) -> None:
    deadline = time.monotonic() + _RANKS_S
    while (parts := parts_written(staged, local)) is None:
        if time.monotonic() > deadline:
            raise OutlastError(f"step {request['step']}: not all {len(local)} ranks on this machine have saved")
        time.sleep(0.01)
    marker = {"step": request["step"], "ranks": request["ranks"], "parts": parts, **request["extra"]}
    publish(staged, marker, node=request["node"], keep=request["keep"])


def main() -> None:
    """Read requests until the trainer closes. The arguments are the descriptor and the size of the trainer's memory."""
    arena = Arena(int(sys.argv[2]), handle=int(sys.argv[1]))
    last: SavedPieces | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if not request:
            return  # the trainer closes; workers that it forked may hold its end of the pipe open
        began = time.monotonic()
        earlier, last = last, None
        try:
            last = carry_out(request, arena, earlier)
            response: dict[str, Any] = {"step": request["step"], "took_s": time.monotonic() - began}
        except OSError as problem:
            response = {
                "step": request["step"],
                "error": f"{problem.strerror}: {problem.filename or request['folder']}",
            }
        except OutlastError as problem:
            response = {"step": request["step"], "error": str(problem)}
        try:
            print(json.dumps(response), flush=True)
        except BrokenPipeError:
            return


if __name__ == "__main__":
    main()
