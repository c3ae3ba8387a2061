"""The trainer library in a distributed run: ranks on several machines, each with its own checkpoint folder."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast.errors import OutlastError
from outlast.trainer import files
from outlast.trainer.environment import detect_environment
from outlast.trainer.training import Training
from tests.support.waiting import eventually

NODES, PER_NODE = 2, 2
RANKS = NODES * PER_NODE


def free_port() -> int:
    """Return a port so that the port of the agreement, 1000 above, is free."""
    while True:
        port = random.Random().randrange(20000, 50000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port + 1000)):
                return port


def training_of(rank: int, root: Path, port: int, *, every_s: float = 0.0, replicated: bool = False) -> Training:
    node = rank // PER_NODE
    variables = {
        "OUTLAST_RUN": "run-1",
        "OUTLAST_NODES": str(NODES),
        "OUTLAST_NODE_RANK": str(node),
        "OUTLAST_CHECKPOINT_DIR": str(root / f"node-{node}" / "checkpoints"),
        "OUTLAST_METRICS_FILE": str(root / f"node-{node}" / "signals" / "metrics.jsonl"),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_RANK": str(rank % PER_NODE),
        "LOCAL_WORLD_SIZE": str(PER_NODE),
    }
    environment = detect_environment(variables, folder=str(root / f"node-{node}"))
    return Training(environment, every_s=every_s, every_steps=0, keep=2, replicated=replicated)


@pytest.fixture
def trainings(tmp_path: Path) -> Iterator[Callable[..., list[Training]]]:
    made: list[Training] = []

    def make(**options: float) -> list[Training]:
        port = free_port()
        made[:] = [training_of(rank, tmp_path, port, **options) for rank in range(RANKS)]  # type: ignore[arg-type]
        return made

    yield make
    for one in made:
        one.close()


def in_parallel(runs: list[Training], act: Callable[[Training], None]) -> None:
    problems: list[BaseException] = []

    def attempt(run: Training) -> None:
        try:
            act(run)
        except BaseException as problem:  # noqa: BLE001 - raised below, in the thread of the test
            problems.append(problem)

    threads = [threading.Thread(target=attempt, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    if problems:
        raise problems[0]


def test_all_ranks_save_and_stop_after_the_same_steps(trainings: Callable[..., list[Training]]) -> None:
    runs = trainings(every_s=1e-9)
    lockstep = threading.Barrier(RANKS)
    taken: dict[int, list[int]] = {rank: [] for rank in range(RANKS)}
    saved: dict[int, list[int]] = {rank: [] for rank in range(RANKS)}

    def train(run: Training) -> None:
        rank = run.environment.rank
        for step in run.steps(0, total=200):
            if step == 20 and rank == 0:
                run.request_stop()
            taken[rank].append(step)
            lockstep.wait(timeout=30)
            if run.save_if_due(step, lambda: {"rank": rank}):
                saved[rank].append(step)

    in_parallel(runs, train)
    assert {len(steps) for steps in taken.values()} == {23}
    assert saved[0]
    assert saved[1] == saved[2] == saved[3] == saved[0]


def test_ranks_that_do_not_wait_for_each_other_agree_as_well(trainings: Callable[..., list[Training]]) -> None:
    runs = trainings(every_s=1e-9, replicated=True)
    taken = dict.fromkeys(range(RANKS), 0)

    def train(run: Training) -> None:
        for step in run.steps(0, total=300):
            if step == 100 and run.environment.rank == 0:
                run.request_stop()
            taken[run.environment.rank] = step

    in_parallel(runs, train)
    assert set(taken.values()) == {102}


def test_each_machine_publishes_its_ranks_and_all_of_them_are_one_checkpoint(
    trainings: Callable[..., list[Training]], tmp_path: Path
) -> None:
    runs = trainings()
    for run in runs:
        run.save(3, {"rank": run.environment.rank})
    folders = [Path(run.environment.checkpoints) for run in (runs[0], runs[2])]
    for folder in folders:
        eventually(lambda folder=folder: files.found_in(str(folder)), what="the checkpoint of a machine")
    assert (folders[0] / "step-000000003" / "checkpoint.json").exists()
    assert (folders[1] / "step-000000003" / "checkpoint-1.json").exists()
    assert [run.restore() for run in runs] == [{"rank": rank} for rank in range(RANKS)]
    with pytest.raises(files.BadCheckpoint):
        files.check(files.found_in(str(folders[0]))[0])  # the other machine has the rest
    for path in folders[1].rglob("*"):
        if path.is_file():
            target = folders[0] / path.relative_to(folders[1])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    (found,) = files.found_in(str(folders[0]))
    files.check(found)
    assert files.ranks_of(found) == RANKS


def test_a_rank_whose_rank_0_is_gone_fails(trainings: Callable[..., list[Training]]) -> None:
    runs = trainings()

    def train(run: Training) -> None:
        for step in run.steps(0, total=100):
            if step == 2 and run.environment.rank == 0:
                run.close()
                return

    with pytest.raises(OutlastError, match="rank 0 has closed its connection"):
        in_parallel(runs, train)
