"""Built-in prices compared with real ones: median error, the part within 10 %, and spot prices that are too low.

    python benchmarks/prices.py [FOLDER]

FOLDER, by default `prices` beside the folder of the recorded capacity, has `gcp.csv` and `aws.csv` with all prices of
one day. Columns: region, zone, type, vcpus, memory_gib, gpu, gpu_count, price_usd_per_hour, spot_usd_per_hour.
"""

from __future__ import annotations

import csv
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from measure import Table, once, print_tables
from policies import TRACES

from outlast.clouds.aws.price_figures import on_demand_figure, spot_figure
from outlast.clouds.gcp.prices import PriceBook, PricedMachine
from outlast.clouds.gcp.types import accelerators

PRICES = os.path.join(os.path.dirname(TRACES), "prices")
# A price is too low if the real one is more than this above it.
_TOLERANCE = 0.10
Figure = tuple[float, float | None]


class Compared(NamedTuple):
    """A row: our prices, and the real ones. None: outlast has no price."""

    gpu: bool
    on_demand: Figure
    spot: Figure | None


def rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def compared_gcp(folder: Path) -> Iterator[Compared]:
    with tempfile.TemporaryDirectory() as cache:
        book = PriceBook(cache)
        for row in rows(folder / "gcp.csv"):
            machine = _gcp_machine(row)
            ours = [book.price(machine, row["region"], kind).usd_per_hour for kind in ("on-demand", "spot")]
            yield _compared(row, ours[0], ours[1])


def _gcp_machine(row: dict[str, str]) -> PricedMachine:
    accelerator = next(iter(accelerators(row["gpu"])), "") if row["gpu"] else ""
    return PricedMachine(
        # A row without a type is a GPU to attach; its machine costs nothing here.
        type=row["type"] or "n1-none",
        cpus=float(row["vcpus"] or 0),
        memory_gb=float(row["memory_gib"] or 0),
        accelerator=accelerator,
        count=float(row["gpu_count"] or 0),
    )


def compared_aws(folder: Path) -> Iterator[Compared]:
    for row in rows(folder / "aws.csv"):
        cpus = float(row["vcpus"])
        full = on_demand_figure(row["type"], row["region"], cpus=cpus)
        spot = spot_figure(row["type"], row["region"], cpus=cpus)
        yield _compared(row, full[0] if full is not None else None, spot)


def _compared(row: dict[str, str], on_demand: float | None, spot: float | None) -> Compared:
    real, real_spot = float(row["price_usd_per_hour"] or 0), float(row["spot_usd_per_hour"] or 0)
    return Compared(bool(row["gpu"]), (real, on_demand), (real_spot, spot) if real_spot else None)


def table(name: str, found: list[Compared], *, spot_listed: bool) -> Table:
    full = [_error(each.on_demand) for each in found if each.on_demand[0]]
    gpu_spot = [_error(each.spot) for each in found if each.gpu and each.spot is not None]
    near = sum(abs(error) <= _TOLERANCE for error in full) / len(full)
    low = sum(error < -_TOLERANCE for error in gpu_spot) / len(gpu_spot)
    median = statistics.median(map(abs, full))
    lines = [
        once("on demand: median error", 100 * median, "%", against=f"{len(full)} rows", goal="0", met=median < 0.001),
        once("on demand: within 10 %", 100 * near, "%", goal=">= 95 %", met=near >= 0.95),
        once("spot with GPU: too low", 100 * low, "%", against=f"{len(gpu_spot)} rows", goal="< 5 %", met=low < 0.05),
    ]
    if spot_listed:
        spot = [_error(each.spot) for each in found if each.spot is not None]
        part = sum(abs(error) <= _TOLERANCE for error in spot) / len(spot)
        lines.append(once("spot: within 10 %", 100 * part, "%", goal=">= 95 %", met=part >= 0.95))
    return Table(f"Built-in prices of {name}", lines)


def _error(figure: Figure) -> float:
    """Return the relative error; a missing price is completely wrong."""
    real, ours = figure
    return ours / real - 1 if ours is not None else -1.0


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else PRICES)
    if not folder.is_dir():
        sys.stderr.write(f"no folder {folder}: name one with gcp.csv and aws.csv\n")
        return 2
    print_tables(
        table("Google Cloud", list(compared_gcp(folder)), spot_listed=True),
        table("EC2", list(compared_aws(folder)), spot_listed=False),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
