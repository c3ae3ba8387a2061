"""Whether the checkpoint folder may be committed now, and how: pure functions from a scan to a decision.

The program need not know outlast. The folder is complete if no process has one of its files open for writing and it
does not change: one file that was just closed is complete by itself; of several files the last may still follow, so
they must be unchanged for a while. A program that never pauses is committed between two of its writes, but never with
a file that it has just emptied in order to write it again.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from outlast.agent.checkpoint.snapshot import FolderSnapshot, undecodable_name
from outlast.runs.events import Ending

# A folder that has not changed for this long is complete.
SETTLED_S = 0.5
# A program that has been changing its folder for this long without a commit never pauses.
_NEVER_PAUSES_S = 10.0
# A program that never pauses is not in the middle of a write if it wrote nothing for this long.
_BETWEEN_WRITES_S = 0.02
# The program's next checkpoint needs room beside our copy.
_ROOM = 3
ONLY_INCOMPLETE = "the only checkpoint in the folder is incomplete"


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """All facts about the checkpoint folder and its command that a decision depends on."""

    snapshot: FolderSnapshot
    # Time of day at which the snapshot was taken.
    taken_at: float
    # Files that the command has open for writing now: databases, logs and others.
    databases: frozenset[str] = frozenset()
    logs: frozenset[str] = frozenset()
    writing: frozenset[str] = frozenset()
    # Files that had content in an earlier scan.
    filled: frozenset[str] = frozenset()
    command_alive: bool = True
    # How long the folder has been changing without a commit.
    changing_s: float = 0.0
    # The folder changed while it was last read.
    outrun: bool = False
    free_bytes: int = 0


class Commit(msgspec.Struct, frozen=True):
    """Read the folder in place. `no_room`: a copy would be safer, but the disk has no room for one."""

    no_room: bool = False


class CopyFirst(msgspec.Struct, frozen=True):
    """Copy the folder and store the copy: the program writes its next checkpoint before the store has this one."""


class KeepWaiting(msgspec.Struct, frozen=True):
    """The folder is incomplete, or may be; a later scan may find it complete."""

    reason: str


class Impossible(msgspec.Struct, frozen=True):
    """This folder cannot be committed unless the user or the program changes something."""

    reason: str


Decision = Commit | CopyFirst | KeepWaiting | Impossible


def decide(scan: Scan) -> Decision:
    """Decide whether the folder of a running command may be committed now."""
    if why := _why_wait(scan):
        return KeepWaiting(why)
    return how_to_commit(scan.snapshot, outrun=scan.outrun, free_bytes=scan.free_bytes)


def how_to_commit(snapshot: FolderSnapshot, *, outrun: bool, free_bytes: int) -> Commit | CopyFirst | Impossible:
    """Decide how to commit a complete folder."""
    if name := undecodable_name(snapshot):
        return Impossible(f"the file name {name!a} is not valid UTF-8; rename the file")
    has_room = free_bytes > _ROOM * snapshot.bytes
    if snapshot.databases and not has_room:
        return Impossible("the disk has no room for a copy of the database; raise `[machine] disk`")
    if outrun:
        return CopyFirst() if has_room else Commit(no_room=True)
    return Commit()


def decide_last(
    snapshot: FolderSnapshot,
    ending: Ending,
    *,
    died_at: float,
    open_at_signal: Collection[str],
    signalled_at: float,
    free_bytes: int,
) -> Commit | CopyFirst | Impossible:
    """Decide whether the folder that an ended command left is complete.

    A command that exited by itself left complete files. One that was cut short may have been writing: then the folder
    is complete only if it had not changed for a while. A handler of SIGTERM may have interrupted a write: a file that
    was open when the signal came is complete if the program renamed it, or wrote another file afterwards.
    """
    if ending != "orderly" and not snapshot.from_trainer:
        interrupted = snapshot.files.keys() & set(open_at_signal)
        written_later = any(
            changed_ns / 1e9 > signalled_at and path not in interrupted
            for path, (_, changed_ns, _) in snapshot.files.items()
        )
        completed = ending == "handled" and (written_later or not interrupted)
        settled = not open_at_signal and died_at - snapshot.changed_at >= SETTLED_S
        if not completed and not settled:
            return Impossible("the command ended while it was writing to its checkpoint folder")
    if snapshot.only_incomplete:
        return Impossible(ONLY_INCOMPLETE)
    return how_to_commit(snapshot, outrun=False, free_bytes=free_bytes)


def why_left_out(snapshot: FolderSnapshot) -> str:
    """Return why files are left out although they may be a checkpoint; empty if none are."""
    if snapshot.incomplete:
        return f"the framework has not completed `{snapshot.incomplete}`"
    if snapshot.empty and snapshot.temporary:
        return f"all files have temporary names, such as `{snapshot.temporary}`"
    return ""


def _why_wait(scan: Scan) -> str:
    """Return why the folder must not be committed now; empty if it may be."""
    from_trainer = scan.snapshot.from_trainer
    if from_trainer and not scan.snapshot.databases:
        return ""
    if why := _why_incomplete(scan):
        return why
    # A dead command has no file open, complete or not: `decide_last` judges the folder that it left.
    return "" if from_trainer or scan.command_alive else "the command has ended"


def _why_incomplete(scan: Scan) -> str:
    snapshot = scan.snapshot
    if snapshot.only_incomplete:
        return why_left_out(snapshot)
    if scan.writing:
        return f"`{min(scan.writing)}` is open for writing"
    # The next snapshot treats it as a database or a log.
    if opened := sorted(path for path in scan.databases | scan.logs if path in snapshot.files):
        return f"`{opened[0]}` was just opened"
    if closed := sorted(set(snapshot.databases) - scan.databases):
        return f"`{closed[0]}` was just closed"
    return _why_changing(scan)


def _why_changing(scan: Scan) -> str:
    files = scan.snapshot.files
    if not files:
        return "" if scan.snapshot.databases else "the folder has no files yet"
    # Absolute: a time in the future, by a clock that was set back or by a program that sets it, is not a recent change.
    now_ns, settled_ns = int(scan.taken_at * 1e9), int(SETTLED_S * 1e9)
    recent = [path for path, (_, at_ns, _) in files.items() if abs(now_ns - at_ns) < settled_ns]
    if recent and abs(scan.taken_at - scan.snapshot.changed_at) < _BETWEEN_WRITES_S:
        return f"`{recent[0]}` is being written"
    # A file that was just emptied is about to be written: on a busy disk the call that empties it can take long, and
    # until it returns no process has the file open.
    emptied = [path for path in recent if not files[path][0]]
    if known := sorted(scan.filled.intersection(emptied)):
        return f"`{known[0]}` was emptied and not written yet"
    if scan.changing_s >= _NEVER_PAUSES_S or not (len(recent) > 1 or emptied):
        return ""
    return f"files change all the time, such as `{recent[0]}`"
