"""Steps in a program's output: `step 12`, `Epoch: [9][2/6]`, `[12] loss: 0.5`, a progress bar, a line of JSON. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

import msgspec

# `Epochs:  53%|` is a share.
_COUNT = r"(\d{1,3}(?:,\d{3})+|\d+)(?!\d*\.\d|\d*\s?%)"
_STEP = re.compile(
    r"(?<!time/)(?<!fps )\b((?:global[_-]|total_time|num_)?(?:time)?steps?|epochs?|ep|iter(?:ation)?s?|itr?|"
    r"counts?|counted|rounds?|(?:mini)?batch|chunk|trials?|candidates?|updates?|num_updates|episodes?|generations?|gen|ticks?|trees?)\b"
    rf"(?:\(train\))?[\"']?\s*[:=#\[(]*\s*[\"']?{_COUNT}(?:\s*(?:/|of)\s*{_COUNT})?(?![\d.]*(?:/s|s/|it/s))",
    re.IGNORECASE,
)
# `Total optimization steps = 150`, `Num Epochs = 10`: settings.
_SETTING = re.compile(
    r"\b(?:total|num|number of|max(?:imum)?|warmup|scheduled|logging|save|eval|every|for|per|after)\W*(?:\w+\W+){0,2}$",
    re.IGNORECASE,
)
# `attempting deletion of step 10`, `Best is trial 3`: not the step that the program is at.
_EARLIER = re.compile(r"\b(?:delet|remov|prun|discard|evict|missing|best|keeping)\w*\b[^.;]*$", re.IGNORECASE)
# So many lower steps in a row do not show that a count restarts.
_OUTLIERS = 3
_PLURAL = re.compile(r"(?<!time)(?:steps|epochs|iters|iterations|rounds|trials|candidates|updates)$", re.IGNORECASE)
# A batch with the number of batches of its epoch: `[Epoch 3/200] [Batch 40/938]`, `Epoch: 3, iter 40/938`.
_BATCHES = frozenset(("batch", "minibatch", "iter", "iteration", "step"))
# `Epoch: [9][2/6]` (torchvision, mmengine), `[3/25][40/100]` (DCGAN), `Train: 9 [  2/6 (40%)]` (timm),
# `Train Epoch: 1 [640/60000]`, `Epoch [1/5], Step [100/600]`, `epoch 1 | 5/20 batches`: the batch within an epoch.
_WITHIN = re.compile(
    r"(?:\b(?:epoch|train)(?:\(train\))?\s*:?\s*\[?|^\s*\[(?=\d+/\d+\]\s*\[))"
    r"\s*(\d+)(?:/\d+)?\s*\]?[\s,|]*(?:"
    r"(?:step|iter(?:ation)?|batch)?\s*:?\s*\[\s*(\d+)\s*/\s*(\d+)|(\d+)\s*/\s*(\d+)\s+batches)",
    re.IGNORECASE,
)
# `[12] loss: 0.5` and `[12,  2000] loss: 0.5` (tutorials), `[12]\ttrain-logloss:0.5` (boosters).
_BRACKET = re.compile(r"^\s*\[\s*(\d+)(?:\s*,\s*\d+)?\s*\]\s*(?=\S+.*\d)")
# `12:\tlearn: 0.5\ttotal: 46ms` (CatBoost), `12 | loss 2.5 | lr 1e-3` (llama2.c).
_COLON = re.compile(r"^\s*(\d+)(?::\s+(?=(?:learn|test): )|\s+\|\s+(?=[A-Za-z]\w*\W+[\d.]+\s*\|))")
# `[ 40%] loss = 2.5`, `Progress:  40.5% avg.loss: 2.5` (fastText).
_PERCENT = re.compile(r"^\s*(?:progress\W{1,3})?\[?\s*(\d{1,3})(?:\.\d+)?\s*%(?!\|)", re.IGNORECASE)
# `train 10.0it/100.0it rate:3.0it/s` (JAX libraries).
_ITERATIONS = re.compile(r"\b(\d+)(?:\.\d+)?it/(\d+)(?:\.\d+)?it\b")
# ` 40%|████      | 12/30 [00:01<00:02]`: a progress bar.
_BAR = re.compile(r"^(.*?)\s*\d+%\|[^|]*\|\s*(\d+)/(\d+)\s*\[?")
# `1|12|Loss: 2.3: 40%|██  |`: the epoch and the step over all epochs (torchtune).
_STEP_OF_BAR = re.compile(r"^\d+\|(\d+)\|")
_EPOCH_OF_BAR = re.compile(r"^(?:train(?:ing)?\W*)?(?:epoch|ep)\W*(\d+)", re.IGNORECASE)
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
# `sampled 1100/2000  acceptance 0.63`, `[CV 3/40] END`: a count with its total, after any word or none.
_COUNTED = re.compile(r"(?:\b([A-Za-z_]+)\W{0,3})?(?<![\w./,-])(\d{1,9})\s?/\s?(\d{1,9})(?![\w./]|,\d)")
# Bars of other work: a program draws them before it trains, or between two epochs.
_OTHER_WORK = re.compile(
    r"load|download|fetch|map|generat|token|filter|writ|sav|preprocess|prepar|resolv|extract|unpack|build|cach|shard|"
    r"valid|sanity|eval|test|predict|infer|sampl|comput|convert|scan|verif|index|upload|import|\bval\b",
    re.IGNORECASE,
)

# The work of a Markov chain.
_SAMPLING = re.compile(r"sampl(?:ed|ing)\b", re.IGNORECASE)

# A share, printed without its number of steps.
PERCENT = "%"
# A count is used if nothing else shows steps: it may be of memory or of another kind of work.
_COUNT_WORD = "/"
_WITHIN_WORD = "[epoch][batch]"
_EPOCH_AND_BATCH = "epoch, batch"


class StepMark(msgspec.Struct, frozen=True, kw_only=True):
    """A step that the program reported, no later than `at`."""

    word: str
    step: int
    at: float
    total: int | None = None


def marks(lines: Iterable[str], *, at: float) -> list[StepMark]:
    """Return the steps in normalised lines of output, at most one for each word in a line."""
    found: list[StepMark] = []
    for line in lines:
        seen: set[str] = set()
        for name, step, total in steps_in_line(line):
            if name not in seen:
                seen.add(name)
                found.append(StepMark(word=name, step=step, at=at, total=total or None))
    return found


def steps_in_line(line: str) -> list[tuple[str, int, int]]:
    """Return the word, the step and the total (0 if unknown) of each step in a line."""
    matches = [m for m in _STEP.finditer(line) if not _is_other(m.group(1), line[: m.start()])]
    # `STEP: 4/10 -- GLOBAL_STEP: 25`: the first one of a word counts.
    matches.sort(key=lambda match: not match.group(1).lower().startswith("global"))
    found = [(_word(m.group(1)), _int(m.group(2)), _int(m.group(3) or "0")) for m in matches]
    if (within := _WITHIN.search(line)) is not None:
        epoch, batch, batches = (int(group) for group in within.groups() if group is not None)
        found.append((_WITHIN_WORD, epoch * batches + batch, 0))
    else:
        found += _epoch_and_batch(found)
    for word, pattern in (("[", _BRACKET), (":", _COLON), (PERCENT, _PERCENT)):
        if (match := pattern.match(line)) is not None:
            found.append((word, int(match.group(1)), 100 if word == PERCENT else 0))
    if (iterations := _ITERATIONS.search(line)) is not None:
        found.append(("it", int(iterations.group(1)), int(iterations.group(2))))
    if (bar := _BAR.match(line)) is not None and not _OTHER_WORK.search(bar.group(1)):
        found.append(_step_of_bar(bar.group(1).strip(), int(bar.group(2)), int(bar.group(3))))
    return found or _counted(line)


def _counted(line: str) -> list[tuple[str, int, int]]:
    if (match := _COUNTED.search(line)) is None or _OTHER_WORK.search(_SAMPLING.sub("", line[: match.end()])):
        return []
    step, total = int(match.group(2)), int(match.group(3))
    return [(_COUNT_WORD + (match.group(1) or "").lower(), step, total)] if step <= total else []


def _epoch_and_batch(found: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Return the batch counted over all epochs, if a line has an epoch, a batch and the batches of an epoch."""
    epochs = [step for word, step, _ in found if word == "epoch"]
    batches = [(step, total) for word, step, total in found if word in _BATCHES and total]
    if not epochs or not batches:
        return []
    return [(_EPOCH_AND_BATCH, epochs[0] * batches[0][1] + batches[0][0], 0)]


