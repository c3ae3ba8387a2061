"""Runs that a program begins in an experiment tracker, by its output and by the files of the tracker's library."""

from __future__ import annotations

import glob
import os
import re

# Weights & Biases, MLflow, Comet, Neptune and ClearML.
_IN_OUTPUT = (
    re.compile(r"wandb\S*/runs/([\w-]{3,})|wandb/(?:offline-)?run-\d{8}_\d{6}-([\w-]{3,})"),
    re.compile(r"/experiments/\d+/runs/([0-9a-f]{32})\b|comet\.com/\S+/([0-9a-f]{32})\b"),
    re.compile(r"neptune\.ai/\S+/([A-Z0-9]+-\d+)\b"),
    re.compile(r"clearml\b.*?\btask id=([0-9a-f]{32})\b|/experiments/([0-9a-f]{32})/output", re.IGNORECASE),
)
# Below the code folder: `wandb/offline-run-20261118_201000-ab12cd34`, `mlruns/0/0123…`.
_IN_FILES = (
    ("wandb/*run-*_*-*", re.compile(r"run-\d{8}_\d{6}-([\w-]+)$")),
    ("mlruns/*/*", re.compile(r"/([0-9a-f]{32})$")),
)


def tracker_run(text: str) -> str:
    """Return the id of the run that a program reports to its experiment tracker; empty if there is none."""
    for pattern in _IN_OUTPUT:
        if (found := pattern.search(text)) is not None:
            return next(group for group in found.groups() if group)
    return ""


def tracker_run_in(folder: str) -> str:
    """Return the id of the first run that a library recorded below a folder; empty if there is none."""
    for pattern, name in _IN_FILES:
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), pattern))):
            if (found := name.search(path)) is not None and os.path.isdir(path):
                return found.group(1)
    return ""
