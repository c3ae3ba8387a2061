"""Checkpoints of a distributed run: committed once the files of all machines are there, and never without one."""

from __future__ import annotations

import pickle
import shutil
import time
from functools import partial
from pathlib import Path

import pytest
from tests.support.agent import RUN, Store

from outlast.agent.attempt import AttemptWriter, Verdict
from outlast.agent.checkpoint.checkpointer import Checkpointer
from outlast.agent.checkpoint.joint import LeaderCommitter, MemberCommitter
from outlast.agent.node import Node, node_end
from outlast.agent.paths import AttemptPaths
from outlast.runs import events as ev
from outlast.runs.checkpoints import restore
from outlast.runs.state import RunState
from outlast.spec.spec import CheckpointSpec
from outlast.workspace import Workspace

STOPPED = Verdict(finished=False, outcome="preempted", why="preempted")


class Machine:
    """The part of an agent that saves."""

    def __init__(self, store: Store, root: Path, rank: int) -> None:
        place = {name: str(root / f"node-{rank}" / name) for name in ("checkpoints", "outputs", "code", "cache")}
        paths = AttemptPaths(home=str(root / f"node-{rank}"), notice_file=str(root / "n"), done_file="", **place)
        paths.make()
        self.rank, self.folder = rank, Path(paths.checkpoints)
        self.workspace = Workspace(store)
        clocks = {"now": time.monotonic, "boot_s": 60.0, "silence_s": 60.0, "beat_s": 1.0, "poll_s": 1.0}
        self.node = Node(store, RUN, 1, rank=rank, nodes=2, **clocks)  # type: ignore[arg-type]
        nonces = iter(range(1000))
        attempt = AttemptWriter(
            self.workspace, RUN, 1, clock=time.time, ids=lambda: f"{rank}-{next(nonces)}", rank=rank
        )
        committer = partial(MemberCommitter if rank else LeaderCommitter, node=self.node)
        self.checkpointer = Checkpointer(
            attempt, paths=paths, rule=CheckpointSpec(), report=lambda _: None, node=rank, committer_type=committer
        )

    def write(self, name: str, body: bytes = b"x") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def commit(self) -> bool:
        return self.checkpointer.commit(self.checkpointer.scanner.scan_folder())

    def beat(self) -> None:
        self.node.report_alive("running", writes=self.checkpointer.has_changes())

    def end(self) -> None:
        unsaved = self.checkpointer.commit_last("handled", died_at=time.time())
        shards = self.node.shards
        self.node.report_end(
            node_end(STOPPED, exit_code=143, outputs=0, cut=False, unsaved=bool(unsaved), shards=shards)
        )

    def state(self) -> RunState:
        return self.workspace.story(RUN).refresh()


@pytest.fixture
def machines(store: Store, tmp_path: Path) -> tuple[Machine, Machine]:
    members = ("a", "b")
    place = {"cloud": "local", "region": "r", "zone": "z", "type": "t", "spot": True, "price_usd_per_hour": 1.0}
    placed = ev.Placed(attempt=1, machine="a", members=members, **place)  # type: ignore[arg-type]
    for number, event in enumerate([ev.Submitted(), placed, ev.Started(attempt=1)]):
        Workspace(store).story(RUN).append_or_raise(event, nonce=str(number))
    return Machine(store, tmp_path, 0), Machine(store, tmp_path, 1)


def index(*parts: str) -> bytes:
    """Return what `torch.distributed.checkpoint` writes last, on rank 0: a pickle that names all parts."""
    return pickle.dumps({"storage_data": {number: {"relative_path": part} for number, part in enumerate(parts)}})


def test_parts_of_torch_distributed_checkpoint_are_one_checkpoint(
    machines: tuple[Machine, Machine], store: Store, tmp_path: Path
) -> None:
    leader, member = machines
    leader.write("step-100/__0_0.distcp")
    assert not leader.commit()
    leader.write("step-100/.metadata", index("__0_0.distcp", "__1_0.distcp"))
    member.write("step-100/__1_0.distcp", b"y")
    assert not leader.commit()
    # Its folder never has the index, which is on the machine with rank 0.
    assert member.commit()
    assert leader.commit()
    (saved,) = leader.state().checkpoints
    assert (saved.step, saved.nodes) == (100, 0)
    for rank in range(2):
        manifest, problems = restore(store, RUN, [saved], str(tmp_path / f"back-{rank}"), node=rank)
        assert manifest is not None, problems
        names = sorted(path.name for path in (tmp_path / f"back-{rank}" / "step-100").iterdir())
        assert names == [".metadata", "__0_0.distcp", "__1_0.distcp"]


