"""Groups on machines of the local cloud: start order, release, added runs, and one master at a time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.support.home import Home

# Prints when it holds the lock and when it writes; a file in the project folder is the database.
MASTER = """
import os, sys, time
end = time.time() + float(sys.argv[1])
book, me = os.environ["BOOK"], " ".join(os.environ[f"OUTLAST_{name}"] for name in ("RUN", "ATTEMPT", "FENCE"))
while time.time() < end and not os.path.exists(f"{book}.{os.environ['OUTLAST_RUN']}"):
    with open(book, "a") as file:
        file.write(f"{time.time()} {me}\\n")
    time.sleep(0.05)
"""

GROUP = """
name = "evolve"
[tasks.worker]
command = "while sleep 0.2; do cat $OUTLAST_PEERS_FILE; echo; done"
count = "1..2"
after = "master"
[tasks.master]
command = "sleep 1; touch up; while [ ! -e {end} ]; do sleep 0.2; cat $OUTLAST_PEERS_FILE; echo; done"
ready = "file:up"
machine = {{ spot = false }}
"""


def runs(home: Home) -> dict[str, str]:
    return {str(row["run"]): str(row["state"]) for row in home.ps()}


def test_a_group_starts_in_order_is_added_to_and_is_released_with_its_master(home: Home) -> None:
    end = home.root / "shared" / "end"
    end.parent.mkdir()
    home.write("outlast.toml", GROUP.format(end=end))
    home.environment["OUTLAST_LOCAL_MODE"] = "pidns"
    following = home.start("run")
    home.until(lambda: runs(home).get("evolve-1-worker-2") == "running", "both workers", within_s=60)
    master = home.state("evolve-1-master")
    for number in (1, 2):
        story = home.state(f"evolve-1-worker-{number}")
        assert story.attempts[0].placed_at > master.attempts[0].started_at + 0.9
    more = home.outlast("submit", "--task", "worker", "--count", "1", "--json")
    assert json.loads(more.stdout)["runs"] == ["evolve-1-worker-3"], more.stderr
    home.until(lambda: '"master"' in home.log("evolve-1-worker-3"), "the third knows where the master is")
    home.until(lambda: '"worker": ["' in home.log("evolve-1-master"), "the master knows of workers")
    home.until(lambda: home.log("evolve-1-master").splitlines()[-1].count(".") == 9, "of all three, by address")
    end.touch()
    said, _ = following.communicate(timeout=600)
    assert following.returncode == 0, said
    assert "[master]" in said
    assert runs(home) == {
        "evolve-1-master": "finished",
        **dict.fromkeys(("evolve-1-worker-1", "evolve-1-worker-2", "evolve-1-worker-3"), "released"),
    }
    assert home.state("evolve-1-worker-1").why == "evolve-1-master is finished"
    assert not home.machines()


def test_an_invalid_group_launches_nothing(home: Home) -> None:
    home.write(
        "outlast.toml",
        'name = "evolve"\n[tasks.a]\ncommand = "true"\nafter = "b"\n[tasks.b]\ncommand = "true"\nafter = "a"\n',
    )
    answer = home.outlast("run")
    assert answer.returncode == 2
    assert "wait for each other" in answer.stderr
    home.write("outlast.toml", 'name = "evolve"\n[tasks.a]\ncommand = "python none.py"\n[tasks.b]\ncommand = "true"\n')
    answer = home.outlast("run")
    assert answer.returncode == 2
    assert "[tasks.a] command: the script `none.py` does not exist" in answer.stderr
    for argv, result in [
        (("--task", "c"), "it has `a`, `b`"),
        (("--count", "2"), "need --task"),
        (("--task", "b"), "no group `evolve` is running"),
        (("--task", "b", "--group", "evolve-9"), "no group `evolve-9`"),
    ]:
        home.write("outlast.toml", 'name = "evolve"\n[tasks.a]\ncommand = "true"\n[tasks.b]\ncommand = "true"\n')
        answer = home.outlast("run", *argv)
        assert result in answer.stderr, argv
        assert answer.returncode in (2, 3), argv
    assert not home.workspace.runs()
    assert not home.machines()


def test_a_group_is_cancelled_as_a_whole(home: Home) -> None:
    home.write("outlast.toml", 'name = "pair"\n[tasks.a]\ncommand = "sleep 300"\n[tasks.b]\ncommand = "sleep 300"\n')
    assert home.outlast("submit").stdout == "pair-1\n"
    home.until(lambda: set(runs(home).values()) == {"running"}, "both run", within_s=60)
    answer = home.outlast("cancel", "pair-1")
    assert answer.stdout == "cancelled pair-1-a, pair-1-b\n"
    home.until(lambda: not home.machines(), "no machine")


@pytest.fixture
def book(home: Home) -> Path:
    folder = home.root / "shared"
    folder.mkdir()
    home.environment["OUTLAST_LOCAL_MODE"] = "pidns"
    home.write("master.py", MASTER)
    return folder / "book"


def submit_master(home: Home, book: Path, seconds: float, name: str) -> str:
    home.write(
        "outlast.toml",
        f'name = "{name}"\ncommand = "exec python3 master.py {seconds}"\n'
        f'exclusive = "db:genomes"\n[env]\nBOOK = "{book}"\n',
    )
    answer = home.outlast("submit")
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def entries(book: Path) -> list[tuple[float, str, int]]:
    """Return time, writer and fence of each write."""
    rows = [line.split() for line in book.read_text().splitlines()] if book.exists() else []
    return [(float(at), f"{run} {attempt}", int(fence)) for at, run, attempt, fence in rows]


def writers(book: Path) -> list[str]:
    """Return the writers in order, without repetitions."""
    found: list[str] = []
    for _, who, _ in entries(book):
        if not found or found[-1] != who:
            found.append(who)
    return found


@pytest.mark.full
def test_only_one_master_runs_at_a_time(home: Home, book: Path) -> None:
    first = submit_master(home, book, 120, "first")
    home.until(lambda: entries(book), "it writes")
    others = [submit_master(home, book, 0.5, "second") for _ in range(3)]
    for other in others:
        home.until(lambda other=other: home.state(other).waiting, "the reason for waiting")
    home.until(
        lambda: any(row["holds"] == "db:genomes" for row in home.ps()), "it says with its heartbeat that it has it"
    )
    result = {str(row["run"]): row for row in home.ps()}
    assert result[first]["holds"] == "db:genomes"
    for other in others:
        assert result[other]["why"] == f"`db:genomes` is held by {first}"
    Path(f"{book}.{first}").touch()
    home.until(lambda: all(home.state(run).ending for run in (first, *others)), "all are through", within_s=90)
    assert writers(book) == [f"{run} 1" for run in (first, *others)]
    assert [fence for _, _, fence in entries(book)] == sorted(fence for _, _, fence in entries(book))
    assert all(home.state(run).ending == "finished" for run in (first, *others))


@pytest.mark.full
def test_the_next_attempt_of_a_master_takes_over_after_a_lost_machine(home: Home, book: Path) -> None:
    run = submit_master(home, book, 60, "master")
    home.until(lambda: entries(book), "it writes")
    died_at = time.time()
    home.cloud.preempt(home.state(run).attempts[-1].machine, notice=False)
    home.until(lambda: f"{run} 2" in writers(book), "its successor writes", within_s=60)
    last = max(at for at, who, _ in entries(book) if who == f"{run} 1")
    assert last < died_at + 1.0
    Path(f"{book}.{run}").touch()
    home.until(lambda: home.state(run).ending == "finished", "the end")
    assert writers(book) == [f"{run} 1", f"{run} 2"]
    assert sorted({fence for _, _, fence in entries(book)}) == [1, 2]


@pytest.mark.full
def test_a_run_is_handed_over_with_its_costs(home: Home) -> None:
    home.write("outlast.toml", 'name = "mine"\ncommand = "sleep 300"\n')
    run = home.outlast("submit").stdout.strip()
    other = home.outlast("submit").stdout.strip()
    assert home.outlast("handover", run, "ann").stdout == f"{run} now belongs to ann\n"
    assert home.outlast("handover", run, "ann").stdout == f"{run} already belongs to ann\n"
    assert [row["run"] for row in json.loads(home.outlast("ps", "--user", "ann", "--json").stdout)] == [run]
    assert [row["run"] for row in json.loads(home.outlast("ps", "--user", "me", "--json").stdout)] == [other]
    assert "USER" in home.outlast("ps").stdout
    assert "handed over to ann by" in home.outlast("show", run).stdout
    assert home.outlast("handover", run, " ").returncode == 2
    home.until(lambda: home.state(run).attempts, "it is placed")
    costs = json.loads(home.outlast("cost", "--by", "user", "--json").stdout)
    assert "ann" in json.dumps(costs)
    for one in (run, other):
        home.outlast("cancel", one)
    answer = home.outlast("handover", run, "bob")
    assert answer.returncode == 2
    assert "has ended (cancelled)" in answer.stderr
    home.until(lambda: not home.machines(), "no machine")
