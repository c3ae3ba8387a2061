"""A master and its workers on a real MariaDB: after preemptions and crashes every result exists once."""

from __future__ import annotations

import importlib.util
import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conventions.sources import ROOT
from tests.support.home import kill_9, processes_mentioning
from tests.support.team import Team, needs_engine

MISSING = [name for name in ("optuna", "pymysql", "matplotlib") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]


class Evolution(Team):
    """The example in a separate home, with a database."""

    def prepare(self, *, results: int, workers: str) -> None:
        needs_engine("mysql")
        shutil.copytree(ROOT / "examples" / "evolve", self.project, dirs_exist_ok=True)
        path = self.project / "outlast.toml"
        text = path.read_text().replace("RESULTS = 200", f"RESULTS = {results}\nTAKES_S = 0.3")
        path.write_text('environment = "host"\n' + text.replace('"2..8"', f'"{workers}"'))
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{self.environment['PATH']}"
        self.environment["OUTLAST_LOCAL_MODE"] = "pidns"
        self.done("db", "create", "genomes", "--engine", "mysql")

    def results(self, master: str) -> int:
        found = re.findall(r"results (\d+) of", self.log(master))
        return int(found[-1]) if found else 0

    def workers(self) -> list[str]:
        """Return the machines of running workers."""
        states = [self.state(run) for run in self.workspace.runs() if "-worker-" in run]
        return [s.current.machine for s in states if s.current is not None and s.current.phase == "started"]

    def preempt_one(self, rng: random.Random) -> bool:
        machines = self.workers()
        if machines:
            self.cloud.preempt(rng.choice(machines), notice=rng.random() < 0.5, grace_s=2.0)
        return bool(machines)

    def holders(self) -> list[str]:
        return [str(row["run"]) for row in self.ps() if row.get("holds") == "db:genomes"]

    def sql(self, query: str) -> list[list[str]]:
        answer = subprocess.run(
            ["outlast", "db", "shell", "genomes", "--", "-N", "-B", "-e", query],
            cwd=self.project, env=self.environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        return [line.split("\t") for line in answer.stdout.splitlines()]


@pytest.fixture
def evolution(tmp_path: Path) -> Iterator[Evolution]:
    made = Evolution(tmp_path)
    yield made
    made.clean()


def evolve(evolution: Evolution, *, results: int, workers: str, preemptions: int) -> None:
    evolution.prepare(results=results, workers=workers)
    group = evolution.done("submit").strip()
    master, rng = f"{group}-master", random.Random(1)
    evolution.until(lambda: evolution.results(master) > 0, "the first result", within_s=120)
    others, killed, struck = [], False, 0
    begun = time.monotonic()
    while not evolution.state(master).ending:
        assert time.monotonic() - begun < 600, evolution.log(master)[-500:]
        done = evolution.results(master)
        if struck < preemptions and done >= (struck + 1) * results * 0.7 / preemptions:
            struck += evolution.preempt_one(rng)
        if len(others) < 3 and done >= (len(others) + 1) * results // 8:
            others.append(evolution.done("submit").strip())
        if not killed and done >= results // 2:
            killed = True
            for pid in processes_mentioning("evolve.py\0master"):
                kill_9(pid)
        assert len(evolution.holders()) <= 1
    assert evolution.state(master).ending == "finished", evolution.state(master).why
    assert struck == preemptions
    assert killed
    assert len(evolution.state(master).attempts) >= 2
    for other in others:
        evolution.done("cancel", other)
        begun_at = [attempt.started_at for attempt in evolution.state(f"{other}-master").attempts if attempt.started_at]
        assert all(at > evolution.state(master).ended_at for at in begun_at)
    evolution.done("pull", master, "results")
    known = json.loads((evolution.project / "results" / "results.json").read_text())
    assert len(known) == results
    assert (evolution.project / "results" / "pareto.png").stat().st_size > 5000
    complete = evolution.sql(
        "SELECT COUNT(*), COUNT(DISTINCT a.value_json) FROM trials t JOIN trial_user_attributes a USING (trial_id)"
        " WHERE t.state = 'COMPLETE' AND a.key = 'genome'"
    )
    assert complete == [[str(results), str(results)]]
    evolution.until(lambda: not evolution.machines(), "no machine is left", within_s=60)


@pytest.mark.soak
def test_every_result_exists_once_despite_preemptions_and_crashes(evolution: Evolution) -> None:
    evolve(evolution, results=16, workers="2..3", preemptions=2)


@pytest.mark.soak
def test_two_hundred_results_eight_workers_twenty_preemptions(evolution: Evolution) -> None:
    evolve(evolution, results=200, workers="2..8", preemptions=20)


FENCE = """
import os, sys
sys.path.insert(0, "{folder}")
import sqlalchemy
from fence import Fence, Superseded
url = os.environ["DATABASE_URL"]
old, new = Fence(url, 1), Fence(url, 2)
old.begin()
with old.hold():
    pass
held = old.hold()
held.__enter__()          # the old master is suspended while it holds the fence
new.begin()               # the new master does not wait for it
with new.hold():
    pass
for act in (lambda: held.__exit__(None, None, None), lambda: old.hold().__enter__(), old.begin):
    try:
        act()
    except (Superseded, sqlalchemy.exc.SQLAlchemyError) as problem:
        print("refused:", type(problem).__name__)
    else:
        print("the old master was accepted")
"""


@pytest.mark.full
def test_a_resumed_old_master_is_rejected(evolution: Evolution) -> None:
    evolution.prepare(results=1, workers="1..1")
    url = evolution.done("db", "url", "genomes").strip()
    done = subprocess.run(
        [sys.executable, "-c", FENCE.format(folder=evolution.project)],
        env={**evolution.environment, "DATABASE_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["refused: OperationalError", "refused: Superseded", "refused: Superseded"]
