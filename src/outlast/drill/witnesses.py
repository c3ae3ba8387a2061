"""Witnesses of one handover: what each kind of evidence shows about a resume. Pure.

Files that the program read cannot be misread, work that it did again hardly; printed steps come last.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from outlast.drill.findings import Handover
from outlast.drill.numbers import depends_on_training, is_metric

Says = Literal["resumed", "started over", "nothing"]
# A checkpoint must be this many steps past the first one, or a fresh start cannot be recognised.
_FEW = 1
# The share of the way from the first step to the checkpoint that separates a fresh start from a resume.
_NEAR_BEGIN, _NEAR_CHECKPOINT = 0.3, 0.6
# Numbers show a trend if they moved by this many times their usual change from step to step.
_TREND = 5.0
# So do few values that only fall, or only rise, to half or double the first one.
_FALLS = 2.0
# Further beyond the first value, a result does not look like that of a fresh start.
_BEYOND = 2.0
# The same numbers from the first one on, in two attempts: a fresh start with a fixed seed.
_SAME_NUMBERS = 2


class Testimony(msgspec.Struct, frozen=True, kw_only=True):
    says: Says
    text: str = ""


_SILENT = Testimony(says="nothing")


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """The conclusion about one handover, with its evidence."""

    says: Says
    evidence: str


def rule(h: Handover) -> Ruling:
    """Weigh the witnesses of a handover."""
    names, counts, values = by_names(h), by_counts(h), by_numbers(h)
    heard = [w for w in (names, values, counts) if w.says == "resumed"]
    if h.unread and len(heard) < 2:
        return Ruling(says="started over", evidence=f"`{h.unread}` was not opened after the restore")
    read = f"it read `{h.read}`" if h.read else ""
    if h.repeats_numbers:
        return _ruling("started over", read, f"it printed the same numbers again: {h.repeats_numbers}")
    absolute = [w for w in (names, counts) if w.says == "resumed"]
    if names.says == "resumed" and counts.says == "started over" and not (h.read or values.says == "resumed"):
        # Boosters count from 0 again; a program that started over may skip the names that exist.
        absolute = []
    if absolute and values.says == "started over":
        return _ruling("started over", absolute[0].text, f"but {values.text}", read)
    if absolute:
        return _ruling("resumed", *(w.text for w in absolute), read)
    if h.did_less:
        return _ruling("resumed", h.did_less, values.text, read)
    if values.says == "resumed" and counts.says != "started over":
        return _ruling("resumed", values.text, read)
    again = [w for w in (names, values, counts) if w.says == "started over"]
    if h.did_all:
        return _ruling("started over", h.did_all, *(w.text for w in again), read)
    # A booster counts from 0 again, although it continues: counting alone does not show that it ignored the files, and
    # numbers that continue do not show that it does only the rest.
    if again and values.says == "resumed":
        return _ruling("nothing", values.text, *(w.text for w in again), read)
    if again and (not h.read or values.says == "started over"):
        return _ruling("started over", *(w.text for w in again), read)
    return _ruling("nothing", read, *(w.text for w in again))


def _ruling(says: Says, *texts: str) -> Ruling:
    return Ruling(says=says, evidence="; ".join(text for text in texts if text))


def by_names(h: Handover) -> Testimony:
    """Judge by the steps in the names of the checkpoints that it wrote before and after."""
    if h.named_step is None or h.next_named_step is None or h.began_named_step is None:
        return _SILENT
    if h.next_named_step > h.named_step:
        return Testimony(says="resumed", text=f"its first new checkpoint is of step {h.next_named_step}")
    if h.next_named_step <= h.began_named_step < h.named_step:
        return Testimony(says="started over", text=f"it wrote the checkpoint of step {h.next_named_step} again")
    return _SILENT


def by_counts(h: Handover) -> Testimony:
    """Judge by the first steps that it printed. A lone step proves nothing: a bar may be drawn at the end only."""
    reached = h.reached_step if h.reached_step is not None else h.committed_step
    if h.first_step is None or h.began_step is None or h.steps_after < 2:
        return _SILENT
    if reached is None:
        # The step of the checkpoint is unknown, and is not above the last one.
        far = h.last_step is not None and h.last_step > h.began_step + _FEW
        if far and h.first_step > h.began_step + _NEAR_CHECKPOINT * ((h.last_step or 0) - h.began_step):
            return _continued(h)
        return _SILENT
    if reached <= h.began_step + _FEW:
        # Too early: a step near the first one may be either, and one behind the checkpoint is a resume.
        return _continued(h) if h.first_step > h.began_step and h.first_step >= reached else _SILENT
    share = (h.first_step - h.began_step) / (reached - h.began_step)
    if share <= _NEAR_BEGIN:
        before = max(h.last_step or 0, reached)
        return Testimony(says="started over", text=f"it began at step {h.first_step} again after step {before}")
    return _continued(h) if share >= _NEAR_CHECKPOINT else _SILENT


def _continued(h: Handover) -> Testimony:
    # An attempt that was preempted before it reported a step has no last one.
    after = f" after {h.last_step}" if h.last_step else ""
    return Testimony(says="resumed", text=f"continued at step {h.first_step}{after}")


def by_numbers(h: Handover) -> Testimony:
    """Judge by the first result after the restore: near the last one, or near the very first one.

    One result that continues is enough: a running mean begins at its first value again.
    """
    over = _SILENT
    for name, (first, last, next_one) in h.trend.items():
        way = abs(first - last)
        if abs(next_one - last) < way / 4:
            return Testimony(says="resumed", text=f"`{name}` continued at {next_one:.4g} after {last:.4g}")
        # At the first value, or beyond it: the first one may have been printed after some training.
        if 0.75 < (next_one - last) / (first - last) < _BEYOND and is_metric(name):
            over = Testimony(says="started over", text=f"`{name}` was {next_one:.4g} again, as at the first step")
    return over


def trends(
    before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]
) -> dict[str, tuple[float, float, float]]:
    """Return the results that moved in one direction before the preemption: first and last value, and the next one."""
    found = {}
    for name, values in before.items():
        if len(values) < 4 or not after.get(name):
            continue
        usual = statistics.median(abs(b - a) for a, b in itertools.pairwise(values))
        if abs(values[0] - values[-1]) > _TREND * max(usual, 1e-12) or _only_falls(values):
            found[name] = (values[0], values[-1], after[name][0])
    return found


def _only_falls(values: Sequence[float]) -> bool:
    """Return whether values only fall, or only rise, by a factor."""
    low, high = sorted((abs(values[0]), abs(values[-1])))
    if values[0] * values[-1] <= 0 or high < _FALLS * low:
        return False
    pairs = list(itertools.pairwise(values))
    return all(a > b for a, b in pairs) or all(a < b for a, b in pairs)


def repeated(before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]) -> str:
    """Return the results that begin with the same, changing values in both attempts; empty if there are none.

    One result with another beginning refutes it: a resume repeats a few steps at most. Whole numbers without the name
    of a metric may be settings, such as the sizes of layers.
    """
    names = [name for name in before if len(before[name]) > _SAME_NUMBERS and len(after.get(name, ())) >= _SAME_NUMBERS]
    same = []
    for name in names:
        head = list(before[name][:_SAME_NUMBERS])
        if not any(depends_on_training(name, value) for value in head):
            continue
        if list(after[name][:_SAME_NUMBERS]) != head:
            if len(set(before[name])) > 1:
                return ""
        elif len(set(head)) > 1:
            same.append(f"`{name}` {head[0]:.6g}, {head[1]:.6g}")
    return same[0] if same else ""
