"""The command line decides nothing: it imports use cases, text, specs and errors only."""

from __future__ import annotations

from pathlib import Path

from tests.conventions.sources import PACKAGE, for_files, modules, shown
from tests.conventions.test_layers import LEAVES, imports

ALLOWED = {"app", "cli", "formatting", "spec", "errors", ""}
# Leaves that every part may import, and that decide nothing: who the user is, how an extra is installed, which files
# are private. `LEAVES` are tables of facts.
FACTS = {"extras", "private", "user"}
# Infrastructure: module → what else it may import, and why.
EXCEPTIONS: dict[str, set[str]] = {
    # Starts the server of the dashboard, which is a layer above the use cases, as the command line is.
    "ui.py": {"ui"},
    # Starts the server of the emulator, a separate program that has a command here.
    "local/serve.py": {"outlast_gcp_emulator"},
}


def parts(path: Path) -> set[str]:
    """The parts of ours that a module imports, leaves excluded."""
    found = set()
    for _, name in imports(path):
        first, _, rest = name.partition(".")
        if name in LEAVES:
            continue
        if first == "outlast":
            part = rest.split(".")[0]
            found.add(part if (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").is_file() else "")
        elif first == "outlast_gcp_emulator":
            found.add(first)
    return found - FACTS


@for_files(modules(PACKAGE / "cli"))
def test_the_command_line_imports_use_cases_only(path: Path) -> None:
    name = path.relative_to(PACKAGE / "cli").as_posix()
    more = parts(path) - ALLOWED - EXCEPTIONS.get(name, set())
    assert not more, f"{shown(path)} imports {', '.join(sorted(more))}: move the decision to outlast/app"
