"""The reader of `[cluster]`: a head and its workers. No IO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from outlast.clouds.traits import DEFAULT_CLOUD
from outlast.errors import SpecError
from outlast.spec import fields, quantity
from outlast.spec.reader import Reader, of, text, texts
from outlast.spec.requirements import Range, Requirements
from outlast.spec.spec import CodeSpec, EnvironmentSpec

_KIND = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,38}[A-Za-z0-9])?")
_RESOURCE = re.compile(r"[A-Za-z_][A-Za-z0-9_:.-]*")
# Options of `ray start` that outlast sets: they decide which nodes belong to the cluster and who may connect.
OUR_OPTIONS = frozenset(
    {
        *("head", "address", "port", "autoscaling-config", "block", "node-ip-address", "num-cpus", "num-gpus"),
        # Old names of `port` and `address`.
        *("redis-port", "redis-address"),
        *("resources", "temp-dir", "dashboard-host", "dashboard-port", "include-dashboard", "disable-usage-stats"),
    }
)
HEAD = "head"


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The container in which Ray and the setup commands run, on machines of one kind."""

    # `image:tag` for docker or podman, `oci:FOLDER` for runc.
    image: str
    name: str = "ray_container"
    # Pull even if the image is present.
    pull: bool = False
    podman: bool = False
    # Pass the machine's GPUs to the container.
    gpus: bool = True
    env: dict[str, str] = {}
    # `/on/the/machine:/inside`, with `:ro` at the end for read-only.
    volumes: tuple[str, ...] = ()
    ulimits: dict[str, str] = {}
    capabilities: tuple[str, ...] = ()


class NodeKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of node: its machine, the number of nodes, and the resources that Ray schedules on it."""

    name: str
    type: str = ""
    cpus: Range = Range()
    memory_gb: Range = Range()
    gpu: str = ""
    gpus: int = 0
    disk_gb: float = 10.0
    image: str = ""
    zones: tuple[str, ...] = ()
    exclude_zones: tuple[str, ...] = ()
    spot: bool = True
    min: int = 0
    max: int = 0
    # Ray's names: CPU, GPU, memory (in bytes), and custom ones. Omitted ones come from the machine.
    resources: dict[str, float] = {}
    # Further options of `ray start`, without dashes.
    options: dict[str, str] = {}
    metadata: dict[str, str] = {}
    container: ContainerSpec | None = None

    def needs(self) -> Requirements:
        return Requirements(
            type=self.type,
            cpus=self.cpus,
            memory_gb=self.memory_gb,
            gpu=self.gpu,
            gpus=self.gpus,
            disk_gb=self.disk_gb,
            image=self.image,
            spot=self.spot,
            zones=self.zones,
            exclude_zones=self.exclude_zones,
        )


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Bash commands, in the order of execution. Each runs once per machine."""

    initialization: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    head_setup: tuple[str, ...] = ()
    worker_setup: tuple[str, ...] = ()

    def of(self, role: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
        own = ("head_setup", self.head_setup) if role == HEAD else ("worker_setup", self.worker_setup)
        return (("initialization", self.initialization), ("setup", self.setup), own)


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A validated cluster."""

    name: str
    cloud: str = DEFAULT_CLOUD
    head: NodeKind = NodeKind(name=HEAD, spot=False)
    workers: tuple[NodeKind, ...] = ()
    max_workers: int = 0
    upscaling_speed: float = 1.0
    # A worker without tasks is deleted after `idle_s`, a cluster without jobs after `idle_down_s` (0: never).
    idle_s: float = 300.0
    idle_down_s: float = 3600.0
    # Workers delete themselves after this long without a head.
    orphan_s: float = 300.0
    # The cloud deletes every machine of the cluster after this long.
    life_s: float = 7 * 86400.0
    phases: Phases = Phases()
    # Path on the machines → local file or folder.
    files: dict[str, str] = {}
    files_exclude: tuple[str, ...] = ()
    env: dict[str, str] = {}
    code: CodeSpec | None = None
    # The packages of Ray and all jobs; `host`: those of the image, or of this computer.
    environment: EnvironmentSpec = EnvironmentSpec(source="host")
    # Path on the machines → volume or a folder in it.
    volumes: dict[str, str] = {}


def read_cluster(reader: Reader, name: str, cloud: str) -> ClusterSpec:
    """Read the cluster; `name` and `cloud` are the defaults from the rest of the file."""
    image = reader.take("container", fields.container, "")
    container = ContainerSpec(image=image) if image else None
    workers = tuple(msgspec.structs.replace(kind, container=container) for kind in _workers(reader))
    spec = ClusterSpec(
        name=reader.take("name", fields.name, name or "cluster"),
        cloud=reader.take("cloud", fields.cloud, cloud),
        head=msgspec.structs.replace(_kind(_below(reader, "head"), HEAD), container=container),
        workers=workers,
        max_workers=reader.take("max_workers", none_or_more, sum(kind.max for kind in workers)),
        upscaling_speed=reader.take("upscaling_speed", _speed, 1.0),
        idle_s=reader.take("idle", quantity.duration_s, 300.0),
        idle_down_s=reader.take("idle_down", _or_never, 3600.0),
        orphan_s=reader.take("orphan", quantity.duration_s, 300.0),
        life_s=reader.take("life", quantity.duration_s, 7 * 86400.0),
        phases=Phases(
            initialization=reader.take("initialization", texts, ()),
            setup=reader.take("setup", texts, ()),
            head_setup=reader.take("head_setup", texts, ()),
            worker_setup=reader.take("worker_setup", texts, ()),
        ),
        files=reader.take("files", _files, {}),
        env=reader.take("env", _env, {}),
    )
    reader.finish()
    if not spec.workers:
        reader.wrong(
            "workers", "missing: a cluster needs at least one kind of worker, e.g. [cluster.workers.cpu] max = 3"
        )
    for kind in spec.workers:
        if kind.max > spec.max_workers:
            reader.wrong(
                "max_workers", f"expected at least {kind.max}, the `max` of `{kind.name}`, got {spec.max_workers}"
            )
    return spec


def _below(reader: Reader, field: str) -> Reader:
    table: dict[str, Any] = reader.take(field, of(dict), {})
    return Reader(table, section=f"{reader.section}.{field}", problems=reader.problems)


def _workers(reader: Reader) -> tuple[NodeKind, ...]:
    above = _below(reader, "workers")
    found = []
    for name in above.table:
        if not _KIND.fullmatch(name) or name == HEAD:
            above.wrong(
                name, "invalid name of a worker kind: expected letters, digits, `-`, `_` and `.`, and not `head`"
            )
        found.append(_kind(_below(above, name), name))
    return tuple(found)


def _kind(reader: Reader, name: str) -> NodeKind:
    gpu, gpus = reader.take("gpu", quantity.gpu_count, ("", 0))
    head = name == HEAD
    counts = (0, 0)
    if not head:
        low = reader.take("min", none_or_more, 0)
        counts = (low, reader.take("max", none_or_more, max(low, 1)))
        if counts[0] > counts[1]:
            reader.wrong("min", f"expected at most `max`, which is {counts[1]}, got {counts[0]}")
    kind = NodeKind(
        name=name,
        type=reader.take("type", text, ""),
        cpus=reader.take("cpus", quantity.number_range, Range()),
        memory_gb=reader.take("memory", quantity.size_range_gb, Range()),
        gpu=gpu,
        gpus=gpus,
        disk_gb=reader.take("disk", quantity.size_gb, 10.0),
        image=reader.take("image", text, ""),
        zones=reader.take("zones", texts, ()),
        exclude_zones=reader.take("exclude_zones", texts, ()),
        # The drivers of all jobs run on the head, so it is on demand unless the file says otherwise.
        spot=reader.take("spot", of(bool), not head),
        min=counts[0],
        max=counts[1],
        resources=reader.take("resources", resources, {}),
        options=reader.take("ray", options, {}),
    )
    reader.finish()
    return kind


def none_or_more(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"expected a whole number, got {value!r}")
    if value < 0:
        raise ValueError(f"expected zero or more, got {value}")
    return value


def _speed(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"expected a number of zero or more, got {value!r}")
    return float(value)


def _or_never(value: Any) -> float:
    return 0.0 if value == "never" else quantity.duration_s(value)


def resources(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a table of numbers, got {value!r}")
    found: dict[str, float] = {}
    for name, amount in value.items():
        if not isinstance(name, str) or not _RESOURCE.fullmatch(name):
            raise ValueError(f"invalid name of a resource {name!r}: expected letters, digits and `_ : . -`")
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < float("inf"):
            raise ValueError(f"{name}: expected a number of zero or more, got {amount!r}")
        found[name] = float(amount)
    return found


def options(value: Any) -> dict[str, str]:
    """Read options of `ray start`. Raises ValueError for options that outlast sets."""
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a table of options, got {value!r}")
    found: dict[str, str] = {}
    for name, given in value.items():
        plain = str(name).lstrip("-").replace("_", "-")
        if plain in OUR_OPTIONS:
            raise ValueError(f"`{name}` is set by outlast; describe the node in `resources`")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", plain):
            raise ValueError(f"invalid option of `ray start` {name!r}: expected lower-case letters, digits and `-`")
        found[plain] = str(given).lower() if isinstance(given, bool) else str(given)
    return found


def _files(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a table of paths, got {value!r}")
    return {place(there): text(here) for there, here in value.items()}


def place(value: Any) -> str:
    path = text(value)
    if not path.startswith(("/", "~/")) or ".." in path.split("/"):
        raise ValueError(
            f"expected a full path on the machines, or one that starts with `~/`, without `..`, got {value!r}"
        )
    return path.rstrip("/")


def _env(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a table of variables, got {value!r}")
    for name in value:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)) or str(name).startswith("OUTLAST_"):
            raise ValueError(f"invalid name {name!r}: expected letters, digits and `_`, and not `OUTLAST_…`")
    return {str(name): str(given) for name, given in value.items()}


def parse_cluster(table: Mapping[str, Any], *, name: str, source: str) -> ClusterSpec:
    """Return the cluster of a project file. Raises SpecError with all problems."""
    problems: list[str] = []
    machine = table.get("machine", {})
    cloud = machine.get("cloud", DEFAULT_CLOUD) if isinstance(machine, Mapping) else DEFAULT_CLOUD
    spec = read_cluster(Reader(table, problems=problems).section_of("cluster"), name, str(cloud))
    if problems:
        raise SpecError(problems, source=source, hint="see `[cluster]` in docs/spec.md")
    return spec
