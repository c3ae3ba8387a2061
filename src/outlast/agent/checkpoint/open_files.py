"""Which files below a folder are open for writing, and which of those are logs, which stay open to the end."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable

from outlast.agent.checkpoint.ready import is_plainly_unfinished

# What nothing but a log is called. CatBoost's for TensorBoard has no more of a name than this.
_LOG = re.compile(r"(^|/)(events\.out\.tfevents[^/]*|[^/]+\.(log|wandb)|nohup\.out)$", re.IGNORECASE)
# What stays open for so long and is named like this is a log, too; those in JSON are of CatBoost, Stable-Baselines3 and
# Ray. Large checkpoints may stay open, but by other names.
_STAYS_OPEN_S = 10.0
_LIKE_A_LOG = re.compile(
    r"\.(out|err|txt|csv|tsv|jsonl|ndjson)$|(^|/)(catboost_training|progress|result)\.json$", re.IGNORECASE
)
# Long enough that its owner should know that nothing is committed meanwhile; and that a temporary file is no part of a
# checkpoint whose other parts are there already.
_STRANGE_S = 60.0


def being_written(folder: str, processes: Iterable[int]) -> frozenset[str]:
    """What these processes have open for writing below the folder. Linux tells; elsewhere nobody does."""
    below = os.path.join(os.path.realpath(folder), "")
    found = set()
    for pid in processes:
        try:
            handles = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for handle in handles:
            try:
                path = f"/proc/{pid}/fd/{handle}"
                # The link's own mode bits say how the file was opened.
                if (target := os.readlink(path)).startswith(below) and os.lstat(path).st_mode & stat.S_IWUSR:
                    found.add(target.removeprefix(below))
            except OSError:
                continue  # closed while we looked
    return frozenset(found)


def but_idle(folder: str, paths: Iterable[str], *, now: float, names: Collection[str] = ()) -> frozenset[str]:
    """Without those that are left out anyway, and that nobody has written to for a while: CatBoost keeps one open."""

    def is_idle(path: str) -> bool:
        try:
            idle_s = now - os.stat(os.path.join(folder, path)).st_mtime
        except OSError:
            return False  # renamed just now
        return idle_s >= _STRANGE_S and is_plainly_unfinished(path, names)

    return frozenset(path for path in paths if not is_idle(path))


class OpenFiles:
    """Since when which files are open, from look to look."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._now = 0.0

    def see(self, paths: Iterable[str], *, now: float) -> None:
        """These are open now; `now` is of a clock that only goes forward."""
        self._now = now
        self._since = {path: self._since.get(path, now) for path in paths}

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(self._since)

    @property
    def logs(self) -> frozenset[str]:
        stay = {path for path in self._open_for(_STAYS_OPEN_S) if _LIKE_A_LOG.search(path)}
        return frozenset(stay.union(filter(_LOG.search, self._since)))

    @property
    def strange(self) -> list[str]:
        """What is no log and stays open all the same."""
        return sorted(self._open_for(_STRANGE_S) - self.logs)

    def _open_for(self, seconds: float) -> set[str]:
        return {path for path, since in self._since.items() if self._now - since >= seconds}
