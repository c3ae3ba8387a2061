"""Imports point one way, the agent carries little, and the help page loads nothing that it does not need."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conventions.sources import PACKAGE, for_files, modules, shown, tree

# Packages of the workspace form one layer and may import each other.
MEMORY = {"store", "code", "runs", "records", "billing", "workspace"}

# Package → the packages that it may import besides itself. Everything may import FREE.
LAYERS: dict[str, set[str]] = {
    "spec": set(),
    "store": set(),
    "code": {"store"},
    "runs": {"spec", "store", "billing", "workspace"},
    "records": {"spec", "store", "workspace"},
    "billing": {"store", "runs", "records", "workspace"},
    "workspace": {"spec", "store", "code", "runs"},
    # The registry alone reads the workspace.
    "clouds": {"spec", "store", "sql", "workspace"},
    "sql": set(),
    "outlast_gcp_emulator": {"clouds"},
    "policy": {"spec"},
    "kit": {"store", "code"},
    "environments": {"spec", "store", "code", "kit"},
    "agent": {"spec", "environments", "kit", "sql", *MEMORY},
    "databases": {"clouds", "records", "sql"},
    "machines": {"spec", "clouds", "kit", *MEMORY},
    "volumes": {"spec", "clouds", "machines", *MEMORY},
    "supervisor": {"spec", "clouds", "policy", "kit", "retention", "notify", *MEMORY},
    "submit": {"notify", "spec", "clouds", "databases", "volumes", "environments", "kit", "sql", *MEMORY},
    "notify": {"spec", *MEMORY},
    # Sweeps: the trials of a live one are kept.
    "retention": {"spec", "sweep", *MEMORY},
    # The store only where a job folder is a bucket; a test of the trainer checks that it is not loaded before.
    "trainer": {"spec", "store"},
    "sync": {"clouds", "machines", *MEMORY},
    "images": {"spec", "clouds", "machines", "kit", *MEMORY},
    # The drill watches a machine's disk, whose layout the agent defines.
    "drill": {"spec", "clouds", "agent", *MEMORY},
    # From the agent: the machine's view of itself. From the supervisor: the boot script that installs outlast.
    "cluster": {"spec", "clouds", "machines", "agent", "supervisor", "volumes", "environments", "kit", *MEMORY},
    "sweep": {"spec", "clouds", "submit", *MEMORY},
    "verify": {"spec", "clouds", "submit", "supervisor", *MEMORY},
    "formatting": {"spec", *MEMORY},
    # Use cases: the layer below the command line, the dashboard and the public API.
    "app": {
        *("formatting", "spec", "clouds", "supervisor", "submit", "machines", "databases", "volumes", "retention"),
        *("images", "cluster", "sync", "sweep", "verify", "drill", "policy", "notify", "environments", "sql"),
        *("kit", "outlast_gcp_emulator", *MEMORY),
    },
    "api": {"app", "formatting", "spec", *MEMORY},
    "executor": {"app", "api", "clouds", "spec", "submit", *MEMORY},
    "hydra_plugins": {"executor"},
    "ui": {
        "spec",
        "clouds",
        "supervisor",
        "machines",
        "images",
        "cluster",
        "drill",
        "volumes",
        "sweep",
        "retention",
        "app",
        "formatting",
    }
    | MEMORY,
    # `test_cli_imports.py` has the two modules that may import the servers.
    "cli": {"app", "formatting", "ui", "spec", "outlast_gcp_emulator"},
    "testing": {"spec", "clouds", "agent", "supervisor", "submit", "retention", "outlast_gcp_emulator", *MEMORY},
    "demo": set(),
}
FREE = {"", "cachefile", "errors", "extras", "private", "user"}
# Modules of pure data that import nothing of ours but errors, so every package may import them.
LEAVES = {"outlast.clouds.geography", "outlast.clouds.traits", "outlast.runs.tensorboard", "outlast.store.traits"}

# Part → third-party packages that it may import. All others use the standard library alone.
PACKAGES: dict[str, set[str]] = {
    "spec": {"msgspec"},
    "workspace": {"msgspec"},
    "cachefile": {"msgspec"},
    "store": {"msgspec", "obstore", "boto3", "botocore", "google", "urllib3"},
    "code": {"msgspec", "pathspec", "backports", "compression"},
    "kit": {"msgspec"},
    "environments": {"msgspec"},
    "runs": {"msgspec", "pathspec"},
    "retention": {"msgspec"},
    "notify": {"msgspec", "apprise"},
    "records": {"msgspec"},
    "billing": {"msgspec"},
    "submit": {"msgspec"},
    "api": {"IPython", "matplotlib", "msgspec"},
    "executor": {"cloudpickle", "joblib", "msgspec"},
    "hydra_plugins": {"cloudpickle", "hydra", "omegaconf"},
    "app": {"matplotlib", "msgspec", "pyarrow"},
    "formatting": {"matplotlib", "msgspec"},
    "outlast_gcp_emulator": {"msgspec", "google", "urllib3"},
    "clouds": {"msgspec", "google", "urllib3", "boto3", "botocore"},
    "sql": {"msgspec", "pymysql", "pg8000"},
    "databases": {"msgspec"},
    "volumes": {"msgspec"},
    "agent": {"msgspec"},
    "supervisor": {"msgspec"},
    "machines": {"msgspec"},
    "sync": {"msgspec", "watchfiles"},
    "images": {"msgspec"},
    "trainer": {"jax", "keras", "lightgbm", "lightning", "ml_dtypes", "numpy", "optuna", "sklearn", "torch"}
    | {"mlflow", "transformers", "wandb", "xgboost"},
    "drill": {"msgspec"},
    "cluster": {"msgspec", "ray", "aiohttp"},
    "cli": {"msgspec", "click", "matplotlib", "plotext", "yaml"},
    "sweep": {"msgspec", "optuna"},
    "verify": {"msgspec"},
    "ui": {"msgspec", "nicegui", "fastapi", "starlette", "uvicorn", "optuna"},
    "testing": {"greenlet", "msgspec", "pytest", "moto", "werkzeug"},
}

# A spec is checked without looking at the world.
PURE = {"__future__", "collections", "datetime", "difflib", "fractions", "graphlib", "math", "msgspec", "posixpath"}
PURE |= {"fnmatch", "re", "shlex", "typing"}

HEAVY = ("click", "msgspec", "obstore", "asyncio", "concurrent", "subprocess", "importlib.metadata")


def part_of(path: Path) -> str:
    """Return the package of a file: `runs` for runs/story.py, `errors` for errors.py, nothing for `__init__.py`."""
    if PACKAGE not in path.parents:
        return path.relative_to(PACKAGE.parent).parts[0]
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py").replace("__init__", "")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every module that is imported anywhere in a file, with its line. We import nothing by relative names."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{shown(path)}:{node.lineno}: imports by a relative name"
            yield node.lineno, str(node.module)
            if node.module == "outlast":
                yield from ((node.lineno, f"outlast.{alias.name}") for alias in node.names)


def ours(name: str) -> str | None:
    """The part of our own that a module belongs to; None for those of others."""
    if name.split(".")[0] == "outlast_gcp_emulator":
        return "outlast_gcp_emulator"
    if name != "outlast" and not name.startswith("outlast."):
        return None
    part = name.split(".")[1] if "." in name else ""
    return part if (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").is_file() else ""


@for_files(modules())
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    if part in FREE:
        allowed: set[str] = {"api", "executor", "trainer"} if part == "" else set()
    else:
        assert part in LAYERS, f"{part} is a new part: say in this test what it may import"
        allowed = LAYERS[part] | {part}
    wrong = [
        f"{shown(path)}:{line}: {part or 'outlast'} must not import {name}"
        for line, name in imports(path)
        if name not in LEAVES and (target := ours(name)) is not None and target not in allowed | FREE
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_a_leaf_imports_only_errors_of_ours(name: str) -> None:
    path = PACKAGE.parent / f"{name.replace('.', '/')}.py"
    assert {target for _, name in imports(path) if (target := ours(name)) is not None} <= {"errors"}


@for_files(modules())
def test_packages_of_others_are_imported_only_where_they_are_allowed(path: Path) -> None:
    allowed = PACKAGES.get(part_of(path), set()) | set(sys.stdlib_module_names)
    wrong = [
        f"{shown(path)}:{line}: imports {name}"
        for line, name in imports(path)
        if ours(name) is None and name.split(".")[0] not in allowed
    ]
    assert not wrong, "\n".join(wrong)


@for_files(modules(PACKAGE / "spec"))
def test_the_spec_touches_nothing_outside(path: Path) -> None:
    wrong = [
        f"{shown(path)}:{line}: imports {name}"
        for line, name in imports(path)
        if ours(name) is None and name.split(".")[0] not in PURE
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("argv", [[], ["--help"], ["--version"]], ids=lambda argv: " ".join(argv) or "nothing")
def test_the_help_page_loads_nothing_heavy(argv: list[str]) -> None:
    script = Path(sys.executable).parent / "outlast"
    answer = subprocess.run(
        [sys.executable, "-X", "importtime", str(script), *argv], capture_output=True, text=True, check=True
    )
    assert "outlast" in answer.stdout
    lines = [line for line in answer.stderr.splitlines() if line.startswith("import time:")]
    loaded = {line.rpartition("|")[2].strip() for line in lines}
    assert "outlast.cli.main" in loaded
    heavy = sorted(name for name in loaded if name.startswith(HEAVY) and not _at_start(name))
    assert not heavy, f"outlast {' '.join(argv)} loads {heavy}"


def _at_start(name: str) -> bool:
    """Whether a bare interpreter of this environment loads it, too: editable installs and .pth files may."""
    answer = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "pass"], capture_output=True, text=True, check=True
    )
    return any(line.rpartition("|")[2].strip() == name for line in answer.stderr.splitlines())
