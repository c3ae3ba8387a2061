"""The state logic of one attempt: the events that the agent appends to the story, and the facts that it reads there.

Uses no threads, processes or network of the machine, so that the simulation runs the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from outlast.agent.instance import Notice
from outlast.errors import OutlastError, WorkspaceError
from outlast.runs import events as ev
from outlast.runs.events import Ending, Event, Outcome
from outlast.runs.state import Attempt as AttemptState
from outlast.runs.state import Checkpoint, RunState
from outlast.runs.story import event_key
from outlast.runs.usage import Usage
from outlast.store.counted import traffic_of
from outlast.workspace import Workspace

Turn = Literal["mine", "wait", "over"]
# The estimate of a machine's mean life starts as one machine that lived this long.
USUAL_LIFE_S = 7200.0
# Exit codes of programs that exited on request: SIGHUP, SIGINT and SIGTERM.
_REQUESTED = (129, 130, 143)
# Exit codes of programs that were killed: SIGQUIT, SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGKILL,
# SIGSEGV, SIGPIPE, SIGXCPU, SIGXFSZ and SIGSYS.
_KILLED = (131, 132, 133, 134, 135, 136, 137, 139, 141, 152, 153, 159)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How the command ended, by the completion contract."""

    finished: bool
    outcome: Outcome = "stopped"
    why: str = ""
    # Every machine would fail in the same way: the run is over, and `hint` is the user's next step.
    hopeless: bool = False
    hint: str = ""
    ending: Ending | Literal[""] = ""


class LastReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the story keeps of an attempt's progress: its last step, its metrics, and what it used of the machine."""

    step: int | None = None
    metrics: dict[str, ev.MetricRange] = {}
    usage: Usage | None = None


