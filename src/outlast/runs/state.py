"""The state of a run: the fold of its events, and the table of legal events. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

import msgspec

from outlast.errors import InvalidTransition
from outlast.runs import events as ev
from outlast.runs.attempts import Attempt as Attempt
from outlast.runs.attempts import AttemptPhase as AttemptPhase
from outlast.runs.attempts import Checkpoint as Checkpoint
from outlast.runs.attempts import Ending as Ending
from outlast.runs.attempts import LimitBreach as LimitBreach
from outlast.runs.attempts import is_spare, located, new_attempt, released, with_traffic
from outlast.runs.events import Event
from outlast.runs.members import also_gone, is_another_node, releasable, why_members_illegal


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """The state after all events of a story. The empty story is a run that does not exist."""

    length: int = 0
    submitted_at: float = 0.0
    who: str = ""
    ending: Ending = ""
    ended_at: float = 0.0
    why: str = ""
    hint: str = ""
    exit_code: int | None = None
    attempts: tuple[Attempt, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    # Why the run waits for a machine, and until when; empty if it does not.
    waiting: str = ""
    waiting_until: float = 0.0
    cooldowns: dict[str, float] = {}
    # The limits that are near, by name, and the one that was reached.
    near: dict[str, str] = {}
    limit: LimitBreach | None = None
    # The last step that the newest attempt reported at its end, and the metrics of all attempts that have ended.
    step: int | None = None
    metrics: dict[str, ev.MetricRange] = {}
    # It was cancelled because the runs that it served have ended.
    released: bool = False

    @property
    def exists(self) -> bool:
        return self.length > 0

    @property
    def alive(self) -> bool:
        return self.exists and not self.ending

    @property
    def last(self) -> Attempt | None:
        """The attempt on which the run depends: the newest, unless that is only to replace one that works."""
        return next((one for one in reversed(self.attempts) if not is_spare(self.attempts, one)), None)

    @property
    def launching(self) -> Attempt | None:
        """The attempt whose machine is to be launched, or boots."""
        newest = self.attempts[-1] if self.attempts else None
        return newest if newest is not None and newest.phase == "placed" else None

    @property
    def ahead(self) -> Attempt | None:
        """The attempt that waits for a machine while the one before it works."""
        return self.launching if self.launching is not self.last else None

    @property
    def current(self) -> Attempt | None:
        """The attempt that may commit: the newest that started, and is neither over nor fenced."""
        if not self.alive:
            return None
        for attempt in reversed(self.attempts):
            if attempt.started_at:
                return attempt if attempt.phase != "over" else None
        return None

    @property
    def closed(self) -> bool:
        """Whether the run is over and all its machines are released."""
        return bool(self.ending) and all(a.released for a in self.attempts)

    @property
    def cost_usd(self) -> float:
        return sum((a.cost_usd for a in self.attempts), 0.0)

    @property
    def crashes(self) -> int:
        return sum(a.outcome in ("crashed", "killed", "hung", "broken") for a in self.attempts)

    @property
    def attempts_without_progress(self) -> int:
        """The number of attempts in a row that ended without a new checkpoint."""
        count = 0
        for attempt in reversed(self.attempts):
            if attempt.saves:
                break
            count += attempt.phase == "over" and attempt.outcome not in ("refused", "finished")
        return count


# Event → the phases of its attempt in which it is legal. Events about the run itself, `Submitted`, `Placed` and
# `Released` are checked below.
EDGES: dict[type, frozenset[AttemptPhase]] = {
    ev.Located: frozenset({"placed", "started", "noticed"}),  # it may start before the supervisor sees the machine
    ev.LaunchRefused: frozenset({"placed"}),  # the launch failed; once started there is a machine
    ev.Started: frozenset({"placed"}),  # once; a noticed machine does not start the command
    ev.Saved: frozenset({"started", "noticed"}),  # the last save follows the notice
    ev.Noticed: frozenset({"placed", "started"}),  # machines are also preempted while they boot
    ev.Warned: frozenset({"placed", "started"}),  # after the notice it has no value
    ev.Stopped: frozenset({"placed", "started", "noticed"}),  # `placed`: code or data could not be fetched
    ev.Finished: frozenset({"started", "noticed"}),  # the command may finish after a notice
    ev.Lost: frozenset({"placed", "started", "noticed"}),  # the supervisor may give up at any time before the end
    ev.Retired: frozenset({"over"}),  # before, its machines are in use
}


def why_illegal(state: RunState, event: Event) -> str:
    """Return why the event is illegal in this state; empty if it is legal."""
    if isinstance(event, ev.Submitted):
        return "a run is submitted once" if state.exists else ""
    if not state.exists:
        return "the run was never submitted"
    if isinstance(event, ev.Released):
        return _illegal_release(state, event)
    if state.ending:
        return f"the run is over: {state.ending}"
    if isinstance(event, ev.Failed | ev.Cancelled | ev.Waiting | ev.OwnerChanged):
        return ""  # legal in every live run
    if isinstance(event, ev.LimitNear):
        return f"`LimitNear` was already written for {event.limit}" if event.limit in state.near else ""
    # A run at a limit saves and ends; it starts nothing.
    if isinstance(event, ev.LimitReached | ev.Placed | ev.Started) and state.limit is not None:
        return f"a limit was reached: {state.limit.name}"
    if isinstance(event, ev.LimitReached):
        return ""
    if isinstance(event, ev.Placed):
        return _illegal_place(state, event)
    if not 1 <= event.attempt <= len(state.attempts):
        return f"attempt {event.attempt} does not exist"
    attempt = state.attempts[event.attempt - 1]
    if isinstance(event, ev.Started) and any(a.phase == "started" for a in state.attempts[: event.attempt - 1]):
        return f"an attempt before {event.attempt} works, and has received no notice"
    if isinstance(event, ev.Noticed) and is_another_node(attempt, event):
        return ""
    if attempt.phase not in EDGES[type(event)]:
        return f"attempt {event.attempt} is {attempt.outcome or attempt.phase}"
    if isinstance(event, ev.Retired) and (attempt is not state.last or attempt.nodes == 1 or attempt.retired):
        return f"attempt {event.attempt} has no machines that the next one could keep"
    return ""


def _illegal_place(state: RunState, event: ev.Placed) -> str:
    if event.attempt != len(state.attempts) + 1:
        return f"the next attempt is {len(state.attempts) + 1}"
    last = state.last
    # Handoff: the successor of a noticed attempt is placed at once, and that of a working one ahead of its notice.
    # Otherwise only one attempt is active at a time.
    ahead = event.ahead and last is not None and last.phase == "started" and last.nodes == 1 and not event.members
    if last and last.phase not in ("over", "noticed") and not ahead:
        return f"attempt {last.number} is {last.phase}"
    if sum(a.phase != "over" for a in state.attempts) > 1:
        return "two attempts are active already"
    return why_members_illegal(state, event)


def _illegal_release(state: RunState, event: ev.Released) -> str:
    if not 1 <= event.attempt <= len(state.attempts):
        return f"attempt {event.attempt} does not exist"
    attempt = state.attempts[event.attempt - 1]
    if attempt.released:
        return f"attempt {event.attempt} is released"
    if state.alive and attempt.phase != "over":
        return f"attempt {event.attempt} is {attempt.phase}"
    return "" if releasable(state, attempt) else f"machines of attempt {event.attempt} are in use or may be kept"


def step(state: RunState, event: Event) -> RunState:
    """Return the state after one more event. Raises InvalidTransition."""
    problem = why_illegal(state, event)
    if problem:
        raise InvalidTransition(f"illegal event at index {state.length + 1}: {type(event).__name__}: {problem}")
    state = msgspec.structs.replace(state, length=state.length + 1)
    if isinstance(event, _RunEvent):
        return _step_run(state, event)
    if isinstance(event, ev.Placed):
        return msgspec.structs.replace(
            state, attempts=(*state.attempts, new_attempt(event)), waiting="", waiting_until=0.0
        )
    return _step_attempt(state, event)


_RunEvent = ev.Submitted | ev.Waiting | ev.OwnerChanged | ev.LimitNear | ev.LimitReached | ev.Failed | ev.Cancelled


def _step_run(state: RunState, event: _RunEvent) -> RunState:
    replace = msgspec.structs.replace
    match event:
        case ev.Submitted():
            return replace(state, submitted_at=event.at, who=event.who)
        case ev.OwnerChanged():
            return replace(state, who=event.who)
        case ev.Waiting():
            return replace(state, waiting=event.why, waiting_until=event.until)
        case ev.LimitNear():
            return replace(state, near={**state.near, event.limit: event.why})
        case ev.LimitReached():
            reached = LimitBreach(name=event.limit, why=event.why, hint=event.hint, grace_s=event.grace_s, at=event.at)
            return replace(state, limit=reached, waiting="", waiting_until=0.0)
        case ev.Failed():
            state = _reported(replace(state, hint=event.hint, exit_code=event.exit_code), event)
            return _end(state, "failed", event.at, event.why)
        case ev.Cancelled():
            why = event.why or (f"cancelled by {event.who}" if event.who else "cancelled")
            return _end(replace(state, released=bool(event.why and not event.who)), "cancelled", event.at, why)
        case _:
            assert_never(event)


def _reported(state: RunState, event: ev.Stopped | ev.Finished | ev.Failed) -> RunState:
    """Record what an attempt reports at its end: the last step, the metrics, and what it used."""
    replace = msgspec.structs.replace
    if event.metrics:
        state = replace(state, metrics=merged(state.metrics, event.metrics))
    if event.step is not None:
        state = replace(state, step=event.step)
    current = state.current
    return state if event.usage is None or current is None else _with(state, replace(current, usage=event.usage))


def merged(before: Mapping[str, ev.MetricRange], news: Mapping[str, ev.MetricRange]) -> dict[str, ev.MetricRange]:
    """Return the metrics of two attempts, of which `news` is the later one."""
    found = dict(before)
    for name, one in news.items():
        had = before.get(name, one)
        found[name] = ev.MetricRange(one.last, min(had.low, one.low), max(had.high, one.high))
    return found


def _end(state: RunState, ending: Ending, at: float, why: str) -> RunState:
    """End the run and fence all active attempts."""
    attempts = tuple(_over(a, state, at, "fenced", why) if a.phase != "over" else a for a in state.attempts)
    return msgspec.structs.replace(
        state, ending=ending, ended_at=at, why=why, attempts=attempts, waiting="", waiting_until=0.0
    )


def _over(attempt: Attempt, state: RunState, at: float, outcome: str, why: str) -> Attempt:
    return msgspec.structs.replace(attempt, phase="over", over_at=at, over_event=state.length, outcome=outcome, why=why)


_AttemptEvent = (
    ev.Located
    | ev.LaunchRefused
    | ev.Started
    | ev.Saved
    | ev.Noticed
    | ev.Warned
    | ev.Stopped
    | ev.Finished
    | ev.Lost
    | ev.Retired
    | ev.Released
)


def _step_attempt(state: RunState, event: _AttemptEvent) -> RunState:
    replace = msgspec.structs.replace
    if isinstance(event, ev.Stopped | ev.Finished):
        state = _reported(_with(state, with_traffic(state.attempts[event.attempt - 1], event)), event)
    attempt = state.attempts[event.attempt - 1]
    match event:
        case ev.Located():
            attempt = located(attempt, event)
        case ev.LaunchRefused():
            cooldowns = {**state.cooldowns, **dict.fromkeys(event.offers, event.until)}
            state = replace(state, cooldowns=cooldowns)
            # No machine was created, so there is nothing to release, unless it was to keep some.
            attempt = replace(_over(attempt, state, event.at, "refused", event.why), released=attempt.nodes == 1)
        case ev.Started():
            state = replace(_fence_earlier(state, event), waiting="", waiting_until=0.0, step=None)
            attempt = replace(
                attempt,
                phase="started",
                started_at=event.at,
                started_event=state.length,
                resumed_from=event.resumed_from,
                resumed_step=event.resumed_step,
                received_bytes=event.received_bytes,
            )
        case ev.Saved():
            saved = Checkpoint(
                id=event.checkpoint,
                attempt=event.attempt,
                step=event.step,
                at=event.at,
                bytes=event.bytes,
                changed_at=event.changed_at,
                metrics=event.metrics,
                nodes=event.nodes,
            )
            state = replace(state, checkpoints=(*state.checkpoints, saved))
            sent = max(attempt.sent_bytes, event.sent_bytes)
            attempt = replace(attempt, saves=attempt.saves + 1, saved_at=event.at, sent_bytes=sent)
        case ev.Noticed():
            attempt = _noticed(attempt, event, state.length)
        case ev.Warned():
            attempt = replace(attempt, warned_at=event.at)
        case ev.Stopped():
            preempted = attempt.preempted or event.outcome == "preempted"
            attempt = _over(attempt, state, event.at, event.outcome, event.why)
            attempt = replace(
                attempt,
                exit_code=event.exit_code,
                preempted=preempted,
                keep_s=event.keep_s,
                unsaved=event.unsaved,
                ending=event.ending,
            )
        case ev.Finished():
            attempt = replace(_over(attempt, state, event.at, "finished", ""), exit_code=event.exit_code)
        case ev.Lost():
            attempt = replace(
                _over(attempt, state, event.at, "lost", event.why),
                preempted=attempt.preempted or event.preempted,
                gone=also_gone(attempt, event.nodes),
            )
        case ev.Retired():
            attempt = replace(attempt, retired=True)
        case ev.Released():
            attempt = released(attempt, event)
        case _:
            assert_never(event)
    state = _with(state, attempt)
    return _end(state, "finished", event.at, "") if isinstance(event, ev.Finished) else state


def _noticed(attempt: Attempt, event: ev.Noticed, number: int) -> Attempt:
    replace = msgspec.structs.replace
    gone = also_gone(attempt, range(attempt.nodes) if event.moves else (event.node,))
    if attempt.phase == "noticed":
        return replace(attempt, gone=gone)  # another machine; its time runs already
    return replace(
        attempt,
        phase="noticed",
        noticed_at=event.at,
        grace_s=event.grace_s,
        preempted=True,
        moved=event.moves,
        notice_event=number,
        why=event.why,
        gone=gone,
    )


def _with(state: RunState, attempt: Attempt) -> RunState:
    at = attempt.number - 1
    return msgspec.structs.replace(state, attempts=(*state.attempts[:at], attempt, *state.attempts[at + 1 :]))


def _fence_earlier(state: RunState, event: ev.Started) -> RunState:
    """Fence every attempt before n at `Started(n)`: an older one that still runs can append nothing."""
    fenced = tuple(
        _over(a, state, event.at, "fenced", f"attempt {event.attempt} took over")
        if a.number < event.attempt and a.phase != "over"
        else a
        for a in state.attempts
    )
    return msgspec.structs.replace(state, attempts=fenced)


def fold(events: list[Event]) -> RunState:
    """Return the state of a whole story."""
    state = RunState()
    for event in events:
        state = step(state, event)
    return state
