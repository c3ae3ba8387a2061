"""The findings of a drill as values: one per question, with a hint on what to change."""

from __future__ import annotations

from typing import Literal

import msgspec

# `note` is information, `warn` recommends a change, `fail` fails the drill, `skip` could not be decided.
FindingVerdict = Literal["pass", "note", "warn", "fail", "skip"]

_SIGTERM = 143


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    question: str
    verdict: FindingVerdict
    answer: str
    hint: str = ""


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """The transition from a preempted attempt to the next one that started."""

    attempt: int
    moment: str
    notice: bool
    # The newest checkpoint when the next attempt started, the one that was restored, and the least step in it.
    committed: str = ""
    restored: str = ""
    committed_step: int | None = None
    # The highest step that it may contain: reported before its files were last written.
    reached_step: int | None = None
    # The step is in the checkpoint's name.
    step_is_exact: bool = False
    # Steps between two checkpoints, by the output.
    steps_per_save: int = 0
    began_step: int | None = None
    last_step: int | None = None
    first_step: int | None = None
    # How many different steps the next attempt reported.
    steps_after: int = 0
    # The restored file that the next attempt opened, or the one that it had not opened when it worked.
    read: str = ""
    unread: str = ""
    # Steps in the names of checkpoints: of the restored one, of the next one, and of the first one of the run.
    named_step: int | None = None
    next_named_step: int | None = None
    began_named_step: int | None = None
    # Results that both attempts began with, and those with a trend: first and last value, and the next one.
    repeats_numbers: str = ""
    trend: dict[str, tuple[float, float, float]] = {}
    # How much the last attempt worked, if that shows that it resumed, or that it did all the work again.
    did_less: str = ""
    did_all: str = ""
    # The restored checkpoint was committed between these two of its files, of which the first is newer.
    split: tuple[str, ...] = ()
    lost_s: float = 0.0
    recovery_s: float = 0.0
    leave_s: float | None = None
    exit_code: int | None = None
    outcome: str = ""
    # Whether it wrote to its checkpoint folder after the notice, and why that state was not committed.
    saved_after_notice: bool = False
    unsaved: str = ""
    ending: str = ""

    @property
    def died_of_sigterm(self) -> bool:
        """The command has no handler of SIGTERM: it saved nothing because of the notice."""
        return self.ending == "cut" and self.exit_code == _SIGTERM

    @property
    def repeated_steps(self) -> int | None:
        if self.last_step is None or self.first_step is None:
            return None
        return max(0, self.last_step - self.first_step + 1)


class DrillPrices(msgspec.Struct, frozen=True, kw_only=True):
    """The price of an hour of useful work, on spot and on demand."""

    mean_life_s: float
    recovery_s: float
    lost_s: float
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float
    # None: machines live too short to finish.
    spot_usd_per_useful_hour: float | None = None

    @property
    def saving(self) -> float:
        if self.spot_usd_per_useful_hour is None or not self.on_demand_usd_per_hour:
            return 0.0
        return 1 - self.spot_usd_per_useful_hour / self.on_demand_usd_per_hour


def prices(
    *, mean_life_s: float, recovery_s: float, lost_s: float, spot_usd_per_hour: float, on_demand_usd_per_hour: float
) -> DrillPrices:
    """Estimate prices. A machine lives for `mean_life_s`, of which the recovery and the lost work are not useful: the
    useful share is 1 - (recovery + lost) / life."""
    useful = 1 - (recovery_s + lost_s) / mean_life_s
    return DrillPrices(
        mean_life_s=mean_life_s,
        recovery_s=recovery_s,
        lost_s=lost_s,
        spot_usd_per_hour=spot_usd_per_hour,
        on_demand_usd_per_hour=on_demand_usd_per_hour,
        spot_usd_per_useful_hour=spot_usd_per_hour / useful if useful > 0 else None,
    )
