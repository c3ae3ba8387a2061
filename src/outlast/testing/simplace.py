"""The place of a simulated agent among the machines of its attempt, and its way to the next attempt."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from outlast.agent.checkpoint.commit import Committer
from outlast.agent.node import Node, NodePlace, place_in
from outlast.clouds.traits import BUILT_IN, DEFAULT_CLOUD
from outlast.errors import OutlastError
from outlast.runs.state import Attempt
from outlast.testing.simgang import SimNodeTraining
from outlast.testing.simtraining import SimTraining

if TYPE_CHECKING:
    from outlast.testing.simagent import SimAgent

_POLL_S = 1.0
_BEAT_S = 2.0
_NEXT_S = 120.0


def find_place(agent: SimAgent) -> NodePlace:
    state, name = agent.retried(agent.workspace.story(agent.run).refresh), agent.machine.facts.name
    return place_in(state.attempts[agent.number - 1], name)


def make_node(agent: SimAgent) -> Node:
    traits = BUILT_IN[DEFAULT_CLOUD]
    return agent.node_type(
        agent.workspace.bucket,
        agent.run,
        agent.number,
        rank=agent.place.rank,
        nodes=agent.place.nodes,
        now=agent.actor.monotonic,
        boot_s=traits.boot_s,
        silence_s=traits.silence_s,
        beat_s=_BEAT_S,
        poll_s=_POLL_S,
    )


def await_next(agent: SimAgent) -> Attempt | None:
    """Wait for the next attempt that keeps this machine. Returns None if there is none."""
    story, until = agent.workspace.story(agent.run), agent.actor.monotonic() + _NEXT_S
    while agent.actor.monotonic() < until:
        try:
            found = agent.find_next(story.refresh(), agent.number, agent.place.machine)
        except OutlastError:
            found = None
        if found is False:
            break
        if isinstance(found, Attempt):
            return found
        agent.actor.sleep(_POLL_S)
    return None


def committer_of(agent: SimAgent) -> Callable[..., Committer]:
    if agent.node is None:
        return agent.committer_type
    return partial(agent.member_type if agent.place.rank else agent.leader_type, node=agent.node)


def training_of(agent: SimAgent) -> SimTraining:
    if agent.node is None:
        return agent.training_type(agent.paths.checkpoints)
    layout = str(agent.request.spec.params["layout"])
    return SimNodeTraining(agent.paths.checkpoints, rank=agent.place.rank, nodes=agent.place.nodes, layout=layout)
