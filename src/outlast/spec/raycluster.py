"""The reader of Ray cluster files, in the current layout and the previous one. No IO.

One error reports all problems: unfilled markers, unknown fields, values of the wrong type, and fields that are not
supported here. Fields that only work differently become notes.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from outlast.errors import SpecError
from outlast.spec import fields
from outlast.spec.cluster import (
    OUR_OPTIONS,
    ClusterSpec,
    ContainerSpec,
    NodeKind,
    Phases,
    none_or_more,
    options,
    place,
    resources,
)
from outlast.spec.rayaws import read_instance
from outlast.spec.raydocker import Docker, of_kind, read_docker
from outlast.spec.raynode import read_machine
from outlast.spec.reader import Reader, of, text

_MARKER = re.compile(r"\S*CUSTOMIZE\S*")
_PROVIDERS = {"gcp": "gcp", "aws": "aws", "external": "local"}
# Fields of Ray without effect here, with the reason.
_DONE_OTHERWISE = {
    "auth": "outlast connects with its own key",
    "autoscaling_mode": "Ray no longer supports it",
    "cluster_synced_files": "",
    "initial_workers": "Ray no longer supports it; use `min_workers`",
    "metadata": "",
    "no_restart": "",
    "target_utilization_fraction": "Ray no longer supports it",
}
_PHASES = ("initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands")
_PROVIDER_FIELDS = (
    *("type", "region", "availability_zone", "project_id", "module", "cache_stopped_nodes"),
    *("use_internal_ips", "disable_node_updaters"),
)
# Fields of a node type in Ray's files that outlast sets for the whole cluster.
_OF_ONE_KIND = ("worker_setup_commands", "initialization_commands", "labels", "idle_timeout_s", "priority")
_NOTHING: tuple[str, ...] = ()


def parse_ray(table: Any, *, source: str) -> tuple[ClusterSpec, list[str]]:
    """Return the cluster, and notes on fields that work differently. Raises SpecError."""
    if not isinstance(table, Mapping):
        raise SpecError([f"expected a table of fields, got {type(table).__name__}"], source=source)
    reading = _Reading(table)
    spec = reading.read()
    if reading.problems:
        raise SpecError(reading.problems, source=source, hint="nothing was launched; see docs/clusters.md")
    return spec, reading.notes


def _markers(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, str):
        for found in _MARKER.findall(value):
            yield f"{where}: the marker `{found.strip(chr(34) + chr(39))}` has not been filled in"
    elif isinstance(value, Mapping):
        for name, below in value.items():
            yield from _markers(str(name), where or str(name))
            yield from _markers(below, f"{where}.{name}" if where else str(name))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from _markers(below, f"{where}[{index}]")


class _Reading:
    def __init__(self, table: Mapping[str, Any]) -> None:
        self.problems = list(_markers(table, ""))
        self.notes: list[str] = []
        # A marker is reported once; the text that contains it is not checked further.
        self.top = Reader(table, problems=self.problems)
        self.read_machine = read_machine
        self.docker = Docker()

    def read(self) -> ClusterSpec:
        top = self.top
        name = top.take("cluster_name", text, "cluster")
        if "cluster_name" not in top.table:
            top.wrong("cluster_name", "missing")
        elif not _MARKER.search(name):
            name = top.take("cluster_name", fields.name, "cluster")
        cloud, zones = self._provider()
        self._otherwise()
        self.read_machine = read_instance if cloud == "aws" else read_machine
        self.docker = read_docker(top.section_of("docker"))
        head, workers, total = self._kinds(zones)
        start = {role: self._start(f"{role}_start_ray_commands") for role in ("head", "worker")}
        spec = ClusterSpec(
            name=name,
            cloud=cloud,
            head=_with_options(head, start["head"]),
            workers=tuple(_with_options(kind, start["worker"]) for kind in workers),
            max_workers=total,
            upscaling_speed=top.take("upscaling_speed", _number, 1.0),
            idle_s=top.take("idle_timeout_minutes", _number, 5.0) * 60.0,
            phases=Phases(**{_phase(field): top.take(field, _commands, _NOTHING) for field in _PHASES}),
            files=self._files(),
            files_exclude=top.take("rsync_exclude", _strings, _NOTHING),
        )
        if any(name != ".gitignore" for name in top.take("rsync_filter", _strings, _NOTHING)):
            top.wrong("rsync_filter", "only `.gitignore` is supported, which always applies; use `rsync_exclude`")
        top.take("head_node_type", text, "")
        top.finish()
        return spec

    def _provider(self) -> tuple[str, tuple[str, ...]]:
        reader = self.top.section_of("provider")
        if "type" not in reader.table:
            reader.wrong("type", "missing: expected `gcp` or `aws`")
        kind = reader.take("type", text, "gcp")
        if kind not in _PROVIDERS:
            reader.wrong("type", f"unsupported provider `{kind}`: expected one of {', '.join(_PROVIDERS)}")
        region = reader.take("region", text, "")
        given = reader.take("availability_zone", text, "")
        for field in _PROVIDER_FIELDS:
            reader.take(field, lambda value: value, None)
        if reader.table.get("project_id"):
            self.notes.append("provider.project_id: outlast uses the project of your gcloud configuration")
        for field in ("security_group", "cloudwatch", "gcp_credentials"):
            if reader.take(field, lambda value: value, None):
                reader.wrong(field, "not supported: machines have the network and permissions of `outlast setup`")
        if reader.table.get("cache_stopped_nodes"):
            self.notes.append(
                "provider.cache_stopped_nodes: machines are deleted, because the disks of stopped machines cost money"
            )
        reader.finish()
        zones = tuple(part.strip() for part in given.split(",") if part.strip())
        return _PROVIDERS.get(kind, "gcp"), zones or ((region,) if region else ())

    def _otherwise(self) -> None:
        for field, why in _DONE_OTHERWISE.items():
            value = self.top.take(field, lambda value: value, None)
            if value and why:
                self.notes.append(f"{field}: {why}")
        if self.top.table.get("cluster_synced_files"):
            self.top.wrong("cluster_synced_files", "not supported: use `file_mounts`, which go to every machine")
        if self.top.take("file_mounts_sync_continuously", of(bool), False):
            why = "not supported, because machines come and go; `outlast sync` synchronizes one machine"
            self.top.wrong("file_mounts_sync_continuously", why)

    def _kinds(self, zones: tuple[str, ...]) -> tuple[NodeKind, list[NodeKind], int]:
        top = self.top
        fewest, most = top.take("min_workers", none_or_more, 0), top.take("max_workers", none_or_more, -1)
        if "available_node_types" in top.table:
            for old in ("head_node", "worker_nodes", "min_workers"):
                if top.take(old, lambda value: value, None):
                    top.wrong(old, "cannot be combined with `available_node_types`, which replaces it")
            head, workers = self._new_layout(zones)
        else:
            head = self.read_machine(self._section("head_node"), self.notes, _node("head", zones))
            most = max(most, 0) if most >= 0 else max(fewest, 2)
            section = self._section("worker_nodes")
            worker = self.read_machine(section, self.notes, _node("worker", zones, min=fewest, max=most))
            head = _with_container(head, self.docker.head)
            workers = [_with_container(worker, self.docker.worker)]
        total = most if most >= 0 else sum(kind.max for kind in workers)
        for kind in workers:
            if kind.min > kind.max:
                self.problems.append(f"{kind.name}: expected min_workers of at most {kind.max}, got {kind.min}")
        return head, workers, total

    def _section(self, field: str) -> Reader:
        table: dict[str, Any] = self.top.take(field, of(dict), {})
        return Reader(table, section=field, problems=self.problems)

    def _new_layout(self, zones: tuple[str, ...]) -> tuple[NodeKind, list[NodeKind]]:
        top, total = self.top, self.top.table.get("max_workers", 2)
        types: dict[str, Any] = top.take("available_node_types", of(dict), {})
        wanted = top.take("head_node_type", text, "")
        if not wanted or wanted not in types:
            near = difflib.get_close_matches(wanted, map(str, types), n=1)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            top.wrong("head_node_type", f"expected one of `available_node_types`, got `{wanted}`{hint}")
        head, workers = NodeKind(name="head", spot=False), []
        for name, table in types.items():
            section = f"available_node_types.{name}"
            if not isinstance(table, Mapping):
                self.problems.append(f"{section}: expected a table, got {table!r}")
                continue
            reader = Reader(table, section=section, problems=self.problems)
            low = reader.take("min_workers", none_or_more, 0)
            high = reader.take("max_workers", none_or_more, total if isinstance(total, int) else 2)
            config = Reader(
                reader.take("node_config", of(dict), {}), section=f"{section}.node_config", problems=self.problems
            )
            has: dict[str, float] = reader.take("resources", resources, {})
            for field in _OF_ONE_KIND:
                if reader.take(field, lambda value: value, None):
                    reader.wrong(field, "not supported for one node type; set it for the whole cluster")
            own = Reader(reader.take("docker", of(dict), {}), section=f"{section}.docker", problems=self.problems)
            reader.finish()
            is_head = name == wanted
            # Ray ignores `worker_image` for the head's node type.
            container = self.docker.head if is_head else of_kind(own, self.docker.worker)
            base = _node("head" if is_head else name, zones, min=low, max=high, resources=has)
            kind = self.read_machine(config, self.notes, base)
            if is_head:
                head = _with_container(kind, container)
            else:
                workers.append(_with_container(kind, container))
        return head, workers

    def _files(self) -> dict[str, str]:
        found: dict[str, str] = {}
        table: dict[str, Any] = self.top.take("file_mounts", of(dict), {})
        for there, here in table.items():
            try:
                found[place(there)] = text(here)
            except ValueError as problem:
                self.top.wrong(f"file_mounts.{there}", str(problem))
        return found

    def _start(self, field: str) -> dict[str, str]:
        """Return the options of `ray start` in the start commands; report all other commands."""
        found: dict[str, str] = {}
        lines: tuple[str, ...] = self.top.take(field, _commands, ())
        for line in lines:
            for command in re.split(r"&&|;", line):
                if steered := _LAUNCHER.fullmatch(command.strip()):
                    self.notes.append(
                        f"{field}: `{steered[0]}` is left out: it steers Ray's launcher, which outlast replaces"
                    )
                    continue
                try:
                    found |= _start_options(command)
                except ValueError as problem:
                    self.top.wrong(field, str(problem))
        return found


# Variables that only Ray's launcher and its monitor read.
_LAUNCHER = re.compile(r"export\s+(?:AUTOSCALER_[A-Z_]+|RAY_(?:HEAD_IP|CLUSTER_[A-Z_]+|USAGE_STATS_[A-Z_]+))=\S*")


def _start_options(command: str) -> dict[str, str]:
    try:
        argv = shlex.split(command)
    except ValueError as problem:
        raise ValueError(f"cannot parse `{command.strip()}`: {problem}") from problem
    if not argv or argv[:2] == ["ray", "stop"] or argv[0] == "ulimit":
        return {}
    if argv[:2] != ["ray", "start"]:
        why = "is not supported: outlast starts Ray; move other commands to `setup_commands`"
        raise ValueError(f"`{command.strip()}` {why}")
    found: dict[str, str] = {}
    rest = argv[2:]
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ValueError(f"expected an option of `ray start`, got `{word}`")
        name, equals, value = word[2:].partition("=")
        if not equals and rest and not rest[0].startswith("--"):
            value = rest.pop(0)
        if name not in OUR_OPTIONS:
            found |= options({name: value})
    return found


def _with_container(kind: NodeKind, container: ContainerSpec | None) -> NodeKind:
    return msgspec.structs.replace(kind, container=container)


def _with_options(kind: NodeKind, given: dict[str, str]) -> NodeKind:
    return msgspec.structs.replace(kind, options=given)


def _phase(field: str) -> str:
    return field.removesuffix("_commands")


def _commands(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError(f"expected a list of commands, got {value!r}")
    for item in value:
        if not isinstance(item, str):
            raise ValueError(f"expected commands as text, got {item!r}")
    return tuple(item for item in value if item.strip())


def _node(name: str, zones: tuple[str, ...], **fields: Any) -> NodeKind:
    return NodeKind(name=name, zones=zones, spot=name != "head", **fields)


def _strings(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"expected a list of texts, got {value!r}")
    return tuple(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"expected a number of zero or more, got {value!r}")
    return float(value)
