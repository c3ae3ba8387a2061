"""Normalised lines of a program's output: no colours, dates and ranks; a table is one line of `name: value`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Colours and cursor movements.
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
# A bar that is drawn again, over the last one: Keras uses backspaces.
_AGAIN = re.compile(r"\r\n?|\x08+")
# Dates, times of day, places in source files and ranks look like numbers of the program, and are not.
_NOISE = re.compile(
    r"^\s*[IWEFD]\d{4}\s+[\d:.]+\s+\d+\s+\S+:\d+\]|"
    r"\d{4}[-/]\d{1,2}[-/]\d{1,2}[T ]?|\d{2}/\d{2}/\d{2,4}\b|"
    r"(?<![\d.])\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d+)?(?![\d.])|"
    r"\b[\w/.-]+\.(?:py|cc|cpp|c|rs|go|jl):\d+\b|\bdataloader[ _]\d+|"
    r"\[?\b(?:local_|global_)?(?:rank|default|gpu|cuda|worker|node|pid)\W{0,2}\d+\]?:?",
    re.IGNORECASE,
)
# `[rank1]: step 3 …` (torchrun): each rank prints the same steps, in an order that varies.
_RANK = re.compile(r"^\W{0,2}(?:local_|global_)?(?:rank|default)\W{0,2}(\d+)\W", re.IGNORECASE)
# `|    total_timesteps | 2048     |` (Stable-Baselines3), `│ test_acc │ 0.91 │` (Lightning).
_ROW = re.compile(r"^\s*[|│┃]\s*([A-Za-z][\w/ .'-]*?)\s*[|│┃]\s*(\S+)\s*[|│┃]\s*$")
_GROUP = re.compile(r"^\s*\|\s*[\w/]+/\s*\|\s*\|\s*$")
_INNER_RULE = re.compile(r"^\s*[├┠┡╞┣┢╟][\s\-+=─━═┼╇╪╋┤┨┩╡┫╢]*$")
# `epoch     train_loss  valid_loss  time` (fastai): names only, the first one counts.
_HEADER = re.compile(
    r"^\s*(?:epoch|step|iter|iteration|round|episode|generation|gen|E)(?:[\s,|]+[A-Za-z_#][\w/.#()-]*)+\s*$",
    re.IGNORECASE,
)
_CLASS_HEADER = re.compile(r"^\s*Class\s+Images\s+")
# `  1/3   0.7G   1.2   2.3   10   640: 100%|██| 4/4` (Ultralytics): the header names the columns of the epoch `1/3`.
_ULTRALYTICS = re.compile(r"^\s*(\d+/\d+)\s+([\d.]+[GM]?)\s+((?:[\d.]+\s+)+\d+)\s*(?::(.*))?$")
_BATCH = re.compile(r"\s(\d+)/(\d+)\s")
# `Epoch 3/10`, and below it `4/4 ━━━━ 0s 28ms/step - loss: 0.7` (Keras).
_EPOCH_LINE = re.compile(r"^\s*(Epoch \d+/\d+)\s*$")
_KERAS = re.compile(r"^\s*(\d+)/(\d+) (?:[━╸ ]+ |- |\[[=>.]*\] - )(?:ETA: )?(?:\d+:)?\d+m?s\b")
# `5000 5% (0m 7s) 2.2840 Rover / Irish` and `0m 30s (- 5m 2s) (5000 6%) 2.3456` (tutorials on recurrent networks).
_TUTORIAL = re.compile(r"^\s*(?:(\d+) \d+% \(\d+m \d+s\)|\d+m \d+s \(-? ?\d+m \d+s\) \((\d+) \d+%\)) (\d+\.\d+)(?= |$)")
_CELLS = re.compile(r"[\s,|]+")
_WIDE = re.compile(r"\s{2,}|\t|\s*[,|]\s*")
# Columns of spaCy: the epoch and the step.
_SHORT = {"E": "epoch", "#": "step"}


class OutputLines:
    """Normalises output that arrives in pieces: a table, or the header of one, may be in an earlier piece."""

    def __init__(self) -> None:
        self._rest = ""
        self._columns: list[str] = []
        self._table: dict[str, str] = {}
        self._epoch = ""
        self._has_rank_0 = False

    def feed(self, text: str) -> Iterator[str]:
        """Yield the lines that are complete."""
        *lines, self._rest = _AGAIN.sub("\n", _ANSI.sub("", self._rest + text)).split("\n")
        for line in lines:
            yield from self._line(line)

    def close(self) -> Iterator[str]:
        """Yield the rest."""
        rest, self._rest = self._rest, ""
        if rest:
            yield from self._line(rest)
        yield from self._end_table()

    def _line(self, raw: str) -> Iterator[str]:
        if (rank := _RANK.match(raw)) is not None:
            self._has_rank_0 = self._has_rank_0 or not int(rank.group(1))
            if self._has_rank_0 and int(rank.group(1)):
                return
        if _GROUP.match(raw) or (self._table and _INNER_RULE.match(raw)):
            return
        if (row := _ROW.match(raw)) is not None:
            name = row.group(1).replace(" ", "_")
            if name in self._table:
                yield from self._end_table()
            self._table[name] = row.group(2)
            return
        yield from self._end_table()
        if _HEADER.match(raw) or _CLASS_HEADER.match(raw):
            names = raw.split("): ")[0].strip(" )")
            wide = _WIDE.split(names)
            cells = wide if len(wide) > 2 else _CELLS.split(names)
            self._columns = [_SHORT.get(cell, re.sub(r"[ (]", "_", cell)) for cell in cells]
            return
        if (epoch_line := _EPOCH_LINE.match(raw)) is not None:
            self._epoch = epoch_line.group(1)
        yield self._named(raw)

    def _end_table(self) -> Iterator[str]:
        if self._table:
            yield ", ".join(f"{name}: {value}" for name, value in self._table.items())
            self._table = {}

    def _named(self, raw: str) -> str:
        """Name the cells of a row by the header above it; remove noise."""
        if (tutorial := _TUTORIAL.match(raw)) is not None:
            return f"iter {tutorial.group(1) or tutorial.group(2)}, loss: {tutorial.group(3)}"
        if self._epoch and (keras := _KERAS.match(raw)) is not None:
            # Only the batch within the epoch: its end has the results of the whole epoch.
            return f"{self._epoch}, [{keras.group(1)}/{keras.group(2)}] {raw[keras.end() :]}"
        if self._columns and (row := _ULTRALYTICS.match(raw)) is not None:
            named = zip(self._columns[2:], _CELLS.split(row.group(3).strip()), strict=False)
            batch = _BATCH.search(row.group(4) or "")
            place = f"epoch {row.group(1)}, [{batch.group(1)}/{batch.group(2)}] " if batch else f"epoch {row.group(1)} "
            return place + ", ".join(f"{name}: {value}" for name, value in named)
        cells = _CELLS.split(raw.strip())
        numbered = len(cells) > 1 and (cells[0].isdigit() or (cells[0] == "all" and self._columns[:1] == ["Class"]))
        if numbered and len(cells) == len(self._columns):
            row_text = ", ".join(f"{name}: {value}" for name, value in zip(self._columns, cells, strict=True))
            return _NOISE.sub(" ", row_text)
        # `training's auc` and `valid_0's auc` (LightGBM) are two numbers.
        return _NOISE.sub(" ", raw.replace("'s ", "_"))


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines of a whole text."""
    lines = OutputLines()
    yield from lines.feed(text)
    yield from lines.close()
