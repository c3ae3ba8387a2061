"""The vocabulary between the conductor and its machine: events that arrive, effects that the conductor requests.

Effects and events are values. `Performer` is the contract that a machine keeps: the real agent implements it with
processes and threads, the simulation with a simulated store and clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from outlast.agent.attempt import Turn, Verdict
from outlast.agent.instance import Notice
from outlast.errors import OutlastError
from outlast.runs.events import Ending
from outlast.runs.nodes import NodeEnd, NodeStart
from outlast.runs.state import Checkpoint
from outlast.workspace import RunRequest

P = ParamSpec("P")
T = TypeVar("T")


class CommandExited(msgspec.Struct, frozen=True):
    """The command ended, with a shell's exit code (128 + signal), at that time of day."""

    code: int
    at: float


class NoticeReceived(msgspec.Struct, frozen=True):
    notice: Notice


class WarningReceived(msgspec.Struct, frozen=True):
    """The cloud announced that a notice may follow."""

    notice: Notice


class RunOver(msgspec.Struct, frozen=True):
    """The run ended, this attempt was given up, or the workspace was unreachable for too long."""

    why: str


class CommandHung(msgspec.Struct, frozen=True):
    why: str


class ExclusiveLost(msgspec.Struct, frozen=True):
    """Another run may hold the exclusive lock by now; the command has been killed already."""

    why: str


class NodeFailed(msgspec.Struct, frozen=True):
    """The attempt failed on another machine. For the machine that leads."""

    rank: int
    end: NodeEnd


AgentEvent = CommandExited | NoticeReceived | WarningReceived | RunOver | CommandHung | ExclusiveLost | NodeFailed


