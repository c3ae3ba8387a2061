"""The command line decides nothing: it imports use cases, text, specs and errors only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conventions.sources import PACKAGE, shown
from tests.conventions.test_layers import imports

ALLOWED = {"app", "cli", "formatting", "spec", "errors", ""}
# The modules that follow the rule. The others are not converted yet: move their decisions to outlast/app, so that
# Python users and the dashboard have them, and add them here. An entry stays.
CONVERTED = {
    "__main__.py",
    "app.py",
    "cluster/group.py",
    "db/backup.py",
    "db/group.py",
    "image/group.py",
    "init_from.py",
    "local/group.py",
    "machine/group.py",
    "main.py",
    "run/rerun.py",
    "shared/command.py",
    "shared/interrupt_text.py",
    "shared/progress.py",
    "shared/project.py",
    "shared/sanitize.py",
    "shared/terminal.py",
    "sweep/group.py",
    "volume/group.py",
}


def parts(path: Path) -> set[str]:
    """The parts of ours that a module imports."""
    found = set()
    for _, name in imports(path):
        first, _, rest = name.partition(".")
        if first == "outlast":
            part = rest.split(".")[0]
            found.add(part if (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").is_file() else "")
        elif first == "outlast_gcp_emulator":
            found.add(first)
    return found


@pytest.mark.parametrize("name", sorted(CONVERTED))
def test_a_converted_module_imports_use_cases_only(name: str) -> None:
    path = PACKAGE / "cli" / name
    more = parts(path) - ALLOWED
    assert not more, f"{shown(path)} imports {', '.join(sorted(more))}: move the decision to outlast/app"