def _is_other(word: str, before: str) -> bool:
    """Return whether the number after a word is a setting, or an earlier step, by the text before it."""
    return bool(_EARLIER.search(before)) or bool(_PLURAL.search(word) and _SETTING.search(before))


def _step_of_bar(label: str, step: int, total: int) -> tuple[str, int, int]:
    if (place := _STEP_OF_BAR.match(label)) is not None:
        return "|step", int(place.group(1)), 0
    if (epoch := _EPOCH_OF_BAR.match(label)) is not None:
        # One bar per epoch (Lightning): count over all epochs.
        return "|epoch", int(epoch.group(1)) * total + step, 0
    # By label, without the numbers in it: two bars count different work.
    return "|" + _NUMBERS.sub("#", label), step, total


def _without_outliers(marks: Sequence[StepMark]) -> list[StepMark]:
    """Return the marks without a few lower ones in between, such as those of `Deleted step 10` or of a validation."""
    found: list[StepMark] = []
    for at, mark in enumerate(marks):
        following = marks[at + 1 : at + 1 + _OUTLIERS]
        if found and mark.step < found[-1].step and any(later.step >= found[-1].step for later in following):
            continue
        found.append(mark)
    return found


def without_steps(line: str) -> str:
    """Return the line without its epoch and batch: its numbers are not results."""
    return _WITHIN.sub(" ", line)


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def _word(word: str) -> str:
    return re.sub(r"[_-]|s$", "", word.lower()).removeprefix("global")


