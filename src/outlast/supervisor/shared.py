"""What a run shares with others, when it is asked for: that it is there, and that its machines reach it."""

from __future__ import annotations

from collections.abc import Mapping

from outlast.clouds.cloud import Cloud
from outlast.databases import care
from outlast.errors import NoSuchStore
from outlast.spec.spec import Spec
from outlast.volumes import mounts
from outlast.workspace.holdings import Holdings
from outlast.workspace.workspace import Workspace


def check(workspace: Workspace, clouds: Mapping[str, Cloud], spec: Spec) -> list[str]:
    """Everything that is wrong with what it names, before anything is launched."""
    problems = [] if not spec.volumes else mounts.check(Holdings(workspace, "volume"), clouds, spec)
    holdings = Holdings(workspace, "database")
    for variable, name in spec.databases.items():
        try:
            holding = holdings.demand(name)
        except NoSuchStore as problem:
            problems.append(f"[databases] {variable}: {problem.message}; {problem.hint}")
            continue
        if holding.phase != "ready":
            problems.append(f"[databases] {variable}: the database `{name}` is half {holding.phase}")
        elif holding.cloud != spec.machine.cloud:
            where = f"is on {holding.cloud}, and the machines are on {spec.machine.cloud}"
            problems.append(f"[databases] {variable}: the database `{name}` {where}, which cannot reach it")
    return problems


def addresses(workspace: Workspace, clouds: Mapping[str, Cloud], spec: Spec) -> dict[str, str]:
    """What the secrets of the run hold for the databases that it names."""
    return care.values_for(spec.databases, Holdings(workspace, "database"), clouds) if spec.databases else {}


def narrowed(workspace: Workspace, clouds: Mapping[str, Cloud], spec: Spec) -> Spec:
    """Only in zones from which its volumes are reached."""
    return mounts.narrowed(Holdings(workspace, "volume"), clouds, spec) if spec.volumes else spec
