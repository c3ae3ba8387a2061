"""Types of the JSON that commands print with `--json`: a stable interface, and the source of the reference.

Fields may be added; an existing field keeps its name, type and meaning. A test decodes the real output of the commands
with these types and refuses unknown fields.
"""

# No `from __future__ import annotations` here: msgspec would compile every annotation again in each process.

from typing import Any

from outlast.app.diagnosis import Check
from outlast.app.sweeps import SweepRow as SweepRow
from outlast.app.types import (
    Backup,
    BuildResult,
    CheckStep,
    ClusterRow,
    ClusterStatus,
    Database,
    Machine,
    PruneResult,
    RecipeRecord,
    ResourceRecord,
    RunArchive,
    RunRequest,
    Volume,
    WorkspaceUse,
)
from outlast.app.types import DrillReport as Report
from outlast.cli.json_runs import NoteShown as NoteShown
from outlast.cli.json_runs import RunRow as RunRow
from outlast.cli.json_runs import Shape
from outlast.cli.json_runs import SubmitResult as SubmitResult


class RunShown(Shape, frozen=True, kw_only=True):
    """A run in full, as `show` prints it."""

    run: str
    # The request: `spec` as in the record.
    request: RunRequest
    # The present state: `ending`, `attempts`, `checkpoints` …
    state: dict[str, Any]
    # Every event, in order; `event` is its type.
    events: list[dict[str, Any]]
    # Metric → its newest point.
    metrics: dict[str, dict[str, Any]]
    # The reason why no checkpoint was committed for minutes although the folder changes; usually empty.
    unsaved: str
    # The note: `tags` and `text`.
    note: dict[str, Any]
    # The newest sample of what a live run uses; null after the end.
    usage: dict[str, Any] | None


class DoctorReport(Shape, frozen=True, kw_only=True):
    """The result of all checks."""

    usable: bool
    checks: list[Check]


class CostSum(Shape, frozen=True, kw_only=True):
    """Spending, added up."""

    cost_usd: float
    on_demand_usd: float
    # The part that is an estimate, because the machine still runs.
    estimated_usd: float
    seconds: float
    machines: int
    # Dollars by cause: `work`, `lost`, `boot`, `idle`, `stopped`, `disk`, `manual` …
    causes: dict[str, float]
    wasted_usd: float
    # The share of the cost that became progress.
    goodput: float | None


class CostLine(Shape, frozen=True, kw_only=True):
    """Spending on one machine, volume or database."""

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


class CostReport(Shape, frozen=True, kw_only=True):
    """Spending by group and by item."""

    since: float
    until: float
    total: CostSum
    # The kind of `groups`: `run`, `user`, `day`, `cloud` or `machine`.
    by: str
    groups: dict[str, CostSum]
    lines: list[CostLine]
    # Runs and clouds that could not be read, and why.
    unreachable: dict[str, str]


class PriceRow(Shape, frozen=True, kw_only=True):
    """The price of a machine."""

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
    # The origin of the price, when it was true, and whether it was derived from other prices.
    source: str
    price_at: float
    price_guessed: bool
    # The lifetime of a spot machine that the cloud predicts; 0: unknown.
    advised_life_s: float
    # The price of its public IPv4 address, which is billed in addition; 0 without one.
    address_usd_per_hour: float
    # The price of a GB to the workspace, and from there; 0 within a region.
    sent_usd_per_gb: float
    received_usd_per_gb: float


class PriceList(Shape, frozen=True, kw_only=True):
    """Offers, the cheapest first."""

    offers: list[PriceRow]
    # Cloud → why it could not be queried.
    problems: dict[str, str]


class SettingRow(Shape, frozen=True, kw_only=True):
    """A setting, its value, and the file, variable or default that it comes from."""

    name: str
    value: Any
    source: str


class SettingList(Shape, frozen=True, kw_only=True):
    """The settings that apply, and the path of the user's file."""

    user_file: str
    exists: bool
    settings: list[SettingRow]


class LimitRow(Shape, frozen=True, kw_only=True):
    """A limit of a user, or of the workspace (empty `who`), and its usage; 0 means unlimited."""

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
    # The present price per hour.
    usd_per_hour: float
    cost_usd: float
    billed_while_stopped: bool
    # Differences since the machine was created.
    drift: list[str]


class MachineShown(MachineRow, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine in full."""

    metadata: dict[str, str]
    # With `--packages`: packages that were installed or removed since the machine was created.
    packages_changed: Any = None


class LocalMachine(Machine, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine of the local cloud, in any workspace."""

    run: str
    attempt: str
    workspace: str
    age_s: float
    cost_usd: float


class ZoneRow(Shape, frozen=True, kw_only=True):
    """A zone of the local cloud and its conditions; null means not set."""

    zone: str
    capacity: int | None
    quota: int | None
    rate: float | None
    running: int
    mean_life_s: float | None
    grace_s: float
    trace: str | None
    outage: bool
    # The prices of the cheapest and the most expensive machine.
    spot_usd_per_hour: list[float]
    on_demand_usd_per_hour: list[float]


class ImageRow(Shape, frozen=True, kw_only=True):
    """An image, as `image list` shows it."""

    image: str
    family: str
    # Whether the family name resolves to this image.
    current: bool
    retired: bool
    cloud: str
    bytes: int
    created_at: float
    digest: str
    description: str


class ImageShown(ImageRow, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image in full; null if outlast did not build it."""

    recipe: RecipeRecord | None
    result: BuildResult | None


class ImageNamed(Shape, frozen=True, kw_only=True):
    """An image that was built, or that prune deletes."""

    image: str
    cloud: str = ""
    family: str = ""
    digest: str = ""
    built: bool = False


class ResourceRow(ResourceRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A volume or a database, as `list` shows it."""

    state: str
    why: str


class VolumeShown(ResourceRow, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A volume in full."""

    # Live runs and clusters that name it.
    runs: list[str]
    # Mount points on this computer.
    mounted: list[str]
    volume: Volume | None = None


class DatabaseShown(ResourceRow, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A database in full, without its password."""

    backups: list[Backup]
    database: Database | None = None


class FileRow(Shape, frozen=True, kw_only=True):
    """A file or folder in a volume."""

    name: str
    bytes: int
    folder: bool


class TrialRow(Shape, frozen=True, kw_only=True):
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


class SweepShown(Shape, frozen=True, kw_only=True):
    """A sweep in full, the best trial first."""

    sweep: str
    goals: list[str]
    wanted: int
    over: bool
    stopped: bool
    why: str
    trials: list[TrialRow]


# Types of other packages by name, and environment variables.
_OTHERS = {
    "CheckStep": CheckStep,
    "ClusterRow": ClusterRow,
    "ClusterStatus": ClusterStatus,
    "RunArchive": RunArchive,
    "PruneResult": PruneResult,
    "Report": Report,
    "WorkspaceUse": WorkspaceUse,
    "Variables": dict[str, str],
}


def json_type(expression: str) -> Any:
    """Return the type that a command declares: `RunRow`, or `list[RunRow]`."""
    name = expression.removeprefix("list[").removesuffix("]")
    found: Any = _OTHERS.get(name) or globals()[name]
    return list.__class_getitem__(found) if expression.startswith("list[") else found