def steps_of(attempts: Sequence[Sequence[StepMark]]) -> list[list[StepMark]]:
    """Return the marks of one word: the most detailed of those that only increase within an attempt.

    Batch numbers restart in each epoch, and a total is printed once: neither counts.
    """
    words = {mark.word for marks in attempts for mark in marks}
    best: tuple[bool, int, bool, bool, str] = (False, 0, False, False, "")
    for word in sorted(words):
        series = [_series(marks, word) for marks in attempts]
        pairs = [(a.step, b.step) for marks in series for a, b in itertools.pairwise(marks)]
        if sum(a > b for a, b in pairs) <= len(pairs) // 50:
            distinct = len({m.step for marks in series for m in marks})
            # If the batch goes on over all epochs, it is the step.
            named = distinct > 1 and not word.startswith(_COUNT_WORD)
            best = max(best, (named, distinct, word == _WITHIN_WORD, word != _EPOCH_AND_BATCH, word))
    found = [_series(marks, best[-1]) for marks in attempts]
    return [_shifted(marks, shift) for marks, shift in zip(found, left_out(found), strict=True)]


def left_out(attempts: Sequence[Sequence[StepMark]]) -> list[int]:
    """Return for each attempt how many steps its count leaves out.

    A bar over `range(done, total)` begins at 0 again, and its total is the number of steps that are left.
    """
    totals = [_only_total(marks) for marks in attempts]
    whole = next((total for total in totals if total), 0)
    return [max(0, whole - total) if total else 0 for total in totals]


def _only_total(marks: Sequence[StepMark]) -> int:
    """Return the total if it is always the same, else 0."""
    totals = {mark.total or 0 for mark in marks}
    return totals.pop() if len(totals) == 1 else 0


def _shifted(marks: list[StepMark], shift: int) -> list[StepMark]:
    if not shift:
        return marks
    total = (marks[0].total or 0) + shift
    return [msgspec.structs.replace(mark, step=mark.step + shift, total=total) for mark in marks]


def _series(marks: Sequence[StepMark], word: str) -> list[StepMark]:
    """Return the marks of a word without those before its first step.

    A leading `steps: 1000` is a setting. A bar is drawn at 0 when it is created, before a checkpoint is loaded.
    """
    found = _without_outliers([mark for mark in marks if mark.word == word])
    while len(found) > 1 and found[0].step > found[1].step:
        found = found[1:]
    while word.startswith("|") and found and found[0].step == 0:
        found = found[1:]
    return found


def progress_of(marks: Iterable[StepMark], *, last: StepMark | None = None) -> float | None:
    """Return the finished share: by the last step of an undisturbed run, else from `12/60`.

    A step that counts something else than the undisturbed run's, such as an inner bar, does not show it.
    """
    for mark in reversed(list(marks)):
        if last is not None and last.word != mark.word:
            continue
        total = last.step if last is not None else mark.total
        if total:
            return min(1.0, mark.step / total)
    return None
