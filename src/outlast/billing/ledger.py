"""Ledger lines from stories, and their sums. Pure.

A line is the cost of one machine of a run, one machine that no run owns, or one volume or database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, Protocol

import msgspec

from outlast.billing.egress import attempt_egress_usd
from outlast.runs.state import Attempt, RunState

# `work`: time that became progress. `boot`: from the request to the command. `lost`: work after the last checkpoint.
# `idle`: after the command. `manual`: a running machine that no run owns. `disk`: its disk meanwhile; `stopped`: the
# disk of a stopped machine. `address`: its public IPv4 address. `egress`: traffic with a bucket in another region or
# cloud. `store`: a volume or a database.
Cause = Literal["work", "boot", "lost", "idle", "manual", "disk", "address", "egress", "store", "stopped"]
CAUSES: tuple[Cause, ...] = ("work", "manual", "disk", "address", "egress", "store", "boot", "lost", "idle", "stopped")
# The causes as users read them.
CAUSE_LABELS: dict[str, str] = {
    "work": "work kept",
    "manual": "machines by hand",
    "disk": "disks",
    "address": "public addresses",
    "egress": "traffic between regions and clouds",
    "store": "volumes and databases",
    "boot": "starting up",
    "lost": "work lost",
    "idle": "after the command",
    "stopped": "disks of stopped machines",
}
WASTE: tuple[Cause, ...] = ("boot", "lost", "idle", "stopped")
Kind = Literal["run", "manual", "volume", "database"]
DAY_S = 86400.0
_DAYS_MAX = 36_500


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The cost of one resource over a period. The causes add up to the cost."""

    kind: Kind
    # The run, or the machine that no run owns.
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
    attempt: int = 0
    who: str = ""
    seconds: float = 0.0
    # Estimated from price and time since the request, because the final cost is not yet known.
    estimated: bool = False


