"""The tree of errors. Each belongs to one layer; its cause is chained, and its hint is the next step.

OutlastError                     exit 1
├── SpecError                    exit 2   the spec is invalid; carries all problems at once
├── UsageError                   exit 2   the command line is invalid
├── NoSuchRun                    exit 3   no run of that name, or several with that prefix
├── WorkspaceError               exit 4   the workspace cannot be read or written
│   ├── Missing                           no object with that key
│   ├── Exists                            a create-only write found an object
│   ├── BeingCollected                    a shared object was deleted as unused during a submission
│   ├── Damaged                           an object contradicts its key, hash or format
│   └── StoreUnreachable                  temporary: the same call may work later
├── CloudError                   exit 5   a cloud refused a request
│   ├── NoCapacity                        temporary, in this zone
│   ├── OverQuota                         in this region
│   ├── Throttled, CloudUnreachable       temporary: try again later
│   └── Denied, BadRequest, NotFound      permanent: reported at once, never retried
├── RunFailed                    exit 6   the run failed for a reason other than its command's exit code
├── RunCancelled                 exit 7
├── DrillFailed                  exit 8   the drill showed that the run would not survive a preemption
├── OverLimit                    exit 9   a limit of the run, the user or the workspace
├── DrillUndecided               exit 10  the drill cannot tell whether the run resumes
├── NoSuchStore                  exit 20  no volume or database of that name
├── StoreTaken                   exit 21  a volume or database of that name exists, or is in use
├── VolumeFull                   exit 22  the volume is full, or would be
├── DatabaseUnreachable          exit 23  name, port or TLS of a database
├── DatabaseRefused              exit 24  the database refused the login: address, password or permissions
├── WaitTimeout                       a run or a call has not ended in time; also a TimeoutError
├── CallFailed                        a call of an Executor could not be completed
└── InvalidTransition            exit 70  a bug in outlast: an illegal event

Interrupted, a KeyboardInterrupt, is raised when Ctrl-C ends a wait; the run continues.
"""

from __future__ import annotations


class OutlastError(Exception):
    """An error that is shown to the user; `hint` is the next step."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class SpecError(OutlastError):
    """An invalid spec. `problems` lists all of them, each with its field or file."""

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


class BeingCollected(WorkspaceError):
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


class NoQuota(OverQuota):
    """A quota of 0 in all zones: no retry can succeed before the user requests quota."""


class Throttled(CloudError):
    pass


class CloudUnreachable(CloudError):
    pass


class Denied(CloudError):
    pass


class PolicyDenied(Denied):
    """A policy of the user's organisation forbids the request, whatever the permissions are."""


class BadRequest(CloudError):
    pass


class AlreadyExists(BadRequest):
    """A resource of that name exists: ours, if an answer was lost, or one of another owner."""


class NotFound(CloudError):
    pass


class RunFailed(OutlastError):
    exit_code = 6


class RunCancelled(OutlastError):
    exit_code = 7


class DrillFailed(OutlastError):
    exit_code = 8


class DrillUndecided(OutlastError):
    exit_code = 10


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


class WaitTimeout(OutlastError, TimeoutError):
    """The time to wait is over; the run or the call continues."""


class CallFailed(OutlastError):
    """A call of an Executor has no result: its process died again and again, or it has no machine."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a wait. The message names the run, which continues."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def _render_traceback_(self) -> list[str]:
        """Return the lines that notebooks print instead of a traceback."""
        return [self.message]


class InvalidTransition(OutlastError):
    """An event that is illegal in the current state of its run."""

    exit_code = 70


EXIT_CODES = {
    0: "done",
    1: "an error without a more specific code",
    2: "bad input: the command line, `outlast.toml` or another file; nothing was launched",
    3: "no such run, or several runs match the prefix",
    4: "the workspace cannot be read or written",
    5: "a cloud refused a request",
    6: "the run failed for a reason other than the exit code of its command",
    7: "the run was cancelled",
    8: "the drill failed: the run would not survive a preemption",
    9: "a limit was reached: nothing was launched, or the run has saved and stopped",
    10: "the drill cannot tell whether the run resumes; it states what to print or log",
    20: "no volume or database of that name",
    21: "a volume or database of that name already exists, or is in use",
    22: "a volume is full, or would be",
    23: "a database is unreachable: check its name, port and TLS",
    24: "a database refused the login: check address, password and permissions",
    70: "a bug in outlast",
    130: "interrupted: you detached, and the run continues",
}
