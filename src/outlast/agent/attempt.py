"""The state logic of one attempt: what the agent says to the story, and what it learns from it.

Refuses threads, processes and the network of the machine, so that a simulation can run it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from outlast.agent.instance import Notice
from outlast.errors import OutlastError, WorkspaceError
from outlast.runs import events as ev
from outlast.runs.events import Event, Outcome
from outlast.runs.state import Attempt as AttemptState
from outlast.runs.state import Checkpoint
from outlast.workspace import Workspace

Turn = Literal["mine", "wait", "over"]
# How the command left: `orderly` by itself; `handled` by a handler of SIGTERM, with the code of a signal; `cut` short.
Ending = Literal["orderly", "handled", "cut"]
# Exit codes of programs that left because they were asked to: SIGHUP, SIGINT and SIGTERM.
_ASKED = (129, 130, 143)
# Exit codes of programs that could do nothing more: SIGQUIT, SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGKILL,
# SIGSEGV, SIGPIPE, SIGXCPU, SIGXFSZ and SIGSYS.
_STRUCK_DOWN = (131, 132, 133, 134, 135, 136, 137, 139, 141, 152, 153, 159)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How the command ended, by the completion contract."""

    finished: bool
    outcome: Outcome = "stopped"
    why: str = ""
    # It would end like this on every machine: the run is over, and this is the next step for its user.
    hopeless: bool = False
    hint: str = ""


def verdict(exit_code: int, *, notice: Notice | None, done: bool, hung: bool = False) -> Verdict:
    """Exit 0 alone is not success: several frameworks exit 0 on SIGTERM.

    Finished = exit 0 and no notice, or the trainer said that it is done. A notice = preempted, whatever the code, or
    stopped if it was about a limit.
    """
    if done:
        return Verdict(finished=True)
    if notice is not None:
        return interrupted(notice, f"the command exited with {exit_code}")
    if hung:
        return Verdict(finished=False, outcome="hung", why="it hung: no sign of progress")
    if exit_code == 0:
        return Verdict(finished=True)
    if exit_code in (137, 143):
        name = "SIGKILL" if exit_code == 137 else "SIGTERM"
        return Verdict(finished=False, outcome="killed", why=f"killed by {name}, and there was no notice")
    return Verdict(finished=False, outcome="crashed", why=f"the command exited with {exit_code}")


def how_it_ended(exit_code: int, *, noticed: bool, handles_sigterm: bool) -> Ending:
    """Tell whether the command can have been in the middle of writing when it ended.

    After a notice the exit code alone does not tell: 143 is the code of a program that saved and left, as well as of
    one that died of SIGTERM at once. The difference is whether it handles the signal.
    """
    if exit_code == 0:
        return "orderly"
    if not noticed or exit_code in _STRUCK_DOWN:
        return "cut"
    if exit_code in _ASKED:
        return "handled" if handles_sigterm else "cut"
    return "orderly"


def interrupted(notice: Notice, how: str) -> Verdict:
    """It was asked to leave before it was done."""
    if notice.limit:
        return Verdict(finished=False, outcome="stopped", why=f"{notice.why}; {how}")
    return Verdict(finished=False, outcome="preempted", why=how)


def hopeless(problem: OutlastError) -> Verdict:
    """It would be the same on the next machine."""
    return Verdict(finished=False, outcome="broken", why=problem.message, hopeless=True, hint=problem.hint)