class Sum(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of ledger lines."""

    cost_usd: float
    on_demand_usd: float
    estimated_usd: float
    seconds: float
    machines: int
    causes: dict[str, float]

    @property
    def wasted_usd(self) -> float:
        return sum(self.causes.get(cause, 0.0) for cause in WASTE)

    @property
    def goodput(self) -> float | None:
        """The fraction of the machine cost of runs that became progress; None without such cost."""
        paid = sum(self.causes.get(cause, 0.0) for cause in ("work", "boot", "lost", "idle"))
        return self.causes.get("work", 0.0) / paid if paid else None


def end_of(attempt: Attempt, state: RunState, now: float) -> float:
    return attempt.over_at or state.ended_at or now


def kept_until(attempt: Attempt, state: RunState, now: float) -> float:
    """Return until when an attempt's work counts: its last commit, unless it finished or still runs."""
    if attempt.outcome in ("finished", "") or not attempt.started_at:
        return end_of(attempt, state, now)
    return max(attempt.saved_at, attempt.started_at)


def lines_of(run: str, state: RunState, now: float) -> list[LedgerLine]:
    """Return a line for every machine of a run: the recorded cost, else an estimate."""
    return [
        _line(run, state, attempt, now)
        for attempt in state.attempts
        if attempt.outcome != "refused" and (attempt.seconds or attempt.cost_usd or not attempt.released)
    ]


def _line(run: str, state: RunState, attempt: Attempt, now: float) -> LedgerLine:
    seconds = attempt.seconds if attempt.released else max(0.0, now - attempt.placed_at) * attempt.nodes
    address_usd = attempt.address_usd if attempt.released else seconds * attempt.address_usd_per_hour / 3600.0
    egress_usd = attempt_egress_usd(state, attempt)
    extra_usd = address_usd + egress_usd
    cost = attempt.cost_usd if attempt.released else seconds * attempt.price_usd_per_hour / 3600.0 + extra_usd
    # Without a recorded on-demand price, use the price itself.
    on_demand = attempt.on_demand_usd_per_hour or attempt.price_usd_per_hour
    return LedgerLine(
        kind="run",
        name=run,
        attempt=attempt.number,
        who=state.who,
        cloud=attempt.cloud,
        zone=attempt.zone,
        type=attempt.type,
        machine=attempt.machine,
        spot=attempt.spot,
        begin=attempt.placed_at,
        end=attempt.placed_at + seconds / attempt.nodes,
        seconds=seconds,
        cost_usd=cost,
        on_demand_usd=seconds * on_demand / 3600.0 + attempt.disk_usd + extra_usd,
        causes=_causes(
            attempt, state, now, seconds=seconds, cost=cost, fixed={"address": address_usd, "egress": egress_usd}
        ),
        estimated=not attempt.released,
    )


def _causes(
    attempt: Attempt, state: RunState, now: float, *, seconds: float, cost: float, fixed: dict[Cause, float]
) -> dict[str, float]:
    """Split the cost by cause, of which `fixed` are known.

    The agent's clock measures the command; the rest of the billed time is boot, then idle.
    """
    over, kept = end_of(attempt, state, now), kept_until(attempt, state, now)
    begun = attempt.started_at or over
    spans: list[tuple[Cause, float]] = [("boot", begun - attempt.placed_at)]
    if attempt.started_at:
        spans = [("work", kept - begun), ("lost", over - kept), *spans]
    causes: dict[str, float] = {}
    left_usd, left_s = cost, seconds
    for cause, usd in {"disk": attempt.disk_usd, **fixed}.items():
        if part := min(usd, left_usd):
            causes[cause] = part
            left_usd -= part
    for cause, length in [*((cause, length * attempt.nodes) for cause, length in spans), ("idle", seconds)]:
        took_s = min(left_s, max(0.0, length))
        left_s -= took_s
        if took_s and seconds:
            causes[cause] = left_usd * took_s / seconds
    return causes


class Billed(Protocol):
    """The fields of a machine that determine its cost; `clouds.cloud.Machine` has them."""

    @property
    def name(self) -> str: ...
    @property
    def cloud(self) -> str: ...
    @property
    def zone(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def spot(self) -> bool: ...
    @property
    def created_at(self) -> float: ...
    @property
    def seen_at(self) -> float: ...
    @property
    def ran_s(self) -> float: ...
    @property
    def price_usd_per_hour(self) -> float: ...
    @property
    def disk_usd_per_hour(self) -> float: ...
    @property
    def disk_usd(self) -> float: ...


def machine_line(
    machine: Billed, *, who: str, extra_usd: float = 0.0, on_demand_usd_per_hour: float = 0.0, over: bool = False
) -> LedgerLine:
    """Return the line of a machine that no run owns. `over`: it is being deleted, so the cost is final."""
    ran_usd = machine.ran_s * machine.price_usd_per_hour / 3600.0 + extra_usd
    age_s = max(0.0, machine.seen_at - machine.created_at)
    stopped_usd = max(0.0, age_s - machine.ran_s) * machine.disk_usd_per_hour / 3600.0
    causes = {"manual": ran_usd, "disk": machine.disk_usd - stopped_usd, "stopped": stopped_usd}
    difference = max(0.0, on_demand_usd_per_hour - machine.price_usd_per_hour)
    cost = ran_usd + machine.disk_usd
    return LedgerLine(
        kind="manual",
        name=machine.name,
        who=who,
        cloud=machine.cloud,
        zone=machine.zone,
        type=machine.type,
        machine=machine.name,
        spot=machine.spot,
        begin=machine.created_at,
        end=machine.seen_at,
        seconds=machine.ran_s,
        cost_usd=cost,
        on_demand_usd=cost + machine.ran_s * difference / 3600.0,
        causes={cause: usd for cause, usd in causes.items() if usd > 0},
        estimated=not over,
    )


def part_in(begin: float, end: float, first: float, last: float = float("inf")) -> float:
    """Return the fraction of one time span that lies in another."""
    if end <= begin:
        return float(first <= begin < last)
    return max(0.0, min(end, last) - max(begin, first)) / (end - begin)


def after(line: LedgerLine, begin: float, end: float = float("inf")) -> LedgerLine | None:
    """Return the part of a line within a time span, with evenly spread cost; None if it lies outside."""
    part = part_in(line.begin, line.end, begin, end)
    if part in (0.0, 1.0):
        return line if part else None
    return msgspec.structs.replace(
        line,
        begin=max(line.begin, begin),
        end=min(line.end, end),
        seconds=line.seconds * part,
        cost_usd=line.cost_usd * part,
        on_demand_usd=line.on_demand_usd * part,
        causes={cause: usd * part for cause, usd in line.causes.items()},
    )


def by_day(line: LedgerLine) -> Iterator[tuple[str, LedgerLine]]:
    """Yield a line cut at every midnight UTC. A line of more than a century stays whole."""
    midnight = line.begin - line.begin % DAY_S
    if line.end - line.begin > _DAYS_MAX * DAY_S:
        yield day_of(midnight), line
        return
    while midnight <= max(line.begin, line.end):
        piece = after(line, midnight, midnight + DAY_S)
        if piece is not None:
            yield day_of(midnight), piece
        midnight += DAY_S


def day_of(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def total(lines: Iterable[LedgerLine]) -> Sum:
    causes: dict[str, float] = {}
    cost = on_demand = estimated = seconds = 0.0
    machines = set()
    for line in lines:
        cost += line.cost_usd
        on_demand += line.on_demand_usd
        estimated += line.cost_usd if line.estimated else 0.0
        seconds += line.seconds
        machines.add((line.cloud, line.machine))
        for cause, usd in line.causes.items():
            causes[cause] = causes.get(cause, 0.0) + usd
    return Sum(
        cost_usd=cost,
        on_demand_usd=on_demand,
        estimated_usd=estimated,
        seconds=seconds,
        machines=len(machines),
        causes={cause: causes[cause] for cause in CAUSES if cause in causes},
    )


By = Literal["run", "user", "day", "cloud", "machine"]
_KEYS: dict[By, Callable[[LedgerLine], str]] = {
    "run": lambda line: line.name,
    "user": lambda line: line.who or "?",
    "cloud": lambda line: line.cloud,
    "machine": lambda line: line.machine,
}


def grouped(lines: Iterable[LedgerLine], by: By) -> dict[str, Sum]:
    """Return sums by a key: days in order, everything else by decreasing cost."""
    groups: dict[str, list[LedgerLine]] = {}
    for line in lines:
        for key, piece in by_day(line) if by == "day" else [(_KEYS[by](line), line)]:
            groups.setdefault(key, []).append(piece)
    sums = {key: total(group) for key, group in groups.items()}
    if by == "day":
        return dict(sorted(sums.items()))
    return dict(sorted(sums.items(), key=lambda item: (-item[1].cost_usd, item[0])))