def test_a_part_that_the_index_names_must_be_stored(machines: tuple[Machine, Machine]) -> None:
    """A machine may write several parts, and store its folder before the last of them."""
    leader, member = machines
    leader.write("step-100/__0_0.distcp")
    leader.write("step-100/.metadata", index("__0_0.distcp", "__1_0.distcp", "__1_1.distcp"))
    member.write("step-100/__1_0.distcp")
    assert member.commit()
    assert not leader.commit()
    assert "`__1_1.distcp` of `step-100`" in leader.checkpointer.committer.waiting
    member.write("step-100/__1_1.distcp")
    assert member.commit()
    assert leader.commit()


def test_an_index_of_an_older_step_may_name_deleted_parts(machines: tuple[Machine, Machine]) -> None:
    leader, member = machines
    for step in ("step-100", "step-200"):
        leader.write(f"{step}/__0_0.distcp", step.encode())
        leader.write(f"{step}/.metadata", index("__0_0.distcp", "__1_0.distcp"))
    member.write("step-200/__1_0.distcp")
    assert member.commit()
    assert leader.commit()


def test_a_machine_that_ended_with_unsaved_files_is_not_taken_for_one_that_writes_none(
    machines: tuple[Machine, Machine], store: Store
) -> None:
    leader, member = machines
    leader.write("step-100.bin")
    member.write("step-100-rank-1.bin")
    store.before_write = lambda key: (_ for _ in ()).throw(OSError("full")) if "/parts/1.1" in key else None
    member.end()
    store.before_write = None
    leader.node.refresh()
    assert not leader.commit()
    assert "node 1 may still write" in leader.checkpointer.committer.waiting


def test_a_machine_that_wrote_nothing_does_not_keep_others_waiting(machines: tuple[Machine, Machine]) -> None:
    leader, member = machines
    leader.write("step-100.bin")
    assert not leader.commit()
    member.end()
    assert leader.commit()
    assert leader.state().checkpoints[-1].nodes == 0


def test_a_checkpoint_of_parts_needs_as_many_machines_and_has_the_times_of_all_files(
    machines: tuple[Machine, Machine], store: Store, tmp_path: Path
) -> None:
    leader, member = machines
    leader.write("step-100/rank-0.bin", b"0")
    for number in (2, 1):
        member.write(f"step-100/rank-1-{number}.bin", str(number).encode())
    assert member.commit()
    assert leader.commit()
    saved = leader.state().checkpoints[-1]
    assert saved.nodes == 2
    restore(store, RUN, [saved], str(tmp_path / "back"), node=1)
    for path in (member.folder / "step-100").iterdir():
        assert (tmp_path / "back" / "step-100" / path.name).stat().st_mtime_ns == path.stat().st_mtime_ns
    shutil.rmtree(tmp_path / "back")


def test_a_save_that_is_seen_in_two_parts_is_one_save(machines: tuple[Machine, Machine]) -> None:
    """A machine may begin its part late, and is not taken for one that writes none before the next save."""
    leader, member = machines

    def commit_after_beats() -> bool:
        committed = leader.commit()
        for _ in range(2):
            member.beat()
            committed = committed or leader.commit()
        return committed

    leader.write("step-100/weights.bin")
    assert not commit_after_beats()
    leader.write("step-100/optimizer.bin")
    assert not commit_after_beats()
    leader.write("step-200/weights.bin")
    assert commit_after_beats()


def test_a_node_that_has_stored_all_it_wrote_is_still_one_that_writes(machines: tuple[Machine, Machine]) -> None:
    leader, member = machines
    member.beat()
    alive = leader.node.alive(1)
    assert alive is not None
    assert not alive.writes
    member.write("step-1/shard-1")
    member.commit()
    assert not member.checkpointer.has_changes()
    member.beat()
    alive = leader.node.alive(1)
    assert alive is not None
    assert alive.writes
