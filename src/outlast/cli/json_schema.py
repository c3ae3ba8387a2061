"""What `--json` of each command prints: the promise to programs, from which the reference is written.

A field may be added; one that is here keeps its name, its type and its meaning. A test decodes what the commands really
print with these types, and refuses what they do not name.
"""

# No `from __future__ import annotations` here: msgspec would compile each annotation anew in every process.

from typing import Any

import msgspec

from outlast.cli.doctor import Check
from outlast.clouds.cloud import Machine
from outlast.clouds.resources import Backup, Database, Volume
from outlast.cluster.listing import ClusterRow
from outlast.cluster.status import ClusterStatus
from outlast.databases.check import CheckStep
from outlast.drill.judge import Report
from outlast.images.records import BuildResult, RecipeRecord
from outlast.records.resources import ResourceRecord
from outlast.workspace import RunRequest


class _Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Run(_Shape, frozen=True, kw_only=True):
    """A run, as `ps` lists it."""

    run: str
    user: str
    # `running`, `booting`, `waiting` …; of one that is over: how it ended.
    state: str
    ending: str
    attempt: int | None
    cloud: str | None
    zone: str | None
    type: str | None
    spot: bool | None
    # The newest step that is known; null if there is none.
    step: int | None
    checkpoints: int
    # Seconds since 1970.
    submitted_at: float
    age_s: float
    cost_usd: float
    # What it has cost to carry checkpoints between clouds.
    egress_usd: float
    exit_code: int | None
    # What it waits for, or why it ended.
    why: str
    warnings: list[str]
    limit: str
    note: str
    # What it has of `exclusive`.
    holds: str
    # Why no checkpoint was committed for minutes although the folder changes.
    unsaved: str


class Story(_Shape, frozen=True, kw_only=True):
    """A run in full, as `show` tells it."""

    run: str
    # What was asked for: `spec` as in the record.
    request: RunRequest
    # What is the case now: `ending`, `attempts`, `checkpoints` …
    state: dict[str, Any]
    # Every event, in order; `event` says which.
    events: list[dict[str, Any]]
    # Metric → its newest point.
    metrics: dict[str, dict[str, Any]]
    # Why no checkpoint was committed for minutes although the folder changes; empty if that is not so.
    unsaved: str


class Submitted(_Shape, frozen=True, kw_only=True):
    """What was made."""

    workspace: str
    run: str = ""
    # Of a file with `[tasks]`.
    group: str = ""
    runs: list[str] = []
    sweep: str = ""


class Doctor(_Shape, frozen=True, kw_only=True):
    """The set-up."""

    usable: bool
    checks: list[Check]


class Sum(_Shape, frozen=True, kw_only=True):
    """What was spent."""

    cost_usd: float
    on_demand_usd: float
    # The part that is not final, for it still runs.
    estimated_usd: float
    seconds: float
    machines: int
    # Dollars by what they were for: `work`, `lost`, `boot`, `idle`, `stopped`, `disk`, `manual` …
    causes: dict[str, float]
    wasted_usd: float
    # The share of the cost that was work which counts.
    goodput: float | None


class CostLine(_Shape, frozen=True, kw_only=True):
    """One machine, volume or database."""

    kind: str
    name: str
    cloud: str
    zone: str
    type: str
    machine: str
    spot: bool
    begin: float
    end: float
    cost_usd: float
    on_demand_usd: float
    causes: dict[str, float]
    attempt: int
    who: str
    seconds: float
    estimated: bool


class Cost(_Shape, frozen=True, kw_only=True):
    """What was spent, on what."""

    since: float
    until: float
    total: Sum
    # What `groups` are: `run`, `user`, `day`, `cloud` or `machine`.
    by: str
    groups: dict[str, Sum]
    lines: list[CostLine]
    # Runs and clouds that could not be read, and why.
    unreachable: dict[str, str]


class Price(_Shape, frozen=True, kw_only=True):
    """What a machine costs."""

    cloud: str
    region: str
    zone: str
    type: str
    cpus: float
    memory_gb: float
    spot: bool
    price_usd_per_hour: float
    gpu: str
    gpus: int
    on_demand_usd_per_hour: float
    # Where the price is from.
    source: str


class Prices(_Shape, frozen=True, kw_only=True):
    """Offers, the cheapest first."""

    offers: list[Price]
    # Cloud → why it could not be asked.
    problems: dict[str, str]


class Limit(_Shape, frozen=True, kw_only=True):
    """What a user, or everybody (an empty `who`), may spend and has spent; 0 is no limit."""

    who: str
    cost_usd: float
    max_hours: float
    per: str
    max_machines: int
    by: str
    at: float
    used_usd: float
    used_hours: float