class AttemptAborted(Exception):
    """The attempt ends before its command runs. `verdict` goes into the story; None: the story needs no entry."""

    def __init__(self, why: str, verdict: Verdict | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.verdict = verdict


class TurnReport(msgspec.Struct, frozen=True, kw_only=True):
    """Whether this attempt may start. `restarted`: its command ran on this machine before a reboot."""

    turn: Turn
    why: str = ""
    restarted: bool = False
    # Another machine of the attempt was lost before the start.
    noticed: bool = False


class OutputsReport(msgspec.Struct, frozen=True, kw_only=True):
    """How many output files are in the workspace, and why the others are not (empty: all are)."""

    sent: int = 0
    missing: str = ""


class NodesReport(msgspec.Struct, frozen=True, kw_only=True):
    """How far the other machines are: whether all have ended, and whether all that have not are alive.

    `responsive`: some have not ended and still show signs of life. `seen`: each has ended, or has shown two signs of
    life since the moment in question.
    """

    ended: bool
    responsive: bool
    seen: bool
    outputs: int = 0
    # The machines on which the command did not finish: preempted ones first.
    failed: tuple[NodeFailed, ...] = ()


class Performer(Protocol):
    """Performs one effect at a time for the conductor. Methods raise OutlastError or OSError after their own retries;
    the conductor decides how to react."""

    def read_request(self) -> RunRequest:
        """Read the request of the user."""

    def read_turn(self) -> TurnReport:
        """Read from the story whether this attempt may start."""

    def prepare(self) -> str:
        """Join the group and fetch code, data and container. Returns the code's identity. May be repeated.

        Raises AttemptAborted where another machine would fail in the same way.
        """

    def restore(self) -> Checkpoint | None:
        """Restore the newest good checkpoint unless the folder holds it. Returns the checkpoint in the folder."""

    def announce_ready(self) -> None:
        """Tell the predecessor that this attempt could start now. Only a hint: never raises."""

    def predecessor_deadline_passed(self) -> bool:
        """Return whether the noticed predecessor's grace is over, by the store's clock."""

    def next_event(self, until: float | None) -> AgentEvent | None:
        """Return the next event; None when the clock reaches `until`. A time in the past returns at once."""

    def read_secrets(self) -> None:
        """Fetch the run's secrets into memory."""

    def try_exclusive(self) -> bool:
        """Try once to take the exclusive lock; True if it is held (or none is needed)."""

    def append_started(self, resumed: Checkpoint | None, code: str) -> str:
        """Append `Started`, which fences every older attempt. Returns why it cannot; empty on success."""

    def start_command(self, resumed: Checkpoint | None) -> str:
        """Start the command and the threads that follow it. Returns why it cannot be executed; empty on success.

        Raises AttemptAborted if the exclusive lock was lost meanwhile.
        """

    def saving_s(self, notice: Notice) -> float | None:
        """Return how long the command and its last commit need at the end of a notice, with a margin.

        None: unknown, or the command is to save at once.
        """

    def successor_ready(self) -> bool:
        """Return whether a later attempt could start now. Never raises, and never waits for the store."""

    def write_notice_file(self, notice: Notice) -> None:
        """Write the file that programs may poll instead of handling a signal. Never raises."""

    def commit_quickly(self, within_s: float) -> None:
        """Commit the checkpoint folder if it is small; wait at most `within_s`."""

    def send_sigterm(self) -> bool | None:
        """Send SIGTERM to the command's leader. Returns whether the leader handles that signal itself.

        Returns None if the command has exited already, whose exit is therefore not due to the signal.
        """

    def kill_command(self) -> None:
        """Kill every process of the command."""

    def append_noticed(self, notice: Notice) -> None:
        """Append the notice, so that the supervisor places the successor."""

    def append_warned(self, notice: Notice) -> None:
        """Append the warning."""

    def stop_following(self, within_s: float) -> None:
        """Release the exclusive lock, collect the last output and stop committing: the command has ended."""

    def declared_done(self) -> bool:
        """Return whether the trainer declared the training complete."""

    def commit_last(self, ending: Ending, died_at: float, within_s: float) -> str:
        """Commit the final checkpoint. Returns why the folder's newest state is not committed; empty if it is."""

    def permanent_failure(self, exit_code: int, ran_s: float) -> Verdict | None:
        """Return the verdict on a failure that every other machine would repeat; None if another attempt may help."""

    def failure_context(self) -> str:
        """Describe a state of the machine that may have caused the failure, such as a full disk."""

    def send_outputs(self, within_s: float) -> OutputsReport:
        """Copy the outputs to the workspace."""

    def flush_logs(self, within_s: float) -> None:
        """Write the remaining log lines and metrics."""

    def append_end(self, verdict: Verdict, exit_code: int | None, outputs: int, keep_s: float, unsaved: str) -> None:
        """Append `Finished`, `Stopped` or `Failed`, and wake the supervisor."""

    # Several machines

    def report_ready(self) -> None:
        """Report that this machine could start the command now."""

    def all_ready(self) -> bool:
        """Return whether all machines are ready. For the leader."""

    def report_start(self, resumed: Checkpoint | None) -> None:
        """Let all machines restore this checkpoint and start the command. For the leader."""

    def read_start(self) -> NodeStart | None:
        """Return what the leader wrote after `Started`; None until then."""

    def restore_exactly(self, checkpoint: str) -> Checkpoint | None:
        """Restore this checkpoint (empty: none) and no other. Raises OutlastError."""

    def read_nodes(self, since: float) -> NodesReport:
        """Read how far the other machines are; `since` is the moment for `seen`. For the leader."""

    def report_end(
        self, verdict: Verdict, exit_code: int | None, outputs: int, cut: bool, unsaved: bool = False
    ) -> None:
        """Report the end of the command on this machine to the leader."""

    def keep_machine(self, for_s: float) -> None:
        """Leave the machine running for debugging."""

    def log(self, text: str) -> None:
        """Write a line to the machine's console."""


class Effect(msgspec.Struct, frozen=True):
    """One request of the conductor: a method of the performer with its arguments."""

    name: str
    arguments: tuple[object, ...] = ()


Script = Generator[Effect, Any, T]


def do(method: Callable[Concatenate[Performer, P], T], *arguments: P.args, **named: P.kwargs) -> Script[T]:
    """Request one effect and return its answer: `turn = yield from do(Performer.read_turn)`."""
    assert not named, "effects are compared by position"
    answer: T = yield Effect(method.__name__, arguments)
    return answer


def drive(script: Script[None], performer: Performer) -> None:
    """Perform the effects of a script one after the other, until it ends. A failure is raised inside the script."""
    answer: object = None
    failure: Exception | None = None
    while True:
        try:
            effect = script.send(answer) if failure is None else script.throw(failure)
        except StopIteration:
            return
        answer, failure = None, None
        try:
            answer = getattr(performer, effect.name)(*effect.arguments)
        except (OutlastError, OSError, AttemptAborted) as problem:
            failure = problem
