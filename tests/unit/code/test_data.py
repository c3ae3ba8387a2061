"""Data: made to appear, cached between attempts, never outside of the code folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from code_trees import write

from outlast.agent.data import fetch_data
from outlast.errors import SpecError, WorkspaceError
from outlast.runs.data import check_data
from outlast.store.bucket import Bucket
from outlast.store.folder import FolderBucket
from outlast.store.object_store import ObjectBucket


class Machine:
    """A machine with a code folder and a cache; `stores` are the buckets it can reach, by address."""

    def __init__(self, root: Path, stores: Mapping[str, Bucket]) -> None:
        self.code = root / "code"
        self.cache = root / "cache"
        self.stores = stores
        self.said: list[str] = []

    def fetch(self, sources: dict[str, str]) -> None:
        self.said = []
        self.code.mkdir(parents=True, exist_ok=True)
        fetch_data(
            sources,
            destination=str(self.code),
            cache=str(self.cache),
            progress=self.said.append,
            opened=lambda address: self.stores.get(address) or ObjectBucket("memory://"),
        )

    def fetch_again(self, sources: dict[str, str]) -> None:
        """Another attempt: the code folder is new, the cache is not."""
        shutil.rmtree(self.code)
        self.fetch(sources)

    def files(self) -> dict[str, bytes]:
        paths = (path for path in self.code.rglob("*") if path.is_file())
        return {str(path.relative_to(self.code)): path.read_bytes() for path in paths}


@pytest.fixture
def store() -> Bucket:
    return ObjectBucket("memory://")


@pytest.fixture
def machine(tmp_path: Path, store: Bucket) -> Machine:
    return Machine(tmp_path / "machine", {"gs://b/census": store, "gs://b": store})


def test_folders_files_and_stores_appear(machine: Machine, store: Bucket, tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"a/b.csv": "1", "c.csv": "2", "run.sh": "3"})
    os.chmod(source / "run.sh", 0o755)
    os.symlink("c.csv", source / "link.csv")
    os.symlink(".", source / "loop")
    store.put("train/1.bin", b"one" * 1000)
    store.put("train/2.bin", b"")
    machine.fetch({"data": str(source), "one.csv": f"file://{source}/c.csv", "deep/er": "gs://b/census/"})
    assert machine.files() == {
        "data/a/b.csv": b"1",
        "data/c.csv": b"2",
        "data/link.csv": b"2",
        "data/run.sh": b"3",
        "one.csv": b"2",
        "deep/er/train/1.bin": b"one" * 1000,
        "deep/er/train/2.bin": b"",
    }
    assert os.access(machine.code / "data" / "run.sh", os.X_OK)
    assert '[data] "deep/er": fetching 2 of 2 files, 3.0 kB' in machine.said


def test_one_object_of_a_store(machine: Machine, store: Bucket) -> None:
    store.put("train.csv", b"rows")
    machine.fetch({"data/train.csv": "gs://b/train.csv"})
    assert machine.files() == {"data/train.csv": b"rows"}


def test_many_files_are_fetched_in_parallel_with_progress(machine: Machine, store: Bucket) -> None:
    for number in range(300):
        store.put(f"{number % 7}/{number}", b"%d" % number * 100)
    machine.fetch({"data": "gs://b/census"})
    assert len(machine.files()) == 300
    assert machine.said[-1].startswith('[data] "data": 300 of 300 files')
    assert len(machine.said) <= 13


def test_a_second_attempt_fetches_only_changed_files(machine: Machine, tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"a": "1", "b": "2", "c": "3"})
    sources = {"data": str(source)}
    machine.fetch(sources)
    machine.fetch_again(sources)
    assert machine.said == ['[data] "data": 3 files, all cached']
    write(source, {"b": "two"})
    os.utime(source / "c", (1, 1))
    os.unlink(source / "a")
    machine.fetch_again(sources)
    assert machine.said[0] == '[data] "data": fetching 2 of 2 files, 4 bytes'
    assert machine.files() == {"data/b": b"two", "data/c": b"3"}
    kept = [path for path in machine.cache.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert len(kept) == 2


def test_a_trainer_that_changes_its_data_does_not_affect_other_attempts(machine: Machine, tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"a": "good", "b": "good"})
    sources = {"data": str(source)}
    machine.fetch(sources)
    for name in ("a", "b"):
        assert os.stat(machine.code / "data" / name).st_mode & 0o222 == 0
        os.chmod(machine.code / "data" / name, 0o644)
    with open(machine.code / "data" / "a", "r+") as file:
        file.write("evil")
    (machine.code / "data" / "b").unlink()
    machine.fetch_again(sources)
    assert machine.files() == {"data/a": b"good", "data/b": b"good"}
    assert (source / "a").read_text() == "good"


def test_files_fetched_before_a_kill_are_not_fetched_again(machine: Machine, store: Bucket) -> None:
    for number in range(50):
        store.put(f"{number:02d}", b"x" * 100)

    class Killed(BaseException):
        pass

    def die(said: str) -> None:
        if "fetching" not in said:
            raise Killed

    machine.code.mkdir(parents=True)
    with pytest.raises(Killed):
        fetch_data(
            {"data": "gs://b/census"},
            destination=str(machine.code),
            cache=str(machine.cache),
            progress=die,
            opened=lambda _: store,
        )
    machine.fetch({"data": "gs://b/census"})
    assert machine.said[0] != '[data] "data": fetching 50 of 50 files, 5.0 kB'
    assert len(machine.files()) == 50


@pytest.mark.parametrize("place", ["../out", "a/../../out", "/rooted", "..", "", ".", "a//b", "./a"])
def test_paths_outside_the_code_are_refused(machine: Machine, tmp_path: Path, place: str) -> None:
    source = write(tmp_path / "source", {"a": "1"})
    with pytest.raises(SpecError, match=r"\[data\]"):
        machine.fetch({place: str(source)})
    assert check_data({place: str(source)}) != []
    assert machine.files() == {}


def test_data_do_not_follow_links_out_of_the_code(machine: Machine, tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"a/b": "1"})
    outside = write(tmp_path / "outside", {})
    machine.code.mkdir(parents=True)
    os.symlink(outside, machine.code / "link")
    with pytest.raises(SpecError, match="leads outside"):
        machine.fetch({"link/data": str(source)})
    machine.fetch({"link": str(source)})  # the link itself gives way to the data
    assert list(outside.iterdir()) == []
    write(machine.code, {"data/keep.txt": "from the code"})
    os.symlink(outside, machine.code / "data" / "a")
    with pytest.raises(SpecError, match="leads outside"):
        machine.fetch({"data": str(source)})
    assert list(outside.iterdir()) == []


def test_data_are_merged_into_folders_of_the_code(machine: Machine, tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"a": "data"})
    write(machine.code, {"data/README": "code", "data/a": "code"})
    machine.fetch({"data": str(source)})
    assert machine.files() == {"data/README": b"code", "data/a": b"data"}


def test_missing_sources_are_named(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r'\[data\] "x": `gs://b/none` does not exist'):
        machine.fetch({"x": "gs://b/none"})
    with pytest.raises(SpecError, match=r'\[data\] "y": `/no/such/folder` does not exist'):
        machine.fetch({"y": "/no/such/folder"})


def test_all_problems_are_reported_at_submission(tmp_path: Path) -> None:
    write(tmp_path, {"there": ""})
    sources = {
        "a": "/no/such",
        "../b": str(tmp_path),
        "c": "ftp://x/y",
        "d": "",
        "e": str(tmp_path / "there"),
        "f": "s3://b",
    }
    problems = check_data(sources)
    assert [problem.split(":")[0] for problem in problems] == [
        '[data] "../b"',
        '[data] "c"',
        '[data] "d"',
        '[data] "a"',
    ]


def test_a_body_that_differs_from_its_listing_is_refused(machine: Machine, tmp_path: Path) -> None:
    class Truncating(FolderBucket):
        """A store whose downloads end early, without an error."""

        def download(self, key: str, path: str) -> None:
            super().download(key, path)
            os.truncate(path, 1)

    store = Truncating(str(tmp_path / "store"))
    store.put("a", b"whole")
    machine.stores = {"gs://b/census": store}
    with pytest.raises(WorkspaceError, match=r'\[data\] "data": `a` .* 5 bytes were listed, 1 were read'):
        machine.fetch({"data": "gs://b/census"})
    assert machine.files() == {}


def test_folder_markers_are_not_files(machine: Machine, store: Bucket) -> None:
    store.put("train", b"")
    store.put("train/a", b"1")
    machine.fetch({"data": "gs://b/census"})
    assert machine.files() == {"data/train/a": b"1"}
