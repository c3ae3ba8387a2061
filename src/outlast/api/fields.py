"""The fields of `outlast.toml` as types of arguments. `outlast.app.submission` checks their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, TypedDict

Path = str | PathLike[str]
ParamValue = str | int | float | bool


class MachineFields(TypedDict, total=False):
    """`[machine]`"""

    cloud: str | Sequence[str]
    cpus: int | float | str
    memory: str
    gpu: str | Sequence[str]
    disk: str
    spot: bool
    fallback: bool
    type: str
    image: str
    container: str
    zones: Sequence[str]
    exclude_zones: Sequence[str]
    reservation: str
    nodes: int | str


class CheckpointFields(TypedDict, total=False):
    """`[checkpoint]`"""

    path: Path
    every: str | int | float
    keep: int
    keep_every: int
    keep_best: str
    keep_best_count: int


class CodeFields(TypedDict, total=False):
    """`[code]`"""

    path: Path
    git: str
    ref: str
    size_max: str


class LimitFields(TypedDict, total=False):
    """`[limits]`"""

    cost_usd: float
    deadline: str
    work: str
    steps: int
    max_hours: float
    crashes: int
    retry_on_exit: int | Sequence[int]
    fail_on_exit: int | Sequence[int]
    no_progress: int
    hang_after: str
    idle_gpu: str
    keep_on_failure: str


# `from` is a keyword of Python.
EnvironmentFields = TypedDict(
    "EnvironmentFields",
    {"from": str, "python": str, "extras": Sequence[str], "torch": str, "python_mirror": str},
    total=False,
)


class MachineOptions(TypedDict, total=False):
    """Arguments that describe machines and the software on them: of runs and of the workers of an Executor."""

    cloud: str | Sequence[str]
    cpus: int | float | str
    memory: str
    gpu: str | Sequence[str]
    disk: str
    spot: bool
    fallback: bool
    type: str
    image: str
    container: str
    zones: Sequence[str]
    exclude_zones: Sequence[str]
    reservation: str
    machine: MachineFields | Mapping[str, Any] | object
    env: Mapping[str, str | int | float]
    secrets: Sequence[str] | Mapping[str, str | bool]
    code: Path | CodeFields | Mapping[str, Any] | object
    environment: str | EnvironmentFields | Mapping[str, Any] | object
    data: Mapping[str, Path]
    volumes: Mapping[str, str]
    databases: Mapping[str, str]
    clouds: Mapping[str, Any]
    setup: str


class RunFields(MachineOptions, total=False):
    """The arguments of `outlast.submit`: every field of `outlast.toml` that describes one run."""

    name: str
    nodes: int | str
    params: Mapping[str, ParamValue]
    checkpoint: Path | CheckpointFields | Mapping[str, Any] | object
    outputs: Path | Mapping[str, Any]
    limits: LimitFields | Mapping[str, Any] | object
    notify: Mapping[str, Any] | object
    retention: Mapping[str, Any] | object
    interactive: bool
    exclusive: str
