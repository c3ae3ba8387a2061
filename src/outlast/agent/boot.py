"""Entry point of the agent: reads the metadata, carries out the attempt, deletes the machine."""

from __future__ import annotations

import os
import threading
import time

from outlast.agent.agent import Agent
from outlast.agent.instance import GceInstance, Instance, attribute_with_retries
from outlast.agent.node import ALONE, NodePlace, next_attempt, place_in
from outlast.agent.output import report
from outlast.agent.retry import retry
from outlast.code.bootstrap import METADATA_SERVICE, when_allowed
from outlast.errors import OutlastError, StoreUnreachable, WorkspaceError
from outlast.runs.state import Attempt
from outlast.store.access import STORE_KEY, StoreAccess, store_access
from outlast.store.bucket import open_bucket
from outlast.store.counted import CountedBucket
from outlast.store.traits import traits_of_store
from outlast.workspace import Workspace

_LINGER_S = 30.0
# How long a machine of a distributed run waits for the next attempt: a supervisor places it within seconds.
_NEXT_S = 120.0
_STORY_S = 300.0
_NAME_POLL_S = 1.0


def main() -> int:
    """Carry out the attempt that the instance metadata names, then delete this machine."""
    instance = this_machine()
    run = attribute_with_retries(instance, "outlast-run")
    number = int(instance.attribute("outlast-attempt"))
    if host := instance.attribute("outlast-storage-host"):
        os.environ.setdefault("STORAGE_EMULATOR_HOST", host)
    home = os.environ.get("HOME", "") or os.getcwd()
    shutdown = threading.Event()
    try:
        opened = open_bucket(instance.attribute("outlast-workspace"), store_access_of(instance))
        # On a bucket only: counting has no use for a folder.
        workspace = Workspace(CountedBucket(opened) if traits_of_store(opened.url).network else opened)
        place = _find_place(workspace, run, number, instance) if instance.attribute("outlast-nodes", "") else ALONE
        warm = False
        while True:
            agent = Agent(workspace, run, number, instance=instance, home=home, place=place, warm=warm)
            agent.watch.handle_sigterm()
            shutdown = agent.watch.shutdown
            agent.carry_out()
            warm = agent.prepared
            following = _await_next(workspace, run, number, place, shutdown) if place.nodes > 1 else None
            if following is None:
                break
            # The number of machines, and so the ranks, may differ.
            number, place = following.number, place_in(following, place.machine)
    except OutlastError as problem:
        report(f"error: {problem.message}")
    except OSError as problem:
        report(f"error: {problem}")
    _linger(instance, shutdown)
    return 0


def _find_place(workspace: Workspace, run: str, number: int, instance: Instance) -> NodePlace:
    """Return the rank of this machine: the place of its name in the story."""
    state = retry(workspace.story(run).refresh, for_s=_STORY_S, report=report)
    machines, give_up_at = state.attempts[number - 1].machines, time.monotonic() + _STORY_S
    # A cloud that launches several machines by one request may name them afterwards.
    while (name := instance.name()) not in machines:
        if time.monotonic() > give_up_at:
            raise WorkspaceError(f"machine `{name}` is not among those of attempt {number}: {', '.join(machines)}")
        time.sleep(_NAME_POLL_S)
    return place_in(state.attempts[number - 1], name)


def _await_next(
    workspace: Workspace, run: str, number: int, place: NodePlace, shutdown: threading.Event
) -> Attempt | None:
    """Wait for the next attempt that keeps this machine. Returns None if there is none."""
    story, until = workspace.story(run), time.monotonic() + _NEXT_S
    while not shutdown.wait(1.0 if workspace.store.remote else 0.1) and time.monotonic() < until:
        try:
            found = next_attempt(story.refresh(), number, place.machine)
        except StoreUnreachable:
            continue
        if found is False:
            break
        if isinstance(found, Attempt):
            return found
    return None


def this_machine() -> Instance:
    """Return the client of this machine's metadata service, which the cloud's boot script names."""
    if os.environ.get(METADATA_SERVICE) == "ec2":
        from outlast.agent.ec2 import Ec2Instance

        return Ec2Instance()
    return GceInstance()


def store_access_of(instance: Instance) -> StoreAccess:
    """Read the store's key into memory: neither the command nor a file of the machine contains it."""
    name = instance.attribute(STORE_KEY)
    return store_access(instance.attribute, when_allowed(lambda: instance.secrets(name)) if name else {})


def _linger(instance: Instance, shutdown: threading.Event) -> None:
    """Wait for the supervisor to delete this machine; else delete it here: a stopped machine is still billed."""
    shutdown.wait(_LINGER_S)
    try:
        instance.delete_self()
    except OSError as problem:
        report(f"cannot delete this machine: {problem}")
