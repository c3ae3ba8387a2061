"""Pages typed literally: bash runs their blocks in order, in a new home and a new project."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from outlast.clouds.local.engines import SERVERS
from outlast.clouds.local.ssh import find_sshd
from tests.conventions.sources import ROOT, shown
from tests.integration.docs.blocks import PAGES, Block, blocks
from tests.support.ordinary import ordinary_user
from tests.support.team import Team

TYPED = [page for page in PAGES if any(block.is_run for block in blocks(page))]

# The reader's program: it trains for a while with any options, and resumes.
TRAIN = """
import pathlib, time
place = pathlib.Path("checkpoints")
place.mkdir(exist_ok=True)
step = max([int(path.suffix[1:]) for path in place.glob("step.*")], default=0)
print("begins at step", step, flush=True)
while step < 60:
    time.sleep(0.03)
    step += 1
    if step % 4 == 0:
        (place / "draft.tmp").write_text("the whole model")
        (place / "draft.tmp").rename(place / f"step.{step}")
pathlib.Path("outputs").mkdir(exist_ok=True)
pathlib.Path("outputs/model").write_text("trained")
"""
GIVEN = {"train.py": TRAIN, "demonstrations/one.txt": "1\n", "data/a.csv": "1,2\n"}
# Pages of which every block is typed, also those that need more than the core, where this computer has it.
WHOLE = [ROOT / "README.md", ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "guides").glob("*-*.md"))]
WHOLE += [ROOT / "docs" / "guides" / "burst.md", ROOT / "docs" / "guides" / "survival.md"]

# Lines that run until they are interrupted.
ENDLESS = ("outlast ps --watch", "outlast ui")
# Line → its form in the test.
INSTEAD = {
    # The documented port may be in use here.
    "outlast local serve": "outlast local serve --port 0",
    # The home of a reader is not the project.
    "~/demonstrations": "demonstrations",
    # A folder that only this test has.
    "python ": f"{shlex.quote(sys.executable)} ",
    "python3 ": f"{shlex.quote(sys.executable)} ",
}

# A failing line ends the page and is reported.
PROLOGUE = """
set -eEuo pipefail
trap 'echo "FAILED: $BASH_COMMAND" >&2' ERR
endless() { timeout --signal INT 2 "$@" || [ $? = 124 ] || [ $? = 130 ]; }
"""


def script(page: Path, present: Collection[str] = ()) -> str:
    """Return the page as a bash program: files are written in place, blocks run in order.

    `present` are the requirements of blocks that this computer meets.
    """
    lines = [PROLOGUE]
    for block in blocks(page):
        if "file" in block.argv:
            lines.append(f"cat > {shlex.quote(block.argv['file'])} <<'END OF FILE'\n{block.text}\nEND OF FILE")
        elif block.is_run or (block.language == "sh" and block.argv.get("needs") in present):
            lines.append(f"echo '--- {block.where}' >&2")
            lines.append(_typed(block))
    return "\n".join(lines)


def _typed(block: Block) -> str:
    text = block.text
    for line, instead in INSTEAD.items():
        text = re.sub(rf"(?<![\\w/-]){re.escape(line)}", lambda _, put=instead: put, text)
    for line in ENDLESS:
        text = text.replace(line, f"endless {line}")
    if "background" not in block.argv:
        return text
    # Another terminal: the server is ready when its variables can be printed.
    waiting = "for _ in $(seq 200); do outlast local env >/dev/null 2>&1 && break; sleep 0.1; done"
    return f"({text}\n) >background.log 2>&1 </dev/null &\n{waiting}"


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if page.name == "README.md" else pytest.mark.full, id=shown(page)) for page in TYPED],
)
def test_every_line_works_literally(page: Path, team: Team) -> None:
    home = team
    for name, text in GIVEN.items():
        home.write(name, text)
    (home.root / "home").mkdir(exist_ok=True)
    present = _present() if page in WHOLE else set()
    environment = {**home.environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    answer = subprocess.run(
        ["bash", "-c", script(page, present)],
        cwd=home.project,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert answer.returncode == 0, f"{answer.stdout[-2000:]}\n{answer.stderr[-3000:]}"
    assert "Traceback" not in answer.stderr, answer.stderr


def _present() -> set[str]:
    found = {"time", "half-a-minute", "index"}
    if find_sshd() and shutil.which("rsync"):
        found.add("sshd")
    if not SERVERS["mysql"].missing() and shutil.which("openssl"):
        found.add("mariadb")
    return found


@pytest.mark.full
@pytest.mark.parametrize("page", WHOLE, ids=shown)
def test_every_line_works_for_an_ordinary_user_with_the_core_only(page: Path) -> None:
    """In an empty home, without root and without any extra; blocks that say so need more."""
    with ordinary_user() as user:
        for name, text in GIVEN.items():
            user.write(name, text)
        typed = script(page, {"time", "half-a-minute"}).partition("pip install ")[0]
        answer = user.bash(typed.replace(shlex.quote(sys.executable), "python3"))
    assert answer.returncode == 0, f"{answer.stdout[-2000:]}\n{answer.stderr[-3000:]}"
    assert "Traceback" not in answer.stderr, answer.stderr


def test_the_first_pages_are_typed() -> None:
    assert {ROOT / "README.md", ROOT / "docs" / "tutorial.md", ROOT / "docs" / "guides" / "survival.md"} <= set(TYPED)
