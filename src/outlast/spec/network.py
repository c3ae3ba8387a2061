"""`[clouds.NAME]`: regions, image and network of the machines on a cloud, in the project's or the user's file.

The network settings of a run are in its spec, so that any supervisor launches its machines there. Machines that no run
owns get those of the environment, which a command sets from the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from outlast.clouds.traits import is_known, known_clouds
from outlast.errors import UsageError
from outlast.spec.reader import Reader, of, text, texts

# The network settings of this computer's commands: cloud → settings, as JSON.
VARIABLE = "OUTLAST_NETWORKS"


class NetworkSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The network of machines on one cloud. Empty fields mean the cloud's default network."""

    # A network or VPC, and its subnetworks: one for each region or zone in which machines may start.
    network: str = ""
    subnetworks: tuple[str, ...] = ()
    # Network tags (firewall rules select machines by them), or security groups instead of outlast's own.
    tags: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    # A public IPv4 address. Without one, the network must have a way to the cloud's APIs.
    external_address: bool = True
    # A key of the cloud's key service for the disks.
    encryption_key: str = ""
    # Labels or tags of machines and disks, for the allocation of costs.
    labels: dict[str, str] = {}


class CloudSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[clouds.NAME]`"""

    # Used by machines that state no zones and no image.
    regions: tuple[str, ...] = ()
    image: str = ""
    network: NetworkSpec = NetworkSpec()


def read_clouds(reader: Reader) -> dict[str, CloudSettings]:
    """Read `[clouds]`: one table for each cloud."""
    found: dict[str, CloudSettings] = {}
    for name in reader.table:
        table: dict[str, Any] = reader.take(name, of(dict), {})
        if not is_known(name):
            reader.wrong(name, f"unknown cloud; known here: {', '.join(known_clouds())}")
            continue
        inner = Reader(table, section=f"clouds.{name}", problems=reader.problems)
        found[name] = _settings(inner)
    return found


def _settings(reader: Reader) -> CloudSettings:
    settings = CloudSettings(
        regions=reader.take("regions", texts, ()),
        image=reader.take("image", text, ""),
        network=NetworkSpec(
            network=reader.take("network", text, ""),
            subnetworks=reader.take("subnetworks", texts, ()),
            tags=reader.take("tags", texts, ()),
            security_groups=reader.take("security_groups", texts, ()),
            external_address=reader.take("external_address", of(bool), True),
            encryption_key=reader.take("encryption_key", text, ""),
            labels=reader.take("labels", _labels, {}),
        ),
    )
    reader.finish()
    return settings


def _labels(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f'expected a table such as {{ team = "vision" }}, got {value!r}')
    for name, one in value.items():
        if not isinstance(one, str):
            raise ValueError(f"{name}: expected text, got {one!r}")
        if name.startswith("outlast-"):
            raise ValueError(f"{name}: names that start with `outlast-` are reserved; choose another")
    return dict(value)


def to_environment(settings: Mapping[str, CloudSettings]) -> str:
    """Return the value of the variable; empty if all networks are the clouds' default ones."""
    networks = {name: one.network for name, one in settings.items() if one.network != NetworkSpec()}
    return msgspec.json.encode(networks).decode() if networks else ""


def network_of(cloud: str, environment: Mapping[str, str]) -> NetworkSpec:
    """Return the network settings of a cloud in the environment. Raises UsageError."""
    value = environment.get(VARIABLE, "")
    if not value:
        return NetworkSpec()
    try:
        table = msgspec.json.decode(value)
        return msgspec.convert(table.get(cloud, {}), NetworkSpec)
    except (AttributeError, msgspec.MsgspecError) as problem:
        hint = 'expected JSON such as {"gcp": {"network": "research"}}; `outlast config` shows the settings'
        raise UsageError(f"{VARIABLE}: {problem}", hint=hint) from problem
