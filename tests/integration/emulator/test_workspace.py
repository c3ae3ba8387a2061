"""A gs:// workspace on the endpoint: the bucket contract through obstore, configured by the environment."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from obstore.store import GCSStore

import outlast
from outlast.clouds.local.cloud import LocalCloud
from outlast.errors import Exists
from outlast.store.bucket import Bucket, open_bucket
from outlast.testing.bucket_conformance import BucketConformance
from outlast_gcp_emulator.endpoint import Endpoint
from outlast_gcp_emulator.environment import variables, write_files
from tests.integration.cli.console import OUTLAST, Console
from tests.support.waiting import eventually

_NUMBERS = itertools.count()

# The first machine does one step and waits for its preemption; the second finds that step done.
PROGRAM = """
import os, pathlib, time
folder = pathlib.Path(os.environ["OUTLAST_CHECKPOINT_DIR"])
if not (folder / "done").exists():
    (folder / "done").write_text("1")
    print("step 1", flush=True)
    time.sleep(300)
print("the end", flush=True)
"""

RESULT = """
metrics = open(os.environ["OUTLAST_METRICS_FILE"], "a")
metrics.write('{"step": 1, "loss": 0.5}\\n')
metrics.close()
(pathlib.Path(os.environ["OUTLAST_OUTPUT_DIR"]) / "result.txt").write_text("2")
"""


def _make(url: str, bucket: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{url}/{bucket}", method="PUT"), timeout=10).close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    endpoint = Endpoint(str(tmp_path_factory.mktemp("served")))
    endpoint.start()
    write_files(endpoint.root, endpoint.url)
    _make(endpoint.url, "workspace")
    yield endpoint
    endpoint.stop()


@pytest.fixture
def pointed(served: Endpoint, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket on the endpoint, which the environment points at."""
    for name, value in variables(served.root, served.url).items():
        monkeypatch.setenv(name, value)
    return f"gs://workspace/place-{next(_NUMBERS)}"


class TestOverTheEndpoint(BucketConformance):
    @pytest.fixture
    def bucket(self, pointed: str) -> Bucket:
        return open_bucket(pointed)


