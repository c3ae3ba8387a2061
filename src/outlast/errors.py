"""The one tree of errors. Each tells its own layer; the cause is chained; the hint is the next step.

OutlastError                     exit 1
├── SpecError                    exit 2   what was asked is wrong; carries every problem at once
├── UsageError                   exit 2   the command line is wrong
├── NoSuchRun                    exit 3   no run by that name, or more than one
├── WorkspaceError               exit 4   the workspace cannot be read or written
│   ├── Missing                           no object of that name
│   ├── Exists                            create-only, and somebody was first
│   ├── Damaged                           an object is not what its name, its hash or its format says
│   └── StoreUnreachable                  passing: the same call may work later
├── CloudError                   exit 5   a cloud said no
│   ├── NoCapacity                        not here, not now: try the next zone
│   ├── OverQuota                         not in this region
│   ├── Throttled, CloudUnreachable       passing: try again later
│   └── Denied, BadRequest, NotFound      permanent: told at once, never retried
├── RunFailed                    exit 6   the run ended without success and without a code of its own
├── RunCancelled                 exit 7
├── DrillFailed                  exit 8   a rehearsal showed that something would not survive
├── OverLimit                    exit 9   a limit of the run, the user or the workspace
├── NoSuchStore                  exit 20  no volume or database by that name
├── StoreTaken                   exit 21  a volume or database of that name is there, or in use
├── VolumeFull                   exit 22  what is to be written does not fit
├── DatabaseUnreachable          exit 23  its name, its port or its TLS
├── DatabaseRefused              exit 24  it answers, and says no: address, password, permissions
└── InvalidTransition            exit 70  our own bug: an event that the story does not allow
"""

from __future__ import annotations


class OutlastError(Exception):
    """Anything that a user may see; `hint` is the next step."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class SpecError(OutlastError):
    """What was asked is wrong. `problems` holds every one, each naming its field or file."""

    exit_code = 2

    def __init__(self, problems: list[str], *, source: str = "", hint: str = "") -> None:
        head = f"{source}: " if source else ""
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{head}{count}\n" + "\n".join(f"  - {p}" for p in problems), hint=hint)
        self.problems = problems
        self.source = source


class UsageError(OutlastError):
    exit_code = 2


class NoSuchRun(OutlastError):
    exit_code = 3


class WorkspaceError(OutlastError):
    exit_code = 4


class Missing(WorkspaceError):
    pass


class Exists(WorkspaceError):
    pass


class Damaged(WorkspaceError):
    pass


class StoreUnreachable(WorkspaceError):
    pass


class CloudError(OutlastError):
    exit_code = 5


class NoCapacity(CloudError):
    pass


class OverQuota(CloudError):
    pass


class Throttled(CloudError):
    pass


class CloudUnreachable(CloudError):
    pass


class Denied(CloudError):
    pass


class BadRequest(CloudError):
    pass


class NotFound(CloudError):
    pass


class RunFailed(OutlastError):
    exit_code = 6


class RunCancelled(OutlastError):
    exit_code = 7


class DrillFailed(OutlastError):
    exit_code = 8


class OverLimit(OutlastError):
    exit_code = 9


class NoSuchStore(OutlastError):
    exit_code = 20


class StoreTaken(OutlastError):
    exit_code = 21


class VolumeFull(OutlastError):
    exit_code = 22


class DatabaseUnreachable(OutlastError):
    exit_code = 23


class DatabaseRefused(OutlastError):
    exit_code = 24


class InvalidTransition(OutlastError):
    """An event that is no legal step from the state its run is in."""

    exit_code = 70


EXIT_CODES = {
    0: "done",
    1: "something went wrong that has no code of its own",
    2: "bad input: the command line, `outlast.toml` or another file; nothing was launched",
    3: "no such run, or the prefix fits more than one",
    4: "the workspace cannot be read or written",
    5: "a cloud said no",
    6: "the run failed for a reason other than the exit code of its command",
    7: "the run was cancelled",
    8: "the drill failed: something would not survive",
    9: "a limit is reached: nothing was launched, or the run has saved and stopped",
    20: "no volume or database by that name",
    21: "a volume or database of that name is there already, or in use",
    22: "a volume is full, or would be",
    23: "a database cannot be reached: its name, its port or its TLS",
    24: "a database refuses: the address, the password or a permission",
    70: "a bug in outlast",
    130: "interrupted: you detached, and the run goes on",
}