class MachineRow(Machine, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine, as `machine list` shows it."""

    whose: str
    by_hand: bool
    # What it costs an hour as it is now.
    usd_per_hour: float
    cost_usd: float
    bills_for_nothing: bool
    # What has changed since it was made.
    drift: list[str]


class MachineShown(MachineRow, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine in full."""

    metadata: dict[str, str]
    # With `--packages`: what was installed or removed since it was made.
    packages_changed: Any = None


class LocalMachine(Machine, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine of the local cloud, of whichever workspace."""

    run: str
    attempt: str
    workspace: str
    age_s: float
    cost_usd: float


class Zone(_Shape, frozen=True, kw_only=True):
    """A zone of the local cloud and its weather; null is not set."""

    zone: str
    capacity: int | None
    quota: int | None
    rate: float | None
    running: int
    mean_life_s: float | None
    grace_s: float
    trace: str | None
    outage: bool
    # Of the cheapest and the dearest machine.
    spot_usd_per_hour: list[float]
    on_demand_usd_per_hour: list[float]


class ImageRow(_Shape, frozen=True, kw_only=True):
    """An image, as `image list` shows it."""

    image: str
    family: str
    # What the family stands for.
    current: bool
    retired: bool
    cloud: str
    bytes: int
    created_at: float
    digest: str
    description: str


class ImageShown(ImageRow, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image in full; null where it was not built by outlast."""

    recipe: RecipeRecord | None
    result: BuildResult | None


class ImageNamed(_Shape, frozen=True, kw_only=True):
    """An image that was built, or that is to be deleted."""

    image: str
    cloud: str = ""
    family: str = ""
    digest: str = ""
    built: bool = False


class HoldingRow(ResourceRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A volume or a database, as `list` shows it."""

    state: str
    why: str


class VolumeShown(HoldingRow, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A volume in full."""

    # Live runs and clusters that name it.
    runs: list[str]
    # Where it is mounted on this computer.
    mounted: list[str]
    volume: Volume | None = None


class DatabaseShown(HoldingRow, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A database in full, but for its password."""

    backups: list[Backup]
    database: Database | None = None


class File(_Shape, frozen=True, kw_only=True):
    """What is in a volume."""

    name: str
    bytes: int
    folder: bool


class SweepRow(_Shape, frozen=True, kw_only=True):
    """A sweep, as `sweep list` shows it."""

    sweep: str
    # `running`, `over` or `halted`.
    state: str
    trials: int
    wanted: int
    goals: list[str]
    best: list[float]


class Trial(_Shape, frozen=True, kw_only=True):
    """One trial of a sweep."""

    trial: int
    # `running`, `complete`, `pruned`, `failed` …
    state: str
    best: bool
    params: dict[str, str | int | float | bool]
    # In the order of `goals`.
    values: list[float]
    metrics: dict[str, float]
    run: str
    why: str
    seconds: float
    attempts: int = 0
    preemptions: int = 0
    cost_usd: float = 0.0


class SweepShown(_Shape, frozen=True, kw_only=True):
    """A sweep in full, the best trial first."""

    sweep: str
    goals: list[str]
    wanted: int
    over: bool
    halted: bool
    why: str
    trials: list[Trial]


# Command → what it prints. Tables without a shape of their own are told in words there.
SHAPES: dict[str, Any] = {
    "cluster list": list[ClusterRow],
    "cluster status": ClusterStatus,
    "cost": Cost,
    "db check": list[CheckStep],
    "db list": list[HoldingRow],
    "db show": DatabaseShown,
    "doctor": Doctor,
    "drill": Report,
    "image build": ImageNamed,
    "image list": list[ImageRow],
    "image prune": list[ImageNamed],
    "image show": ImageShown,
    "limits": list[Limit],
    "local env": dict[str, str],
    "local machines": list[LocalMachine],
    "local zones": list[Zone],
    "machine list": list[MachineRow],
    "machine show": MachineShown,
    "prices": Prices,
    "ps": list[Run],
    "rerun": Submitted,
    "show": Story,
    "submit": Submitted,
    "sweep best": list[Trial],
    "sweep list": list[SweepRow],
    "sweep show": SweepShown,
    "sweep start": Submitted,
    "volume list": list[HoldingRow],
    "volume ls": list[File],
    "volume show": VolumeShown,
}
# Command → what it prints, in words.
IN_WORDS = {
    "cluster jobs": "a list of jobs: `id`, `command`, `who`, `matrix`, `status`, and what Ray tells of them",
    "cluster matrix": "a list of the jobs that were submitted: `id`, and the value of each axis",
    "compare": "`runs` with `run`, `params`, `metrics`, `cost_usd` …; `code`: run → `files` that differ, `note`",
    "plan": "a list of steps: `step`, its fields, `text`; of a run: `choice`, `place`, `sentence`, `options`, `steps`",
    "plot": "`run`; `metrics`: name → points with `step`, `at`, `value`, `attempt`; `marks`: preemptions, resumes",
    "reap": "a list of steps as `plan` prints them, and of `takedown` with `cluster` and `text`",
    "simulate": "the job (`work_s`, `deadline_s` …); `policies`: name → cost and end; `foresight`: the best there was",
    "sync": "a line of JSON for everything that happens: see sync.md",
}