class AttemptWriter:
    """One attempt's pen. Safe to use from one thread at a time; others make their own for the same attempt."""

    def __init__(
        self,
        workspace: Workspace,
        run: str,
        number: int,
        *,
        clock: Callable[[], float],
        ids: Callable[[], str],
        persist: Callable[[Callable[[], bool]], bool] = lambda act: act(),
    ) -> None:
        self.workspace = workspace
        self.run = run
        self.number = number
        self.clock = clock
        self.ids = ids
        self.persist = persist
        self.story = workspace.story(run)

    @property
    def mine(self) -> AttemptState | None:
        attempts = self.story.state.attempts
        return attempts[self.number - 1] if len(attempts) >= self.number else None

    def turn(self) -> Turn:
        """May this attempt start? Not while its predecessor may still commit and is about to leave by itself."""
        state = self.story.refresh()
        mine = self.mine
        if not state.alive or state.limit is not None or mine is None or mine.phase != "placed":
            return "over"
        if any(a.phase != "over" for a in state.attempts[: self.number - 1]):
            return "wait"
        return "mine"

    def predecessor_deadline_passed(self) -> bool:
        """The noticed predecessor's grace is over, by the store's own clock."""
        waiting = [a for a in self.story.state.attempts[: self.number - 1] if a.phase != "over"]
        now = self.workspace.bucket.put(f"runs/{self.run}/clock", b"").modified_at
        for attempt in waiting:
            noticed = self.workspace.bucket.head(f"runs/{self.run}/story/{attempt.notice_event:08d}.json").modified_at
            if now < noticed + attempt.grace_s:
                return False
        return True

    def over(self) -> str:
        """Why this attempt must stop working, read anew; empty while it may go on."""
        state = self.story.refresh()
        mine = self.mine
        if state.ending:
            return f"the run is {state.ending}"
        if mine is None or mine.phase == "over":
            return f"attempt {self.number} was given up: {mine.why if mine else 'it is unknown'}"
        return ""

    def limit(self) -> Notice | None:
        """What the story, as it was last read, says of a limit that the run has reached, or of a move."""
        limit, mine = self.story.state.limit, self.mine
        if mine is not None and mine.moved and mine.phase == "noticed":
            return Notice(why=mine.why, grace_s=mine.grace_s, moves=True)
        return Notice(why=limit.why, grace_s=limit.grace_s, limit=True) if limit is not None else None

    def checkpoints(self) -> list[Checkpoint]:
        """Committed checkpoints, newest first."""
        return list(reversed(self.story.refresh().checkpoints))

    def start(self, *, resumed: Checkpoint | None, code: str) -> bool:
        """Fence all before; False if this attempt may not start any more."""
        return self._say(
            ev.Started(
                attempt=self.number,
                resumed_from=resumed.id if resumed else "",
                resumed_step=resumed.step if resumed else None,
                code=code,
            )
        )

    def notice(self, notice: Notice) -> bool:
        if notice.told:
            return True  # the supervisor has said it
        said = self._say(ev.Noticed(attempt=self.number, why=notice.why, grace_s=notice.grace_s))
        self._ring()
        return said

    def warn(self, notice: Notice) -> bool:
        return self._say(ev.Warned(attempt=self.number, why=notice.why))

    def saved(
        self, checkpoint: str, *, step: int | None, size: int, metrics: Mapping[str, float] | None = None
    ) -> bool:
        """The last word of a commit; False if somebody fenced us, and then the checkpoint never was."""
        told = dict(metrics or {})
        return self._say(ev.Saved(attempt=self.number, checkpoint=checkpoint, step=step, bytes=size, metrics=told))

    def end(
        self, result: Verdict, *, exit_code: int | None, outputs: int = 0, keep_s: float = 0.0, unsaved: str = ""
    ) -> bool:
        """Append how it ended and wake the supervisor, so that it need not wait for silence."""
        event: Event
        if result.finished:
            event = ev.Finished(attempt=self.number, exit_code=exit_code or 0, outputs=outputs)
        elif result.hopeless:
            event = ev.Failed(why=result.why, hint=result.hint, exit_code=exit_code)
        else:
            event = ev.Stopped(
                attempt=self.number,
                outcome=result.outcome,
                exit_code=exit_code,
                why=result.why,
                keep_s=keep_s,
                unsaved=unsaved,
            )
        said = self._say(event)
        self._ring()
        return said

    def _ring(self) -> None:
        try:
            self.workspace.wake(self.run)
        except WorkspaceError:
            pass  # what was said is in the story; a supervisor that hears no heartbeat looks there by itself

    def _say(self, event: Event) -> bool:
        event = msgspec.structs.replace(event, at=self.clock(), by=f"attempt {self.number}")
        nonce = self.ids()  # one for all retries: a repeated append recognises the first
        return self.persist(lambda: self.story.append(event, nonce=nonce))
