"""The command on the machine: each start number runs once, detached; output and exit code stay on the machine's disk.

    ~/.outlast/keep/<id>/command        the command, byte by byte; read by a login shell
                         run.sh         runs it
                         run-3/go/      `run.sh` creates it to begin start 3; start 4 does to prevent that
                         run-3/pid boot boots void output metrics.jsonl progress exit notice halted

Plain sh, so that nothing must be installed on the machine. `plan` interprets the exit.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from outlast.errors import CloudError
from outlast.machines.keepalive.world import KeptJob
from outlast.machines.ssh import Link

_SSH_S = 60.0


def _script(*names: str) -> str:
    texts = []
    for name in names:
        with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
            texts.append(file.read())
    return "".join(texts)


def start(link: Link, id: str, number: int, command: str, *, boots: int) -> str:
    """Start the command: `started`, `alive` (the previous start still runs) or `claimed` (started before)."""
    argv = ["sh", "-c", _script("head.sh", "start.sh"), "sh", id, str(number), str(boots), _script("run.sh")]
    answer = link.run(argv, input=command.encode() + b"\n", timeout_s=_SSH_S, label="the start of the command")
    return answer.stdout.decode("utf-8", "replace").strip()


def probe(link: Link, id: str, *, boots: int, halt_after_s: float = 0.0, watch: Sequence[str] = ()) -> KeptJob:
    """Return the state of the command. Searches folders only after half the allowed idle time."""
    look_s = max(1, int(halt_after_s / 2)) if halt_after_s else 0
    folders = " ".join(_folder(path) for path in watch)
    # The remote shell expands the folders, so that `~` is its home.
    text = f"set -- {id} {look_s} {folders}\n" + _script("head.sh", "probe.sh")
    answer = link.run(["sh", "-c", text], timeout_s=_SSH_S, label="a look at the command")
    return read(answer.stdout.decode("utf-8", "replace"), boots=boots)


def _folder(path: str) -> str:
    if path == "~" or path.startswith("~/"):
        return '"$HOME"' + shlex.quote(path[1:]) if path != "~" else '"$HOME"'
    return shlex.quote(path) if path.startswith("/") else '"$HOME"/' + shlex.quote(path)


def kill(link: Link, id: str, number: int, *, grace_s: float = 10.0) -> None:
    """End the command and all its processes: SIGTERM, then SIGKILL."""
    link.run(
        ["sh", "-c", _script("head.sh", "kill.sh"), "sh", id, str(number), str(int(grace_s * 5))],
        timeout_s=_SSH_S + grace_s,
        label="the end of the command",
    )


def read(text: str, *, boots: int) -> KeptJob:
    """Parse the output of the probe. Raises CloudError."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    try:
        return KeptJob(
            number=int(values["number"]),
            went="went" in values,
            alive="alive" in values,
            exit_code=int(values["exit_code"]) if values.get("exit_code") else None,
            last_line=values.get("last_line", ""),
            noticed="noticed" in values,
            halted="halted" in values,
            this_boot="same_boot" in values and values.get("boots") == str(boots),
            claimed_s=float(values.get("claimed_s", 0)),
            idle_s=float(values.get("idle_s", 0)),
        )
    except (KeyError, ValueError) as problem:
        raise CloudError(f"the machine reported an unreadable state of its command: {text[:200]!r}") from problem
