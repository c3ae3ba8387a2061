"""The specification of a run as frozen values: written once to the workspace, read by supervisor and agent."""

from __future__ import annotations

from typing import Literal

import msgspec

from outlast.clouds.traits import DEFAULT_CLOUD
from outlast.spec.fields import zone_belongs
from outlast.spec.gpus import GpuChoice, matches_gpu
from outlast.spec.network import NetworkSpec
from outlast.spec.requirements import Range, Requirements

ParamValue = str | int | float | bool


class MachineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`[machine]`"""

    cloud: str = DEFAULT_CLOUD
    # Tried in this order when `cloud` has no machine.
    other_clouds: tuple[str, ...] = ()
    cpus: Range = Range()
    memory_gb: Range = Range()
    gpu: str = ""
    gpus: int = 0
    # Tried in this order where no machine with `gpu` is available.
    other_gpus: tuple[GpuChoice, ...] = ()
    disk_gb: float = 10.0
    spot: bool = True
    # Use an on-demand machine when no zone has a spot machine.
    fallback: bool = False
    type: str = ""
    image: str = ""
    # The command's container: `image:tag` for docker or podman, `oci:FOLDER` for runc.
    container: str = ""
    zones: tuple[str, ...] = ()
    exclude_zones: tuple[str, ...] = ()
    # Machines on demand of this reservation: a name on Google Cloud, an id on AWS.
    reservation: str = ""
    # Cloud → the network of the machines there; a cloud that is missing has its default network.
    networks: dict[str, NetworkSpec] = {}
    # The machines that execute one attempt together, all in one zone: at most, and at least (0: exactly `nodes`).
    nodes: int = 1
    nodes_least: int = 0
    # Where the workspace's bucket is, as found at the submission; empty if it is unknown or a folder.
    near: str = ""

    @property
    def clouds(self) -> tuple[str, ...]:
        return (self.cloud, *self.other_clouds)

    @property
    def gpu_choices(self) -> tuple[GpuChoice, ...]:
        """The GPUs that the machine may have, the preferred first; empty without a GPU."""
        return (GpuChoice(self.gpu, self.gpus), *self.other_gpus) if self.gpus else ()

    def gpu_place(self, gpu: str, gpus: int) -> int:
        """Return the place of a machine's GPUs in the user's order."""
        found = (
            place for place, one in enumerate(self.gpu_choices) if one.count == gpus and matches_gpu(one.name, gpu)
        )
        return next(found, len(self.gpu_choices))

    def needs(self, *, spot: bool) -> Requirements:
        return Requirements(
            cpus=self.cpus,
            memory_gb=self.memory_gb,
            gpu=self.gpu,
            gpus=self.gpus,
            other_gpus=self.other_gpus,
            disk_gb=self.disk_gb,
            type=self.type,
            image=self.image,
            spot=spot,
            zones=self.zones,
            exclude_zones=self.exclude_zones,
            near=self.near,
            anywhere="*" in self.zones,
        )

    def needs_on(self, cloud: str, *, spot: bool) -> Requirements:
        """Return the requirements for one cloud. `*` among the zones means: prefer these zones, then use any other in
        the world.

        With several clouds, each is restricted by its own zones only.
        """
        needs = msgspec.structs.replace(self.needs(spot=spot), network=self.networks.get(cloud))
        zones = () if "*" in needs.zones else needs.zones
        if not self.other_clouds:
            return msgspec.structs.replace(needs, zones=zones)
        return msgspec.structs.replace(
            needs,
            zones=tuple(zone for zone in zones if zone_belongs(zone, cloud)),
            exclude_zones=tuple(zone for zone in needs.exclude_zones if zone_belongs(zone, cloud)),
        )


class ImageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`[image]`: the recipe of a machine image."""

    # The image family; machines boot from its newest image.
    name: str
    # An image or a family; empty: the cloud's default image.
    base: str = ""
    packages: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    # Requirement files, relative to the recipe.
    requirements: tuple[str, ...] = ()
    lock: str = ""
    # Bash commands, or the name of a `.sh` file.
    script: str = ""
    # Path on the machine → local file or folder.
    files: dict[str, str] = {}
    warm: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    # Patterns of paths that are not removed before the image is taken.
    keep: tuple[str, ...] = ()
    # The machine that builds the image.
    machine: MachineSpec = MachineSpec(spot=False)
    timeout_s: float = 3600.0


class CodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`[code]`"""

    path: str = "."
    git: str = ""
    ref: str = "HEAD"
    size_max_gb: float = 0.1


class EnvironmentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`[environment]`: the Python packages of the command."""

    # `auto`: the first file in the code folder that lists packages. `none`: no packages. `host`: the packages of this
    # computer, on clouds that share its files. Otherwise the name of the file.
    source: str = "auto"
    # Such as `3.12`; empty: by the project's files, else the submitter's.
    python: str = ""
    extras: tuple[str, ...] = ()
    # The backend of PyTorch, such as `cpu` or `cu128`; empty: the one of the package index.
    torch: str = ""
    # Where uv finds Pythons for images without one: a mirror of python-build-standalone, or a list of downloads (JSON).
    python_mirror: str = ""


class CheckpointSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`[checkpoint]`"""

    # The folder, and the names and patterns of the files in it that belong to a checkpoint; no names: all files.
    path: str = ""
    names: tuple[str, ...] = ()
    # The minimum time between two checkpoints; 0: the agent derives it from the duration of a checkpoint.
    every_s: float = 0.0
    keep: int = 3
    # Every n-th checkpoint is kept forever; 0: none.
    keep_every: int = 0
    # `min:loss`: also keep the checkpoints with the lowest loss, `keep_best_count` of them; empty: none.
    keep_best: str = ""
    keep_best_count: int = 1
    # At a notice: save at once, or work on until the successor is ready or the rest of the time is needed for saving.
    # Empty: work on if the trainer library has measured how long a save takes.
    on_notice: str = ""

    @property
    def shown(self) -> str:
        """Return the path in the notation of `outlast.toml`."""
        above = "" if self.path == "." else f"{self.path}/"
        return ", ".join(above + name for name in self.names) or self.path


class LimitSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`[limits]`"""

    cost_usd: float = 0.0
    # Seconds since the submission, or seconds since 1970. At most one of the two is set.
    deadline_s: float = 0.0
    deadline_at: float = 0.0
    # The job's duration without interruptions; 0: unknown.
    work_s: float = 0.0
    # The total number of steps. Together with the step of a checkpoint it gives the remaining work.
    steps: int = 0
    max_s: float = 0.0
    crashes: int = 3
    # Exit codes after which the run starts again without counting a crash, or ends at once.
    retry_on_exit: tuple[int, ...] = ()
    fail_on_exit: tuple[int, ...] = ()
    no_progress: int = 8
    # 0: an hour without output, file changes and CPU time; otherwise: this long without output or file changes.
    hang_after_s: float = 0.0
    # The run saves and stops when all its GPUs have been idle for this long; 0: never.
    idle_gpu_s: float = 0.0
    keep_on_failure_s: float = 0.0


class RetentionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`[retention]`"""

    # Seconds after its end until a supervisor deletes the run.
    older_than_s: float
    # The best runs of the same name are kept; 0: none.
    keep_best: int = 0
    # `min:loss`: what `keep_best` compares.
    metric: str = ""
    # The outputs and the story stay; checkpoints, logs and metrics go.
    keep_outputs: bool = False
    # Only runs that failed.
    failed: bool = False


TargetKind = Literal["webhook", "command", "apprise"]


class NotifyTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message goes: the environment variable of the supervisor, or `file:PATH`, that holds URL or command."""

    kind: TargetKind
    reference: str


