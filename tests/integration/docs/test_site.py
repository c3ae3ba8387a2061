"""The site is built from the documents without a warning, and loads nothing from other hosts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conventions.sources import ROOT

pytest.importorskip("furo", reason="the site is built with the extra `docs`")
pytestmark = pytest.mark.full

# Resources that a page loads by itself; links are excluded.
_LOADED = re.compile(
    r'<(?:script|img|iframe|link)\b[^>]*(?:src|href)="(?:https?:)?//[^"]*"|@import|url\(["\']?(?:https?:)?//'
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site from a copy of the documents."""
    root = tmp_path_factory.mktemp("site")
    for name in ("docs", "tools", "src"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "reference", "_build"))
    for name in ("ARCHITECTURE.md", "SECURITY.md"):
        shutil.copy(ROOT / name, root)
    built = root / "site"
    answer = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "--fail-on-warning", "--keep-going", "-b", "html", "docs", str(built)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return built


def test_every_page_is_built_and_linked(site: Path) -> None:
    first = (site / "index.html").read_text(encoding="utf-8")
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    for page in pages - {Path("README.html")}:
        assert (site / page).is_file(), f"{page} was not built"
        assert f'href="{page.as_posix()}"' in first or page.name == "index.html", f"{page} is in no table of contents"


def test_no_page_loads_resources_from_another_host(site: Path) -> None:
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        found = _LOADED.search(path.read_text(encoding="utf-8"))
        assert found is None or "canonical" in found.group(), f"{path.name}: {found.group()}"


@pytest.mark.parametrize(
    ("page", "argv"),
    [
        ("commands", ["outlast sweep start", "--per-machine", "Workspace: a folder, gs://… or s3://…."]),
        ("record", ["MachineSpec", "keep_best_count", "other_clouds"]),
        ("events", ["Placed", "price_usd_per_hour", "every machine is known"]),
        ("json", ["outlast ps --json", "billed_while_stopped", "The present price per hour."]),
        ("exit-codes", ["a cloud refused a request", "NoCapacity"]),
        ("variables", ["OUTLAST_CHECKPOINT_DIR"]),
    ],
)
def test_the_reference_is_generated_from_the_code(site: Path, page: str, argv: list[str]) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "reference" / f"{page}.html").read_text(encoding="utf-8"))
    for word in argv:
        assert word in text