def verdict(exit_code: int, *, notice: Notice | None, done: bool, hung: bool = False) -> Verdict:
    """Return how the attempt ended. Exit 0 alone is not success: several frameworks exit 0 on SIGTERM.

    Finished = exit 0 without a notice, or the trainer declared the training complete. After a notice, any exit code
    means preempted, or stopped if the notice was about a limit.
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
        return Verdict(finished=False, outcome="killed", why=f"killed by {name} without a notice")
    return Verdict(finished=False, outcome="crashed", why=f"the command exited with {exit_code}")


def how_it_ended(exit_code: int, *, noticed: bool, handles_sigterm: bool) -> Ending:
    """Return whether the command may have been in the middle of a write when it ended.

    After a notice the exit code alone does not show it: 143 is the code of a program that saved and exited, and of one
    that died of SIGTERM at once. The difference is whether it handles the signal.
    """
    if exit_code == 0:
        return "orderly"
    if not noticed or exit_code in _KILLED:
        return "cut"
    if exit_code in _REQUESTED:
        return "handled" if handles_sigterm else "cut"
    return "orderly"


def interrupted(notice: Notice, how: str) -> Verdict:
    """Return the verdict of an attempt that had to exit before it was finished."""
    if notice.limit:
        return Verdict(finished=False, outcome="stopped", why=f"{notice.why}; {how}")
    return Verdict(finished=False, outcome="preempted", why=how)


def hopeless(problem: OutlastError) -> Verdict:
    """Return the verdict of an attempt that would fail on every machine."""
    return Verdict(finished=False, outcome="broken", why=problem.message, hopeless=True, hint=problem.hint)


def mean_life_s(state: RunState) -> float:
    """Estimate the mean life of preemptible machines from the run's story.

    Divides the time on them by the preemptions. Attempts that ended by themselves add time only.
    """
    tried = [attempt for attempt in state.attempts if attempt.spot and attempt.started_at]
    # `seconds` is set at the release, by one clock.
    lived_s = sum(
        (attempt.seconds if attempt.nodes == 1 else 0.0) or max(0.0, attempt.over_at - attempt.started_at)
        for attempt in tried
    )
    return (USUAL_LIFE_S + lived_s) / (1 + sum(attempt.preempted for attempt in tried))


class AttemptWriter:
    """Appends the events of one attempt to the story. For one thread; others create their own writer."""

    def __init__(
        self,
        workspace: Workspace,
        run: str,
        number: int,
        *,
        clock: Callable[[], float],
        ids: Callable[[], str],
        persist: Callable[[Callable[[], bool]], bool] = lambda act: act(),
        rank: int = 0,
    ) -> None:
        self.workspace = workspace
        self.run = run
        self.number = number
        self.rank = rank
        self.clock = clock
        self.ids = ids
        self.persist = persist
        self.story = workspace.story(run)

    @property
    def mine(self) -> AttemptState | None:
        attempts = self.story.state.attempts
        return attempts[self.number - 1] if len(attempts) >= self.number else None

    def turn(self) -> Turn:
        """Return whether this attempt may start. It waits while a noticed predecessor may still commit."""
        state = self.story.refresh()
        mine = self.mine
        if not state.alive or state.limit is not None or mine is None or mine.phase != "placed":
            return "over"
        # One that was noticed before its start never starts.
        if any(a.phase != "over" and (a.started_at or a.phase == "placed") for a in state.attempts[: self.number - 1]):
            return "wait"
        return "mine"

    def predecessor_deadline_passed(self) -> bool:
        """Return whether the noticed predecessor's grace is over, by the store's clock."""
        waiting = [a for a in self.story.state.attempts[: self.number - 1] if a.phase != "over"]
        now = self.workspace.bucket.now(f"runs/{self.run}/clock")
        for attempt in waiting:
            if not attempt.notice_event:
                return False  # it works: this attempt was placed ahead of its notice
            noticed = self.workspace.bucket.head(f"runs/{self.run}/story/{attempt.notice_event:08d}.json").modified_at
            if now < noticed + attempt.grace_s:
                return False
        return True

    def over(self) -> str:
        """Refresh the story and return why this attempt must stop; empty while it may go on."""
        state = self.story.refresh()
        mine = self.mine
        if state.ending:
            return f"the run is {state.ending}"
        if mine is None or mine.phase == "over":
            return f"attempt {self.number} was given up: {mine.why if mine else 'the story does not have it'}"
        return ""

    def limit(self) -> Notice | None:
        """Return the notice for a reached limit or a move, from the story as it was last read."""
        limit, mine = self.story.state.limit, self.mine
        if mine is not None and mine.nodes > 1 and mine.phase == "noticed" and not mine.moved:
            return Notice(why=mine.why, grace_s=self._left_s(mine), peer=True)
        if mine is not None and mine.moved and mine.phase == "noticed":
            return Notice(why=mine.why, grace_s=mine.grace_s, moves=True)
        return Notice(why=limit.why, grace_s=limit.grace_s, limit=True) if limit is not None else None

    def _left_s(self, mine: AttemptState) -> float:
        """Return the rest of the grace of a noticed attempt, by the store's clock."""
        noticed = self.workspace.bucket.head(event_key(self.run, mine.notice_event)).modified_at
        return max(0.5, mine.grace_s - (self.workspace.bucket.now(f"runs/{self.run}/clock") - noticed))

    def checkpoints(self) -> list[Checkpoint]:
        """Return the committed checkpoints, newest first."""
        return list(reversed(self.story.refresh().checkpoints))

    def start(self, *, resumed: Checkpoint | None, code: str) -> bool:
        """Append `Started`, which fences all earlier attempts. Returns False if this attempt may not start any more."""
        started = ev.Started(
            attempt=self.number,
            resumed_from=resumed.id if resumed else "",
            resumed_step=resumed.step if resumed else None,
            code=code,
            received_bytes=traffic_of(self.workspace.bucket).received,
        )
        appended, mine = self._append(started), self.mine
        if appended and mine is not None:
            fenced = [one for one in self.story.state.attempts if one.over_event == mine.started_event]
            # The machine of a fenced attempt may be alive without its agent, and is billed until it is deleted.
            if fenced:
                self._wake()
        return appended

    def notice(self, notice: Notice) -> bool:
        if notice.from_story:
            return True  # the supervisor has appended it
        noticed = ev.Noticed(attempt=self.number, why=notice.why, grace_s=notice.grace_s, node=self.rank)
        appended = self._append(noticed)
        if (mine := self.mine) is not None and mine.nodes > 1:
            self._notice_later(mine, notice)
        self._wake()
        return appended

    def _notice_later(self, mine: AttemptState, notice: Notice) -> None:
        """Append the notice also to a later attempt that counts on this machine."""
        name = mine.machines[self.rank]
        for later in self.story.state.attempts[self.number :]:
            if later.phase != "over" and name in later.machines:
                self._append(ev.Noticed(attempt=later.number, why=notice.why, grace_s=notice.grace_s, node=self.rank))

    def lose_node(self, rank: int, why: str, grace_s: float) -> bool:
        """Append that another machine is lost: this attempt saves and stops, and the next one replaces it."""
        appended = self._append(ev.Noticed(attempt=self.number, why=f"node {rank}: {why}", grace_s=grace_s, node=rank))
        self._wake()
        return appended

    def warn(self, notice: Notice) -> bool:
        return self._append(ev.Warned(attempt=self.number, why=notice.why))

    def warn_of_limit(self, limit: str, why: str) -> bool:
        return self._append(ev.LimitNear(limit=limit, why=why))

    def reach_limit(self, limit: str, why: str, *, hint: str, grace_s: float) -> bool:
        """Append that a limit is reached which only this machine can observe: the run saves, stops and ends."""
        return self._append(ev.LimitReached(limit=limit, why=why, hint=hint, grace_s=grace_s))

    def saved(
        self,
        checkpoint: str,
        *,
        step: int | None,
        size: int,
        changed_at: float = 0.0,
        metrics: Mapping[str, float] | None = None,
        nodes: int = 0,
    ) -> bool:
        """Append `Saved`, which completes a commit. Returns False if a later attempt has fenced this one: no commit."""
        return self._append(
            ev.Saved(
                attempt=self.number,
                checkpoint=checkpoint,
                step=step,
                bytes=size,
                changed_at=changed_at,
                metrics=dict(metrics or {}),
                nodes=nodes,
                sent_bytes=traffic_of(self.workspace.bucket).sent,
            )
        )

    def started_before(self) -> bool:
        """Return whether an earlier attempt of the run started its command."""
        attempts = self.story.state.attempts
        return any(one.number < self.number and one.started_at for one in attempts)

    def fruitless_crash(self) -> str:
        """Return why the previous attempt crashed; empty if it or this one has committed a checkpoint."""
        attempts = [one for one in self.story.state.attempts if one.started_at and one.number <= self.number]
        if len(attempts) < 2 or attempts[-2].outcome != "crashed" or any(one.saves for one in attempts[-2:]):
            return ""
        return attempts[-2].why

    def end(
        self,
        result: Verdict,
        *,
        exit_code: int | None,
        outputs: int = 0,
        keep_s: float = 0.0,
        unsaved: str = "",
        last: LastReport | None = None,
    ) -> bool:
        """Append the end of the attempt and wake the supervisor, which would otherwise wait for missing heartbeats."""
        event: ev.Finished | ev.Failed | ev.Stopped
        traffic = traffic_of(self.workspace.bucket)
        if result.finished:
            event = ev.Finished(
                attempt=self.number,
                exit_code=exit_code or 0,
                outputs=outputs,
                sent_bytes=traffic.sent,
                received_bytes=traffic.received,
            )
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
                ending=result.ending,
                sent_bytes=traffic.sent,
                received_bytes=traffic.received,
            )
        if last is not None:
            event = msgspec.structs.replace(event, step=last.step, metrics=last.metrics, usage=last.usage)
        appended = self._append(event)
        self._wake()
        return appended

    def _wake(self) -> None:
        try:
            self.workspace.wake(self.run)
        except WorkspaceError:
            pass  # a supervisor that misses heartbeats reads the story by itself

    def _append(self, event: Event) -> bool:
        event = msgspec.structs.replace(event, at=self.clock(), by=f"attempt {self.number}")
        nonce = self.ids()  # the same for all retries, so that a repeated append is recognised
        return self.persist(lambda: self.story.append(event, nonce=nonce))
