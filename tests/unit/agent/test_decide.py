"""Decisions about checkpoint folders, row by row: commit, copy first, wait or impossible, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from outlast.agent.checkpoint.decide import (
    ONLY_INCOMPLETE,
    Commit,
    CopyFirst,
    Decision,
    Impossible,
    KeepWaiting,
    Scan,
    decide,
    decide_last,
    how_to_commit,
)
from outlast.agent.checkpoint.snapshot import FolderSnapshot
from outlast.runs.events import Ending

AT_NS = 1_000_000_000
AT = 1.0
LATER = AT + 1000.0
PLENTY = 1 << 40
TWO = {"model.pt": (5, AT_NS, 1), "log.txt": (5, AT_NS, 2)}
ONE = {"model.pt": (5, AT_NS, 1)}
EMPTIED = {"model.pt": (0, AT_NS, 1)}
OLD_AND_EMPTIED = {"model.pt": (0, AT_NS, 1), "old.pt": (5, 1, 2)}
TRAINER = {"step-000000001/checkpoint.json": (5, AT_NS, 1)}
DATABASE = {"study.db": (5, AT_NS, 1)}


def snapshot(files: Mapping[str, tuple[int, int, int]] = TWO, **facts: object) -> FolderSnapshot:
    return FolderSnapshot(files=dict(files), changed_at=AT, **facts)  # type: ignore[arg-type]


def scan(seen: FolderSnapshot, **facts: object) -> Scan:
    sets = {name: frozenset(fact) if isinstance(fact, list) else fact for name, fact in facts.items()}
    usual = Scan(snapshot=seen, taken_at=LATER, free_bytes=PLENTY)
    return msgspec.structs.replace(usual, **sets)


@pytest.mark.parametrize(
    ("scanned", "decision"),
    [
        (scan(snapshot()), Commit()),
        (scan(snapshot({})), KeepWaiting("the folder has no files yet")),
        # Files that are open.
        (scan(snapshot(), writing=["model.pt", "a.bin"]), KeepWaiting("`a.bin` is open for writing")),
        (scan(snapshot(), logs=["log.txt"]), KeepWaiting("`log.txt` was just opened")),
        (scan(snapshot(), databases=["log.txt"]), KeepWaiting("`log.txt` was just opened")),
        (scan(snapshot(logs={"a.log": (1, 1, 1)}), logs=["a.log"]), Commit()),
        (scan(snapshot(databases=DATABASE)), KeepWaiting("`study.db` was just closed")),
        (scan(snapshot(databases=DATABASE), databases=["study.db"]), Commit()),
        (scan(snapshot({}, databases=DATABASE), databases=["study.db"], taken_at=AT), Commit()),
        # Files that change.
        (scan(snapshot(), taken_at=AT + 0.01), KeepWaiting("`model.pt` is being written")),
        (scan(snapshot(), taken_at=AT + 0.1), KeepWaiting("files change all the time, such as `model.pt`")),
        (scan(snapshot(), taken_at=AT + 0.6), Commit()),
        (scan(snapshot(), taken_at=AT - 3600.0), Commit()),
        (scan(snapshot(ONE), taken_at=AT + 0.1), Commit()),
        # A program that never pauses.
        (
            scan(snapshot(), taken_at=AT + 0.1, changing_s=9.0),
            KeepWaiting("files change all the time, such as `model.pt`"),
        ),
        (scan(snapshot(), taken_at=AT + 0.1, changing_s=10.0), Commit()),
        (scan(snapshot(), taken_at=AT + 0.01, changing_s=60.0), KeepWaiting("`model.pt` is being written")),
        # A file that was emptied to be written again.
        (scan(snapshot(EMPTIED), taken_at=AT + 0.1), KeepWaiting("files change all the time, such as `model.pt`")),
        (scan(snapshot(EMPTIED), taken_at=AT + 0.1, changing_s=60.0, filled=["other"]), Commit()),
        (
            scan(snapshot(OLD_AND_EMPTIED), taken_at=AT + 0.1, changing_s=60.0, filled=["model.pt", "old.pt"]),
            KeepWaiting("`model.pt` was emptied and not written yet"),
        ),
        (scan(snapshot(EMPTIED), filled=["model.pt"]), Commit()),
        # Frameworks that mark their checkpoints.
        (
            scan(snapshot(only_incomplete=True, incomplete="checkpoint-5"), writing=["model.pt"]),
            KeepWaiting("the framework has not completed `checkpoint-5`"),
        ),
        (scan(snapshot(incomplete="checkpoint-5")), Commit()),
        # The trainer library renames complete folders.
        (scan(snapshot(TRAINER), writing=["model.pt"], taken_at=AT, command_alive=False), Commit()),
        (scan(snapshot(TRAINER, databases=DATABASE)), KeepWaiting("`study.db` was just closed")),
        (scan(snapshot(), command_alive=False), KeepWaiting("the command has ended")),
        (scan(snapshot({"bad\udcff": (1, 1, 1)}), writing=["a"]), KeepWaiting("`a` is open for writing")),
        (scan(snapshot(), outrun=True), CopyFirst()),
        (scan(snapshot(), outrun=True, free_bytes=30), Commit(no_room=True)),
    ],
)
def test_a_running_command(scanned: Scan, decision: Decision) -> None:
    assert decide(scanned) == decision


@pytest.mark.parametrize(
    ("seen", "outrun", "free_bytes", "decision"),
    [
        (snapshot(), False, 0, Commit()),
        (snapshot(), True, 31, CopyFirst()),
        (snapshot(), True, 30, Commit(no_room=True)),
        (snapshot(databases=DATABASE), False, 46, Commit()),
        (
            snapshot(databases=DATABASE),
            False,
            45,
            Impossible("the disk has no room for a copy of the database; raise `[machine] disk`"),
        ),
        (
            snapshot({"bad\udcff": (1, 1, 1)}),
            False,
            PLENTY,
            Impossible("the file name 'bad\\udcff' is not valid UTF-8; rename the file"),
        ),
    ],
)
def test_a_complete_folder(seen: FolderSnapshot, outrun: bool, free_bytes: int, decision: Decision) -> None:
    assert how_to_commit(seen, outrun=outrun, free_bytes=free_bytes) == decision


CUT = Impossible("the command ended while it was writing to its checkpoint folder")


@pytest.mark.parametrize(
    ("seen", "ending", "died_at", "open_at_signal", "signalled_at", "decision"),
    [
        (snapshot(), "orderly", AT, ["model.pt"], 0.0, Commit()),
        (snapshot(TRAINER), "cut", AT, ["model.pt"], 0.0, Commit()),
        (snapshot(), "cut", AT, [], 0.0, CUT),
        (snapshot(), "cut", AT + 0.5, [], 0.0, Commit()),
        (snapshot(), "cut", AT + 0.5, ["model.pt"], 0.0, CUT),
        # Another file was written after the signal.
        (snapshot(), "handled", AT, ["model.pt"], AT - 0.1, Commit()),
        (snapshot(), "handled", AT, ["model.pt"], AT + 0.1, CUT),
        # The open file was renamed.
        (snapshot(), "handled", AT, ["model.pt.new"], AT + 0.1, Commit()),
        (snapshot(only_incomplete=True), "orderly", AT, [], 0.0, Impossible(ONLY_INCOMPLETE)),
    ],
)
def test_an_ended_command(
    seen: FolderSnapshot,
    ending: Ending,
    died_at: float,
    open_at_signal: list[str],
    signalled_at: float,
    decision: Decision,
) -> None:
    assert (
        decide_last(
            seen,
            ending,
            died_at=died_at,
            open_at_signal=open_at_signal,
            signalled_at=signalled_at,
            free_bytes=PLENTY,
        )
        == decision
    )
