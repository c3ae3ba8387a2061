"""Files below a folder that are open for writing, and which of them are logs, which stay open to the end."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable

from outlast.agent.checkpoint.snapshot import is_temporary

# Names that only logs have. CatBoost's file for TensorBoard has only this prefix.
_LOG = re.compile(
    r"(^|/)(events\.out\.tfevents[^/]*|[^/]+\.(log|wandb)|([^/]*[_.-])?logs?([_.-][^/]*)?\.txt|nohup\.out)$",
    re.IGNORECASE,
)
# A file with such a name that stays open for this long is a log, too; the JSON files are those of CatBoost,
# Stable-Baselines3 and Ray. Large checkpoints may stay open as long, but have other names.
_STAYS_OPEN_S = 10.0
_LIKE_A_LOG = re.compile(
    r"\.(out|err|txt|csv|tsv|jsonl|ndjson)$|(^|/)(catboost_training|progress|result)\.json$", re.IGNORECASE
)
# A file that is open for this long is reported to the user, because nothing is committed meanwhile. A temporary file
# that is idle for this long does not belong to the checkpoint beside it.
_TOO_LONG_S = 60.0


def being_written(folder: str, processes: Iterable[int]) -> frozenset[str]:
    """Return the paths below the folder that these processes have open for writing. Empty without /proc."""
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
                # The mode bits of the link itself show how the file was opened.
                if (target := os.readlink(path)).startswith(below) and os.lstat(path).st_mode & stat.S_IWUSR:
                    found.add(target.removeprefix(below))
            except OSError:
                continue  # closed meanwhile
    return frozenset(found)


def without_idle(folder: str, paths: Iterable[str], *, now: float, names: Collection[str] = ()) -> frozenset[str]:
    """Remove temporary files that no process has written to for a while: CatBoost keeps one open."""

    def is_idle(path: str) -> bool:
        try:
            idle_s = now - os.stat(os.path.join(folder, path)).st_mtime
        except OSError:
            return False  # renamed just now
        return idle_s >= _TOO_LONG_S and is_temporary(path, names)

    return frozenset(path for path in paths if not is_idle(path))


class OpenFiles:
    """The open files from scan to scan, and since when each is open."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._now = 0.0

    def update(self, paths: Iterable[str], *, now: float) -> None:
        """Set the files that are open now. `now` is from a monotonic clock."""
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
    def open_too_long(self) -> list[str]:
        """Files that are not logs and have been open for a minute."""
        return sorted(self._open_for(_TOO_LONG_S) - self.logs)

    def _open_for(self, seconds: float) -> set[str]:
        return {path for path, since in self._since.items() if self._now - since >= seconds}
