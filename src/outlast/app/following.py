"""Following runs: the lines of their output, and their end. Each call may be repeated from any process."""

from __future__ import annotations

import time
from collections.abc import Iterator

from outlast.app.background import supervise_live_runs
from outlast.errors import StoreUnreachable, UsageError, WaitTimeout
from outlast.runs import events as events
from outlast.runs.logs import LogReader, NodesLogReader, attempts_with_logs, nodes_with_logs
from outlast.runs.logs import open_log as open_log
from outlast.runs.state import RunState
from outlast.workspace import Workspace

# Poll intervals: for a folder, for a bucket, whose requests are billed.
_NEAR_S, _FAR_S = 0.05, 2.0
_UNREACHABLE_S = 1.0
_PIECES_S = 0.2


def poll_s(workspace: Workspace) -> float:
    return _FAR_S if workspace.store.remote else _NEAR_S


def wait_for_end(workspace: Workspace, run: str, *, timeout_s: float | None = None) -> RunState:
    """Wait until the run is over; a passing failure of the store is retried. Raises WaitTimeout.

    Starts a background supervisor if there is none: without one the run would never end.
    """
    story, until = workspace.story(run), None if timeout_s is None else time.monotonic() + timeout_s
    if story.refresh().ending:
        return story.state
    supervise_live_runs(workspace)
    while True:
        pause_s = poll_s(workspace)
        try:
            if story.refresh().ending:
                return story.state
            if not story.state.exists:
                workspace.find(run)  # raises NoSuchRun if the workspace was deleted
        except StoreUnreachable:
            pause_s = max(pause_s, _UNREACHABLE_S)
        if until is not None:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise WaitTimeout(f"{run} has not ended within {timeout_s:g} s", hint="it continues; wait again")
            pause_s = min(pause_s, left_s)
        time.sleep(pause_s)


def log_lines(workspace: Workspace, run: str, *, follow: bool = False, attempt: int = 0) -> Iterator[str]:
    """Yield the lines of all attempts, or of one; with `follow` until they are over. Raises UsageError.

    The arguments are checked before the first line is requested.
    """
    numbers = attempts_to_read(workspace, run, attempt, follow=follow)
    if follow:
        return _followed(workspace, run, attempt)
    return _written(workspace, run, numbers)


def attempts_to_read(workspace: Workspace, run: str, attempt: int, *, follow: bool) -> list[int]:
    """Return the attempts with output, or the given one. Raises UsageError if it has none and gets none."""
    numbers = attempts_with_logs(workspace.bucket, run)
    if not attempt:
        return numbers
    # An attempt that has started may have no output yet.
    awaited = follow and 0 < attempt <= len(workspace.story(run).refresh().attempts)
    if attempt not in numbers and not awaited:
        known = ", ".join(map(str, numbers)) or "none yet"
        raise UsageError(f"attempt: {run} has no output of attempt {attempt}; attempts with output: {known}")
    return [attempt]


def log_pieces(
    workspace: Workspace, run: str, attempt: int, *, node: int | None = None, follow: bool = False
) -> Iterator[bytes]:
    """Yield the output of an attempt as it is stored, of one machine or of all; with `follow` until it is over."""
    reader = _reader(workspace, run, attempt, node, follow=follow)
    yield from reader.read()
    story = workspace.story(run)
    while follow and story.refresh().attempts[attempt - 1].phase != "over":
        yield from reader.read()
        time.sleep(max(_PIECES_S, poll_s(workspace)))
    if follow:
        yield from reader.read()


def _reader(
    workspace: Workspace, run: str, attempt: int, node: int | None, *, follow: bool
) -> LogReader | NodesLogReader:
    bucket = workspace.bucket
    if node is not None:
        return LogReader(bucket, run, attempt, node=node)
    if follow:  # machines that have written nothing yet count as well
        nodes = workspace.story(run).refresh().attempts[attempt - 1].nodes
        return open_log(bucket, run, attempt, nodes=nodes)
    ranks = nodes_with_logs(bucket, run, attempt)
    return LogReader(bucket, run, attempt) if len(ranks) == 1 else NodesLogReader(bucket, run, attempt, nodes=ranks)


def _written(workspace: Workspace, run: str, numbers: list[int]) -> Iterator[str]:
    for number in numbers:
        lines = _Lines()
        for body in LogReader(workspace.bucket, run, number).read():
            yield from lines.add(body)
        yield from lines.rest()


def _followed(workspace: Workspace, run: str, only: int) -> Iterator[str]:
    story, number = workspace.story(run), only or 1
    reader, lines = LogReader(workspace.bucket, run, number), _Lines()
    while True:
        try:
            # Read the state first: output is stored before the event that ends its attempt.
            state = story.refresh()
            for body in reader.read():
                yield from lines.add(body)
        except StoreUnreachable:
            time.sleep(_UNREACHABLE_S)
            continue
        over = number <= len(state.attempts) and state.attempts[number - 1].phase == "over"
        if over or state.ending:
            yield from lines.rest()
            if only or (state.ending and number >= len(state.attempts)):
                return
            if number < len(state.attempts):
                number += 1
                reader, lines = LogReader(workspace.bucket, run, number), _Lines()
                continue
        time.sleep(poll_s(workspace))


class _Lines:
    """Splits pieces of output into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, body: bytes) -> Iterator[str]:
        *lines, self._rest = (self._rest + body).split(b"\n")
        return (line.decode(errors="replace") for line in lines)

    def rest(self) -> Iterator[str]:
        rest, self._rest = self._rest, b""
        if rest:
            yield rest.decode(errors="replace")
