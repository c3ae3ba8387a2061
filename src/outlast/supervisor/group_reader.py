"""A cache of groups: the members of a run's group and their states, for `group_rules`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from outlast.errors import StoreUnreachable, WorkspaceError
from outlast.runs.group import Groups, Seat
from outlast.runs.state import RunState
from outlast.runs.story import Story
from outlast.spec.spec import Spec
from outlast.supervisor.world import RunView, Sibling
from outlast.workspace import Workspace

# How often a group's members are listed again; each listing of a bucket is billed.
_FRESH_S = {True: 0.5, False: 10.0}
_UNSEALED_S = 1.0


class Known(Protocol):
    """A watched run, whose story was read in this round."""

    @property
    def story(self) -> Story: ...
    @property
    def spec(self) -> Spec: ...


class _Group(msgspec.Struct, kw_only=True):
    read_at: float
    seats: list[Seat]
    sealed: bool


class GroupReader:
    """The groups that one supervisor has read. Only a cache."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.groups = Groups(workspace)
        self._fresh_s = _FRESH_S[not workspace.store.remote]
        self._known: dict[str, _Group] = {}
        self._ended: dict[str, RunState] = {}

    def complete(self, view: RunView, watched: Mapping[str, Known], now: float) -> RunView:
        """Return the view with the other runs of its group; `now` is monotonic."""
        member = view.spec.member
        if member is None or not view.state.alive:
            return view
        group = self._group(member.group, now)
        siblings = tuple(
            sibling
            for seat in group.seats
            if seat.run != view.run and (sibling := self._sibling(seat, watched)) is not None
        )
        return msgspec.structs.replace(view, siblings=siblings, sealed=group.sealed)

    def _group(self, name: str, now: float) -> _Group:
        known = self._known.get(name)
        # Its submission is going on: the members wait for the seal alone.
        fresh_s = self._fresh_s if known is None or known.sealed else min(_UNSEALED_S, self._fresh_s)
        if known is None or now - known.read_at >= fresh_s:
            sealed = bool(known and known.sealed) or self.groups.sealed(name)
            known = _Group(read_at=now, seats=self.groups.seats(name), sealed=sealed)
            self._known[name] = known
        return known

    def _sibling(self, seat: Seat, watched: Mapping[str, Known]) -> Sibling | None:
        """Return a member of the group; None if its submission crashed, so that it has a seat and no story."""
        one = watched.get(seat.run)
        state = one.story.state if one else self._state(seat.run)
        if not state.exists:
            return None
        return Sibling(
            run=seat.run,
            task=seat.task,
            spare=bool(one and one.spec.member and one.spec.member.spare),
            ready=seat.ready or state.ending == "finished",
            state=state,
        )

    def _state(self, run: str) -> RunState:
        if run not in self._ended:
            try:
                state = self.workspace.story(run).refresh()
            except StoreUnreachable:
                raise
            except WorkspaceError:
                return RunState()  # damaged: its state is unknown
            if not state.ending:
                return state
            self._ended[run] = state
        return self._ended[run]
