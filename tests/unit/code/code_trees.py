"""What the tests of code and data share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from outlast.code.bundle import zstd_module

Git = Callable[..., str]
zstd = zstd_module()


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    root.mkdir(parents=True, exist_ok=True)
    return root
