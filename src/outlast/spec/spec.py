"""What was asked, as frozen values: written once to the workspace, read by supervisor and agent."""

from __future__ import annotations

from typing import Literal

import msgspec

from outlast.spec.fields import zone_belongs
from outlast.spec.requirements import Range, Requirements

ParamValue = str | int | float | bool


class MachineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`[machine]`"""

    cloud: str = "local"
    # Where it goes when `cloud` has no machine for it, in this order.
    other_clouds: tuple[str, ...] = ()
    cpus: Range = Range()
    memory_gb: Range = Range()
    gpu: str = ""
    gpus: int = 0
    disk_gb: float = 10.0
    spot: bool = True
    # Let it run on demand when no zone has a spot machine.
    fallback: bool = False
    type: str = ""
    image: str = ""
    # The command runs in it: `image:tag` for docker or podman, `oci:FOLDER` for runc.
    container: str = ""
    zones: tuple[str, ...] = ()
    exclude_zones: tuple[str, ...] = ()

    @property
    def clouds(self) -> tuple[str, ...]:
        return (self.cloud, *self.other_clouds)

    def needs(self, *, spot: bool) -> Requirements:
        return Requirements(
            cpus=self.cpus,
            memory_gb=self.memory_gb,
            gpu=self.gpu,
            gpus=self.gpus,
            disk_gb=self.disk_gb,
            type=self.type,
            image=self.image,
            spot=spot,
            zones=self.zones,
            exclude_zones=self.exclude_zones,
        )

    def needs_on(self, cloud: str, *, spot: bool) -> Requirements:
        """Return what to request from one cloud. `*` among the zones means: these first, then any other.

        Of several clouds, each is restricted by its own zones only.
        """
        needs = self.needs(spot=spot)
        zones = () if "*" in needs.zones else needs.zones
        if not self.other_clouds:
            return msgspec.structs.replace(needs, zones=zones)
        return msgspec.structs.replace(
            needs,
            zones=tuple(zone for zone in zones if zone_belongs(zone, cloud)),
            exclude_zones=tuple(zone for zone in needs.exclude_zones if zone_belongs(zone, cloud)),
        )


class ImageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`[image]`: the recipe of an image."""

    # The family: its newest member is what machines boot from.
    name: str
    # An image or a family; empty: the cloud's own.
    base: str = ""
    packages: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    # Files, relative to the recipe's.
    requirements: tuple[str, ...] = ()
    lock: str = ""
    # Lines for bash, or a file that ends in `.sh`.
    script: str = ""
    # Path on the machine → file or folder here.
    files: dict[str, str] = {}
    warm: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    # Patterns of paths that the scrub leaves alone.
    keep: tuple[str, ...] = ()
    # The builder.
    machine: MachineSpec = MachineSpec(spot=False)
    timeout_s: float = 3600.0


class CodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`[code]`"""

    path: str = "."
    git: str = ""
    ref: str = "HEAD"
    size_max_gb: float = 0.1


class CheckpointSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`[checkpoint]`"""

    # The folder; and, where not all of it is meant, the names and patterns of files and folders in it.
    path: str = ""
    names: tuple[str, ...] = ()
    # The least time between two commits; 0 lets the agent choose from how long a commit takes.
    every_s: float = 0.0
    keep: int = 3
    # Every so many-th checkpoint is kept for good; 0: none.
    keep_every: int = 0
    # `min:loss`: the checkpoint with the least loss stays, too; empty: none. And how many of them.
    keep_best: str = ""
    keep_best_count: int = 1

    @property
    def shown(self) -> str:
        """As people would write it."""
        above = "" if self.path == "." else f"{self.path}/"
        return ", ".join(above + name for name in self.names) or self.path


class LimitSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`[limits]`"""

    cost_usd: float = 0.0
    # From the submit on, or as a moment: seconds since 1970. One of the two, or neither.
    deadline_s: float = 0.0
    deadline_at: float = 0.0
    # How long the job works if nothing interrupts it; 0: nobody knows.
    work_s: float = 0.0
    # How many steps there are: with the steps of checkpoints it tells how much is left.
    steps: int = 0
    max_s: float = 0.0
    crashes: int = 3
    no_progress: int = 8
    # 0: an hour without output, files and processor time; a given value asks for output or files within it.
    hang_after_s: float = 0.0
    keep_on_failure_s: float = 0.0


class Dimension(msgspec.Struct, frozen=True, kw_only=True):
    """What a searched parameter may be: a range, or one of several values."""

    kind: Literal["int", "float", "choice"]
    low: float = 0.0
    high: float = 0.0
    # 0: every whole number, or every number.
    step: float = 0.0
    log: bool = False
    choices: tuple[ParamValue, ...] = ()


class SweepSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`[sweep]`"""

    params: dict[str, Dimension] = {}
    # `min:loss`; several are sought at once.
    goals: tuple[str, ...] = ()
    # 0: twenty, or the whole grid.
    trials: int = 0
    parallel: int = 2
    # 1: each trial is a run of its own. More: so many at a time on machines that stay for the next ones.
    per_machine: int = 1
    sampler: str = "tpe"
    pruner: str = "none"
    # Steps that a trial may do before it can be pruned.
    min_steps: int = 1
    seed: int = 0
    # So many failed trials in a row stop the sweep.
    failures: int = 3
    # Where the goals' values are: `auto`, `log`, `output` or `file:PATH`.
    metrics: str = "auto"
    # Whether parameters that the command has no `{name}` for are added to it as flags.
    flags: bool = True


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has to do with the other runs of its group."""

    task: str
    group: str = ""
    # Tasks that must be ready before it begins, and tasks with whose end it is released.
    after: tuple[str, ...] = ()
    until: tuple[str, ...] = ()
    # When others may count on it: `started`, `done`, `port:N`, `file:PATH`.
    ready: str = "started"
    # More than the least that was asked for: comes when the others have their machines.
    spare: bool = False


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of `outlast.toml`, checked."""

    name: str
    command: str | tuple[str, ...]
    setup: str = ""
    # The command has a terminal, which `outlast attach` enters.
    interactive: bool = False
    params: dict[str, ParamValue] = {}
    env: dict[str, str] = {}
    # Variable on the machine → variable of the submitter. Names only; the values never come near a spec.
    secrets: dict[str, str] = {}
    machine: MachineSpec = MachineSpec()
    code: CodeSpec = CodeSpec()
    data: dict[str, str] = {}
    # Path on the machine → volume, or a folder in it: `demos`, `demos/runs/{run}`.
    volumes: dict[str, str] = {}
    # Variable on the machine → database whose address it holds.
    databases: dict[str, str] = {}
    checkpoint: CheckpointSpec = CheckpointSpec()
    output_path: str = "outputs"
    image: ImageSpec | None = None
    limits: LimitSpec = LimitSpec()
    sweep: SweepSpec | None = None
    # One run at a time has it, whoever starts them, wherever: `db:genomes`.
    exclusive: str = ""
    member: Member | None = None

    @property
    def uses_policy(self) -> bool:
        """Whether the deadline policy chooses machines: deadline and amount of work are known, spot is allowed."""
        limits = self.limits
        return bool((limits.deadline_s or limits.deadline_at) and (limits.work_s or limits.steps) and self.machine.spot)

    @property
    def uses_on_demand(self) -> bool:
        return not self.machine.spot or self.machine.fallback or self.uses_policy


def encode(spec: Spec) -> bytes:
    return msgspec.json.encode(spec)


def decode(body: bytes) -> Spec:
    return msgspec.json.decode(body, type=Spec)
