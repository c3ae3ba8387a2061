"""A volume's life: made for a name, resized, thrown away when nobody uses it. The intent comes before the effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Protocol

import msgspec

from outlast.clouds.cloud import LABEL_WORKSPACE, Cloud, Workshop
from outlast.clouds.stores import Volume, Volumes
from outlast.errors import Missing, NoSuchRun, OutlastError, StoreTaken, UsageError
from outlast.workspace.codec import decoded
from outlast.workspace.holdings import Holding, Holdings


class Keeper(Workshop, Protocol):
    """A cloud that has volumes."""

    @property
    def volumes(self) -> Volumes: ...


def keeper(clouds: Mapping[str, Cloud], name: str) -> Keeper:
    found = clouds.get(name)
    if found is None or not hasattr(found, "volumes"):
        raise UsageError(f"there are no volumes on `{name}`", hint="use --cloud local, gcp or aws")
    return found  # type: ignore[return-value]


def create(
    cloud: Keeper,
    holdings: Holdings,
    name: str,
    *,
    size_gb: float,
    who: str,
    zone: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Holding, Volume]:
    """Make it. Raises StoreTaken; what fails on the way is taken back."""
    holding = holdings.claim(name, cloud=cloud.name, who=who, zone=zone, size_gb=size_gb)
    with ExitStack() as undo:
        # Interrupted, or refused: what nobody was told of must not go on billing.
        undo.callback(_unmake, cloud, holdings, holding)
        say(f"making the volume {name} on {cloud.name}: {size_gb:g} GB")
        labels = {LABEL_WORKSPACE: holdings.workspace.id}
        volume = cloud.volumes.make(holding.there, size_gb=size_gb, zone=zone, labels=labels)
        holding = holdings.write(_as_it_is(holding, volume))
        undo.pop_all()
    return holding, volume


def _as_it_is(holding: Holding, volume: Volume) -> Holding:
    return msgspec.structs.replace(
        holding,
        phase="ready",
        zone=volume.zone,
        zones=volume.zones,
        source=volume.source,
        mount_kind=volume.kind,
        options=volume.options,
        size_gb=volume.size_gb,
        usd_per_month=volume.usd_per_month,
    )


def _unmake(cloud: Keeper, holdings: Holdings, holding: Holding) -> None:
    try:
        if not holdings.mine(holding):
            return
        cloud.volumes.delete(holding.there)
    except OutlastError:
        return  # the record stays, so that `list` shows it and `delete` tries again
    holdings.remove(holding)


def resize(cloud: Keeper, holdings: Holdings, holding: Holding, size_gb: float) -> Holding:
    """Another size, at another price from now on."""
    now = holdings.workspace.clock()
    volume = cloud.volumes.resize(holding.there, size_gb)
    before = msgspec.structs.replace(holding, extra_usd=holding.cost_usd(now), priced_at=now)
    return holdings.write(_as_it_is(before, volume))


def delete(cloud: Keeper, holdings: Holdings, holding: Holding) -> None:
    """Raises StoreTaken while a run uses it. May be repeated: the record goes last."""
    if runs := users(holdings, holding.name):
        shown = ", ".join(runs[:5])
        raise StoreTaken(
            f"the volume `{holding.name}` is mounted by {shown}; nothing was deleted",
            hint="wait until it ends, or end it: `outlast cancel RUN`, `outlast cluster down NAME`",
        )
    holding = holdings.write(msgspec.structs.replace(holding, phase="deleting"))
    cloud.volumes.delete(holding.there)
    holdings.remove(holding)


def users(holdings: Holdings, name: str) -> list[str]:
    """The live runs that name it: waiting ones as well, as they will want it."""
    workspace = holdings.workspace
    found = []
    for run in sorted({*workspace.pulses(), *workspace.bells()}):
        try:
            spec = workspace.request(run).spec
        except NoSuchRun:
            continue
        wanted = {place.partition("/")[0] for place in spec.volumes.values()}
        if name in wanted and workspace.story(run).refresh().alive:
            found.append(run)
    return found + _clusters(holdings, name)


class _Spec(msgspec.Struct, frozen=True):
    volumes: dict[str, str] = {}


class _Cluster(msgspec.Struct, frozen=True):
    """Of the record of a cluster (`cluster/record.py`, which stands above us) as much as concerns volumes."""

    name: str
    spec: _Spec


def _clusters(holdings: Holdings, name: str) -> list[str]:
    """The clusters that are there and name it."""
    bucket = holdings.bucket
    keys = [f"clusters/{child}" for child in bucket.children("clusters/") if child.endswith(".json")]
    found = []
    for key in keys:
        with suppress(Missing):
            cluster = decoded(bucket.get(key), _Cluster, key)
            if name in {place.partition("/")[0] for place in cluster.spec.volumes.values()}:
                found.append(f"the cluster {cluster.name}")
    return found
