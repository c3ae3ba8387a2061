"""What a drill found: one line a question, each with what to change. Values; no judging."""

from __future__ import annotations

from typing import Literal

import msgspec

# `note` is worth knowing, `warn` is worth changing, `fail` fails the drill, `skip` could not be told.
Verdict = Literal["pass", "note", "warn", "fail", "skip"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    question: str
    verdict: Verdict
    answer: str
    hint: str = ""


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """From an attempt that was taken away to the next one that started."""

    attempt: int
    moment: str
    notice: bool
    # The newest checkpoint when the next attempt started, the one it was given, and the step that it holds, at least.
    committed: str = ""
    restored: str = ""
    committed_step: int | None = None
    # The step that it may hold: what was told before its files were last written.
    reached_step: int | None = None
    # Whether the step was told by the checkpoint's own name.
    surely: bool = False
    began_step: int | None = None
    last_step: int | None = None
    first_step: int | None = None
    lost_s: float = 0.0
    recovery_s: float = 0.0
    leave_s: float | None = None
    exit_code: int | None = None
    outcome: str = ""
    # Whether it wrote to its checkpoint folder after the notice, and why that state was not committed.
    saved_after_notice: bool = False
    unsaved: str = ""

    @property
    def repeated_steps(self) -> int | None:
        if self.last_step is None or self.first_step is None:
            return None
        return max(0, self.last_step - self.first_step + 1)


class DrillPrices(msgspec.Struct, frozen=True, kw_only=True):
    """What an hour of useful work costs, on spot and on demand."""

    mean_life_s: float
    recovery_s: float
    lost_s: float
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float
    # None: with such lives it would never end.
    spot_usd_per_useful_hour: float | None = None

    @property
    def saving(self) -> float:
        if self.spot_usd_per_useful_hour is None or not self.on_demand_usd_per_hour:
            return 0.0
        return 1 - self.spot_usd_per_useful_hour / self.on_demand_usd_per_hour


def prices(
    *, mean_life_s: float, recovery_s: float, lost_s: float, spot_usd_per_hour: float, on_demand_usd_per_hour: float
) -> DrillPrices:
    """Every machine lives for `mean_life_s` on average, of which the recovery before and the work lost at its end are
    no use: of each hour paid, 1 - (recovery + lost) / life is."""
    useful = 1 - (recovery_s + lost_s) / mean_life_s
    return DrillPrices(
        mean_life_s=mean_life_s,
        recovery_s=recovery_s,
        lost_s=lost_s,
        spot_usd_per_hour=spot_usd_per_hour,
        on_demand_usd_per_hour=on_demand_usd_per_hour,
        spot_usd_per_useful_hour=spot_usd_per_hour / useful if useful > 0 else None,
    )
