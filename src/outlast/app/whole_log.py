"""The output of all attempts of a run as one text, with times."""

from __future__ import annotations

import time
from collections.abc import Iterator

from outlast.runs.logs import attempts_with_logs, open_log
from outlast.runs.state import Attempt
from outlast.workspace import Workspace


def whole_log(workspace: Workspace, run: str) -> Iterator[bytes]:
    """Yield the output of every attempt, after a line with its machine, start and end. Raises NoSuchRun."""
    state = workspace.story(run).refresh()
    workspace.request(run)
    attempts = {attempt.number: attempt for attempt in state.attempts}
    for number in attempts_with_logs(workspace.bucket, run):
        attempt = attempts.get(number)
        yield f"==== attempt {number}{_described(attempt) if attempt else ''} ====\n".encode()
        last = b"\n"
        for body in open_log(workspace.bucket, run, number, nodes=attempt.nodes if attempt else 1).read():
            yield body
            last = body
        if not last.endswith(b"\n"):
            yield b"\n"


def _described(attempt: Attempt) -> str:
    parts = [f"{attempt.type} in {attempt.zone}"]
    if attempt.started_at:
        parts.append(f"started {_moment(attempt.started_at)}")
    if attempt.over_at:
        parts.append(f"{attempt.outcome} {_moment(attempt.over_at)}")
    return f": {', '.join(parts)}"


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