class NotifySpec(msgspec.Struct, frozen=True, kw_only=True):
    """`[notify]`"""

    events: tuple[str, ...] = ("finished", "failed", "waiting", "limit", "budget", "drill_failed")
    # A run that waits for a machine is reported after this time.
    waiting_after_s: float = 1800.0
    targets: tuple[NotifyTarget, ...] = ()
    # `outlast run` shows its end on the desktop.
    desktop: bool = False


class Dimension(msgspec.Struct, frozen=True, kw_only=True):
    """The values that a searched parameter may take: a range, or a list of choices."""

    kind: Literal["int", "float", "choice"]
    low: float = 0.0
    high: float = 0.0
    # 0: every integer, or every number.
    step: float = 0.0
    log: bool = False
    choices: tuple[ParamValue, ...] = ()


class SweepSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`[sweep]`"""

    params: dict[str, Dimension] = {}
    # `min:loss`; several goals are optimized together.
    goals: tuple[str, ...] = ()
    # 0: 20, or the whole grid.
    trials: int = 0
    parallel: int = 2
    # 1: each trial is a separate run. More: trials share a worker machine, this many at a time.
    per_machine: int = 1
    sampler: str = "tpe"
    pruner: str = "none"
    # The steps of a trial before it can be pruned.
    min_steps: int = 1
    seed: int = 0
    # This many failed trials in a row stop the sweep.
    failures: int = 3
    # The source of the goals' values: `auto`, `log`, `output` or `file:PATH`.
    metrics: str = "auto"
    # Append parameters without a `{name}` in the command as flags.
    flags: bool = True


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A run's place in its group."""

    task: str
    group: str = ""
    # Tasks that must be ready before it starts, and tasks whose end releases it.
    after: tuple[str, ...] = ()
    until: tuple[str, ...] = ()
    # The condition under which others may start: `started`, `done`, `port:N`, `file:PATH`.
    ready: str = "started"
    # Above the minimum count: starts once the others have their machines.
    spare: bool = False


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """A validated `outlast.toml`."""

    name: str
    command: str | tuple[str, ...]
    setup: str = ""
    # The command gets a terminal, to which `outlast attach` connects.
    interactive: bool = False
    params: dict[str, ParamValue] = {}
    env: dict[str, str] = {}
    # Variable on the machine → variable of the submitter. Names only; a spec never contains the values.
    secrets: dict[str, str] = {}
    machine: MachineSpec = MachineSpec()
    code: CodeSpec = CodeSpec()
    environment: EnvironmentSpec = EnvironmentSpec()
    data: dict[str, str] = {}
    # Path on the machine → volume or a folder in it: `demos`, `demos/runs/{run}`.
    volumes: dict[str, str] = {}
    # Variable on the machine → database whose URL it holds.
    databases: dict[str, str] = {}
    checkpoint: CheckpointSpec = CheckpointSpec()
    output_path: str = "outputs"
    image: ImageSpec | None = None
    limits: LimitSpec = LimitSpec()
    # When a supervisor deletes the run; None: never.
    retention: RetentionSpec | None = None
    notify: NotifySpec | None = None
    sweep: SweepSpec | None = None
    # A lock that one run of the workspace holds at a time: `db:genomes`.
    exclusive: str = ""
    member: Member | None = None

    @property
    def uses_policy(self) -> bool:
        """Whether the deadline policy chooses machines: deadline and work are known, and spot is allowed."""
        limits = self.limits
        return bool((limits.deadline_s or limits.deadline_at) and (limits.work_s or limits.steps) and self.machine.spot)

    @property
    def uses_on_demand(self) -> bool:
        return not self.machine.spot or self.machine.fallback or self.uses_policy


def encode(spec: Spec) -> bytes:
    return msgspec.json.encode(spec)


def decode(body: bytes) -> Spec:
    return msgspec.json.decode(body, type=Spec)
