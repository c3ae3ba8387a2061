"""After random changes in random order, both sides are the same."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.sync.far import Far, Syncing
from tests.support.home import Home
from tests.support.waiting import eventually

LISTING = """
import hashlib, os, sys
for folder, folders, names in os.walk(sys.argv[1]):
    folders[:] = [name for name in folders if name != ".outlast-sync"]
    for name in names + [n for n in folders if os.path.islink(os.path.join(folder, n))]:
        path = os.path.join(folder, name)
        shown = os.path.relpath(path, sys.argv[1])
        if os.path.islink(path):
            print(shown, "->", os.readlink(path))
        else:
            print(shown, hashlib.sha256(open(path, "rb").read()).hexdigest(), bool(os.stat(path).st_mode & 0o100))
"""


def here(root: Path) -> list[str]:
    argv = [sys.executable, "-c", LISTING, str(root)]
    return sorted(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines())


def there(far: Far, folder: str) -> list[str]:
    answer = far.link.run(["python3", "-c", LISTING, folder], check=False)
    return sorted(answer.stdout.decode().splitlines()) if answer.returncode == 0 else []


def change_one(rng: random.Random, root: Path) -> None:
    """One thing that people, editors and programs do."""
    names = [f"{folder}f{number}.py" for folder in ("", "a/", "a/b/", "c/") for number in range(5)]
    path = root / rng.choice(names)
    found = [p for p in root.rglob("*") if p.is_file() and not p.is_symlink()]
    action = rng.choice(
        ["write", "write", "write", "replace", "append", "delete", "rename", "bit", "link", "rmtree", "mv"]
    )
    if action in ("write", "replace", "append"):
        path.parent.mkdir(parents=True, exist_ok=True)
        body = rng.randbytes(rng.choice([0, 10, 5000, 200_000]))
        target = path.with_name(f".{path.name}.tmp") if action == "replace" else path
        with open(target, "ab" if action == "append" else "wb") as file:
            file.write(body)
        if action == "replace":
            target.rename(path)
    elif action == "delete" and found:
        rng.choice(found).unlink()
    elif action == "rename" and found:
        path.parent.mkdir(parents=True, exist_ok=True)
        rng.choice(found).rename(path)
    elif action == "bit" and found:
        rng.choice(found).chmod(rng.choice([0o644, 0o755]))
    elif action == "link":
        link = root / f"link{rng.randrange(3)}"
        link.unlink(missing_ok=True)
        link.symlink_to(rng.choice(names))
    elif action == "rmtree":
        shutil.rmtree(root / rng.choice(["a/b", "c"]), ignore_errors=True)
    elif action == "mv" and (root / "a").is_dir():
        shutil.rmtree(root / "moved", ignore_errors=True)
        (root / "a").rename(root / "moved")


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_after_a_storm_both_sides_are_the_same(home: Home, far: Far, seed: int) -> None:
    rng = random.Random(seed)
    home.write("first.py", "x")
    syncing = Syncing(home, "dev:project", "--delete")
    syncing.until("copied")
    for round in range(4):
        for _ in range(rng.choice([5, 60, 400])):
            change_one(rng, home.project)
        if round == 2:
            for number in range(500):
                home.write(f"burst/{number}.py", str(number))
        wanted = here(home.project)
        eventually(lambda wanted=wanted: there(far, "project") == wanted, within_s=25.0, what=f"round {round}")
    code, argv = syncing.stop()
    assert code == 0, argv


def test_a_file_that_is_written_all_the_time_ends_whole(home: Home, far: Far) -> None:
    home.write("log.txt", "")
    syncing = Syncing(home, "dev:project")
    syncing.until("copied")
    with open(home.project / "log.txt", "wb") as file:
        for number in range(20_000):
            file.write(f"line {number}\n".encode())
            file.flush()
    want = hashlib.sha256((home.project / "log.txt").read_bytes()).hexdigest()
    eventually(lambda: want in far.sh("sha256sum project/log.txt"), what="the whole of it")


@pytest.mark.full
def test_branches_are_switched(home: Home, far: Far) -> None:
    def git(*argv: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *author, *argv], cwd=home.project, check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    for number in range(2000):
        home.write(f"p{number % 20}/m{number}.py", f"main {number}")
    git("add", "-A")
    git("commit", "-qm", "main")
    git("checkout", "-qb", "other")
    for number in range(0, 2000, 2):
        home.write(f"p{number % 20}/m{number}.py", f"other {number}")
    git("rm", "-rq", "p1")
    home.write("q/new.py", "new")
    git("add", "-A")
    git("commit", "-qm", "other")
    syncing = Syncing(home, "dev:project", "--delete")
    syncing.until("copied")
    for branch in ("main", "other", "main", "other"):
        git("checkout", "-q", branch)
    wanted = [line for line in here(home.project) if not line.startswith(".git/")]
    eventually(lambda: there(far, "project") == wanted, within_s=60.0, what="the last branch")


def test_when_no_more_folders_can_be_watched_it_polls(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from outlast.sync.watch import Watcher\n"
        "seen = []\n"
        "watcher = Watcher(sys.argv[1], changed=lambda paths: None, scanned=seen.append)\n"
        "print(watcher.how, watcher.why)\n"
        "while not seen: time.sleep(0.01)\n"
        "print(sorted(seen[0]))\n"
        "watcher.close()\n"
    )
    for number in range(10):
        (tmp_path / f"f{number}").mkdir()
        (tmp_path / f"f{number}" / "x").write_text("x")
    limited = 'echo 3 > /proc/sys/user/max_inotify_watches && exec "$@"'
    argv = ["unshare", "-Ur", "sh", "-c", limited, "sh", sys.executable, "-c", program, str(tmp_path)]
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    except FileNotFoundError:
        pytest.skip("`unshare` is not installed")
    if "max_inotify_watches" in answer.stderr or "unshare" in answer.stderr:
        pytest.skip(f"the limit cannot be set here: {answer.stderr.strip()}")
    assert "polling the system's limit of watched folders is reached" in answer.stdout, answer
    assert "'f9/x'" in answer.stdout
    assert os.path.exists(tmp_path / "f9" / "x")