def test_obstore_uses_its_own_variables(pointed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    obstore.put(obstore.store.from_url(pointed), "key", b"body", mode="create")
    assert bytes(obstore.get(obstore.store.from_url(pointed), "key").bytes()) == b"body"


def test_the_address_can_omit_the_scheme(served: Endpoint, pointed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_ALLOW_HTTP"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", served.url.removeprefix("http://"))
    open_bucket(pointed).create("key", b"body")
    assert open_bucket(pointed).get("key") == b"body"


@pytest.mark.full
def test_a_run_survives_its_machine_with_its_state_in_the_bucket(
    served: Endpoint, pointed: str, tmp_path: Path
) -> None:
    console = Console(tmp_path)
    (console.folder / "train.py").write_text(PROGRAM)
    away = {**console.variables, **variables(served.root, served.url), "OUTLAST_WORKSPACE": pointed}
    running = subprocess.Popen([OUTLAST, "run", "python", "train.py"], cwd=console.folder, env=away)
    try:
        eventually(lambda: "step 1" in console.run("logs", "last", **away).stdout, within_s=60, what="the first step")
        console.well("preempt", "last", **away)
        assert running.wait(timeout=600) == 0
    finally:
        running.kill()
        running.wait()
        for machine in LocalCloud(str(console.cloud)).machines():
            LocalCloud(str(console.cloud)).delete(machine.name)
    log = console.well("logs", "last", **away)
    assert (log.count("step 1"), log.count("the end")) == (1, 1)
    stories = [entry.key for entry in open_bucket(pointed).list("runs/") if "/story/" in entry.key]
    assert len(stories) > 5


def double(number: int) -> int:
    return 2 * number


@pytest.mark.full
def test_the_python_api_works_with_a_workspace_in_a_bucket(
    pointed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Submit, follow, preempt, read and collect; and functions, whose calls are objects of the bucket."""
    cloudpickle = pytest.importorskip("cloudpickle", reason="the extra `executor` is not installed")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    console = Console(tmp_path)
    for name, value in console.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(console.folder)
    (console.folder / "train.py").write_text(PROGRAM + RESULT)
    space = outlast.workspace(pointed)
    try:
        run = space.submit("python3 train.py", name="bucket", environment="host", checkpoint="saved")
        assert run.preempt(after_checkpoint=True).number == 1
        assert run.wait() == "finished"
        assert list(outlast.workspace(pointed).run("bucket").logs()) == ["step 1", "the end"]
        assert run.outputs()["result.txt"].read_text() == "2"
        assert run.metrics("loss")["loss"] == [0.5]
        assert [one.name for one in space.runs()] == ["bucket-1"]
        with outlast.Executor(1, workspace=space, environment="host") as pool:
            assert list(pool.map(double, range(3))) == [0, 2, 4]
    finally:
        cloud = LocalCloud(str(console.cloud))
        for machine in cloud.machines():
            cloud.delete(machine.name)


def _create_all(url: str, writer: int, won: str) -> None:
    bucket = open_bucket(url)
    for number in range(25):
        try:
            bucket.create(f"race/{number}", b"%d" % writer)
        except Exists:
            continue
        with open(won, "a") as file:
            file.write(f"{number}\n")


def test_one_create_only_put_wins_among_two_servers_of_one_folder(
    served: Endpoint, pointed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Endpoint(served.root)
    other.start()
    context = multiprocessing.get_context("spawn")
    workers = []
    try:
        for number in range(4):
            # A process reads its settings at its start.
            chosen, files = served if number % 2 else other, tmp_path / f"files-{number}"
            files.mkdir()
            shutil.copy(f"{served.root}/key.json", files)
            write_files(str(files), chosen.url)
            for name, value in variables(str(files), chosen.url).items():
                monkeypatch.setenv(name, value)
            arguments = (pointed, number, str(tmp_path / f"won-{number}"))
            workers.append(context.Process(target=_create_all, args=arguments))
            workers[-1].start()
        for worker in workers:
            worker.join(timeout=60)
            assert worker.exitcode == 0
        bucket = open_bucket(pointed)
        won = {n: (tmp_path / f"won-{n}").read_text().split() for n in range(4) if (tmp_path / f"won-{n}").exists()}
        assert sorted(int(number) for each in won.values() for number in each) == list(range(25))
        for writer, numbers in won.items():
            assert all(bucket.get(f"race/{number}") == b"%d" % writer for number in numbers)
    finally:
        other.stop()


@pytest.fixture
def store(served: Endpoint) -> GCSStore:
    return GCSStore("workspace", base_url=served.url, bearer_token="any", client_options={"allow_http": True})


def test_a_conditional_put_replaces_only_the_version_that_was_read(store: GCSStore) -> None:
    obstore.put(store, "counter", b"0")

    def add(_: int) -> None:
        while True:
            got = obstore.get(store, "counter")
            before = int(bytes(got.bytes()))
            version = {"e_tag": got.meta["e_tag"], "version": got.meta["version"]}
            try:
                obstore.put(store, "counter", b"%d" % (before + 1), mode=version)
                return
            except obstore.exceptions.PreconditionError:
                continue

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(add, range(30)))
    assert bytes(obstore.get(store, "counter").bytes()) == b"30"


def test_multipart_uploads_and_range_reads_work(store: GCSStore) -> None:
    body = os.urandom(1 << 20) * 12 + b"end"
    obstore.put(store, "parts", body, use_multipart=True, chunk_size=5 * 1024 * 1024)
    assert bytes(obstore.get(store, "parts").bytes()) == body
    assert bytes(obstore.get_range(store, "parts", start=5_000_000, end=6_000_000)) == body[5_000_000:6_000_000]
    found = [bytes(each) for each in obstore.get_ranges(store, "parts", starts=[0, 9_000_000], lengths=[10, 20])]
    assert found == [body[:10], body[9_000_000:9_000_020]]


def test_objects_are_copied_and_renamed(store: GCSStore) -> None:
    obstore.put(store, "from/ä b", b"body", attributes={"Content-Type": "text/plain", "own": "word"})
    obstore.copy(store, "from/ä b", "to/c#d")
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.copy(store, "from/ä b", "to/c#d", overwrite=False)
    obstore.rename(store, "from/ä b", "to/e")
    assert [each["path"] for each in obstore.list(store, "to").collect()] == ["to/c#d", "to/e"]
    assert obstore.list(store, "from").collect() == []
    assert obstore.get(store, "to/c#d").attributes["Content-Type"] == "text/plain"


def test_lists_exceed_one_page(store: GCSStore) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: obstore.put(store, f"many/{number % 7}/{number:04d}", b""), range(1100)))
    assert len(obstore.list(store, "many").collect()) == 1100
    assert len(obstore.list(store, "many", offset="many/3/0500").collect()) == sum(
        f"many/{number % 7}/{number:04d}" > "many/3/0500" for number in range(1100)
    )
    below = obstore.list_with_delimiter(store, "many")
    assert sorted(below["common_prefixes"]) == [f"many/{number}" for number in range(7)]
