"""Checkpoints of many small files: commit and restore, in a folder and in a remote bucket, compared with `tar`.

    .venv/bin/python benchmarks/smallfiles.py [--quick] [--files N] [--json]

The cases of one table alternate within one run. The bucket is our emulator behind a proxy that delays
each direction by 10 ms; both are separate processes, and the upload of the `tar` goes through the same two.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from checkpoint import saver
from measure import PYTHON, Home, Row, Table, home, once, print_tables, row

from outlast.agent.checkpoint.snapshot import take_snapshot
from outlast.code.record import CodeRecord
from outlast.runs import events as ev
from outlast.runs.checkpoints import restore
from outlast.spec.spec import Spec
from outlast.store.bucket import Bucket, open_bucket
from outlast.store.folder import FolderBucket
from outlast.workspace import Workspace

_FILES = 100_000
_FILE_BYTES = 1000
_FOLDER_FILES = 1000
_CHANGED = 0.05
_ONE_WAY_S = 0.010


def _timed(act: Callable[[], object]) -> float:
    os.sync()  # write all buffered data of the previous case
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


class Counting(FolderBucket):
    """A folder that counts the written bytes and objects of parts."""

    written = objects = 0

    def write(self, key: str, body: bytes | memoryview) -> None:
        self.written += len(body)
        self.objects += 1
        super().write(key, body)


class Source:
    """A folder of small files, and its tar archive."""

    def __init__(self, root: str, files: int) -> None:
        self.folder = os.path.join(root, "checkpoints")
        self.tar = os.path.join(root, "checkpoints.tar")
        self.unpacked = os.path.join(root, "unpacked")
        self.rng = random.Random(4)
        self.paths = [
            os.path.join(self.folder, f"shard-{n // _FOLDER_FILES:04d}", f"sample-{n:06d}.bin") for n in range(files)
        ]

    def write(self, share: float = 1.0) -> None:
        """Rewrite a random share of the files."""
        for path in self.rng.sample(self.paths, int(len(self.paths) * share)):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            Path(path).write_bytes(self.rng.randbytes(_FILE_BYTES))

    def make_tar(self) -> None:
        argv = f"tar c -C {os.path.dirname(self.folder)} checkpoints | cat > {self.tar}"
        subprocess.run(argv, shell=True, check=True)
        with open(self.tar, "rb") as file:
            os.fsync(file.fileno())

    def unpack_tar(self) -> None:
        os.makedirs(self.unpacked)
        subprocess.run(["tar", "x", "-C", self.unpacked, "-f", self.tar], check=True)


class Committer:
    """A run in this bucket whose attempt 1 has started, and its checkpointer."""

    def __init__(self, where: Home, bucket: Bucket, source: Source) -> None:
        self.bucket = bucket
        self.source = source
        self.workspace = Workspace(bucket)
        self.run = self.workspace.reserve(Spec(name="small", command=("true",)), CodeRecord(), who="", version="0").run
        placed = ev.Placed(
            attempt=1, cloud="local", region="here", zone="here-a", type="small", spot=True, price_usd_per_hour=0.01,
            on_demand_usd_per_hour=0.03, machine=self.workspace.machine_name(self.run, 1),
        )  # fmt: skip
        for event in (ev.Submitted(), placed, ev.Started(attempt=1)):
            self.workspace.story(self.run).append_or_raise(event, nonce=self.workspace.ids())
        self.back = os.path.join(where.root, "back")
        self.saver = saver(self.workspace, self.run, where.root, source.folder)

    def commit(self) -> None:
        assert self.saver.commit(take_snapshot(self.source.folder)), self.saver.trouble

    def restore(self) -> None:
        newest_first = tuple(reversed(self.workspace.story(self.run).refresh().checkpoints))
        manifest, problems = restore(self.bucket, self.run, newest_first, self.back)
        assert manifest is not None, problems


class Found:
    """Samples by name."""

    def __init__(self) -> None:
        self.samples: dict[str, list[float]] = {}

    def note(self, what: str, value: float) -> None:
        self.samples.setdefault(what, []).append(value)

    def ms(self, what: str, name: str, **rest: Any) -> Row:
        return row(what, [1e3 * sample for sample in self.samples[name]], "ms", **rest)

    def times(self, ours: str, theirs: str, peer: str, most: float = 0.0) -> dict[str, Any]:
        pairs = zip(self.samples[ours], self.samples[theirs], strict=True)
        ratios = sorted(a / b for a, b in pairs)
        middle = ratios[len(ratios) // 2]
        against = f"{middle:.2f}x {peer}, worst {ratios[-1]:.2f}x"
        return {"against": against, **({"goal": f"<= {most:g}x", "met": middle <= most} if most else {})}


def in_folder(where: Home, source: Source, times: int) -> list[Table]:
    found = Found()
    bucket = Counting(where.environment["OUTLAST_WORKSPACE"])
    committer = Committer(where, bucket, source)
    for _ in range(times):
        source.write()
        found.note("tar", _timed(source.make_tar))
        found.note("commit", _timed(committer.commit))
        source.write(_CHANGED)
        bucket.written = bucket.objects = 0
        found.note("second", _timed(committer.commit))
        found.note("bytes", 100 * bucket.written / (len(source.paths) * _FILE_BYTES))
        found.note("objects", bucket.objects)
        found.note("scan", _timed(lambda: take_snapshot(source.folder)))
        for folder in (source.unpacked, committer.back):
            shutil.rmtree(folder, ignore_errors=True)
        found.note("untar", _timed(source.unpack_tar))
        found.note("restore", _timed(committer.restore))
    subprocess.run(["diff", "-r", source.folder, committer.back], check=True)
    title = f"{len(source.paths):,} files of {_FILE_BYTES / 1000:g} kB in a folder ({times} times)"
    rows = [
        found.ms("tar c \\| cat > file; fsync", "tar"),
        found.ms("commit", "commit", **found.times("commit", "tar", "tar", 2.0)),
        found.ms("second commit, 5 % of the files changed", "second", **found.times("second", "tar", "tar")),
        row("... bytes uploaded", found.samples["bytes"], "%", goal="<= 10 %", met=max(found.samples["bytes"]) <= 10),
        row("... objects written", found.samples["objects"], ""),
        found.ms("one scan of the folder", "scan"),
        found.ms("tar x", "untar"),
        found.ms("restore", "restore", **found.times("restore", "untar", "tar x")),
    ]
    return [Table(f"Commit and restore of {title}", rows)]


def in_bucket(where: Home, source: Source, times: int) -> list[Table]:
    found = Found()
    with far_bucket(where.root) as url:
        bucket = open_bucket(url)
        committer = Committer(where, bucket, source)
        for _ in range(times):
            source.write()
            source.make_tar()
            found.note("upload", _timed(lambda: bucket.upload("peer/tar", source.tar)))
            found.note("commit", _timed(committer.commit))
            source.write(_CHANGED)
            found.note("second", _timed(committer.commit))
            shutil.rmtree(committer.back, ignore_errors=True)
            found.note("download", _timed(lambda: bucket.download("peer/tar", source.tar + ".back")))
            found.note("restore", _timed(committer.restore))
    title = f"{len(source.paths):,} files of {_FILE_BYTES / 1000:g} kB in a bucket 20 ms away ({times} times)"
    rows = [
        found.ms("upload of the finished tar", "upload"),
        found.ms("commit", "commit", **found.times("commit", "upload", "the upload", 3.0)),
        found.ms("second commit, 5 % of the files changed", "second", **found.times("second", "upload", "the upload")),
        found.ms("download of the tar, not unpacked", "download"),
        found.ms("restore", "restore", **found.times("restore", "download", "the download")),
        once("for scale: the size of the tar", os.path.getsize(source.tar) / 1e6, "MB"),
    ]
    return [Table(f"Commit and restore of {title}", rows)]


# The remote bucket


@contextmanager
def far_bucket(root: str) -> Iterator[str]:
    """Yield the URL of a bucket with 20 ms latency."""
    with _started("--serve", os.path.join(root, "served")) as server, _started("--delay", server) as proxy:
        urllib.request.urlopen(urllib.request.Request(f"{server}/workspace", method="PUT"), timeout=10).close()
        before = os.environ.get("STORAGE_EMULATOR_HOST")
        os.environ["STORAGE_EMULATOR_HOST"] = proxy
        try:
            yield "gs://workspace/place"
        finally:
            os.environ.pop("STORAGE_EMULATOR_HOST")
            if before is not None:
                os.environ["STORAGE_EMULATOR_HOST"] = before


@contextmanager
def _started(*argv: str) -> Iterator[str]:
    """Start a process of this script that prints its address and serves until its stdin ends."""
    process = subprocess.Popen([PYTHON, __file__, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(30)


def serve(folder: str) -> None:
    from outlast.clouds.local.cloud import LocalCloud
    from outlast_gcp_emulator.endpoint import Endpoint

    endpoint = Endpoint(folder, cloud=LocalCloud(f"{folder}/cloud", mode="plain"))
    endpoint.start()
    print(endpoint.url, flush=True)
    sys.stdin.read()
    endpoint.stop()


async def delay(url: str) -> None:
    """Forward data in both directions with a delay of `_ONE_WAY_S`, at full throughput."""
    address = urlsplit(url)

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(256)

        async def deliver() -> None:
            while True:
                due, piece = await pieces.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if not piece:
                    writer.close()
                    return
                writer.write(piece)
                await writer.drain()

        delivering = asyncio.create_task(deliver())
        try:
            while piece := await reader.read(1 << 18):
                await pieces.put((loop.time() + _ONE_WAY_S, piece))
        except ConnectionError:
            pass
        await pieces.put((loop.time() + _ONE_WAY_S, b""))
        await asyncio.gather(delivering, return_exceptions=True)

    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(address.hostname, address.port)
        await asyncio.gather(passed(reader, far_writer), passed(far_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(joined, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{address.path}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)  # also with open connections


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a tenth of the files, fewer repetitions")
    parser.add_argument("--files", type=int, default=0, help=f"how many files ({_FILES})")
    parser.add_argument("--times", type=int, default=0, help="repetitions")
    parser.add_argument("--only", choices=("folder", "bucket"), help="one of the two")
    parser.add_argument("--json", action="store_true", help="data instead of tables")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--delay", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve)
        return
    if asked.delay:
        asyncio.run(delay(asked.delay))
        return
    files = asked.files or (_FILES // 10 if asked.quick else _FILES)
    times = asked.times or (3 if asked.quick else 5)
    tables: list[Table] = []
    with home() as where:
        source = Source(where.root, files)
        for name, measure in (("folder", in_folder), ("bucket", in_bucket)):
            if asked.only in (None, name):
                found = measure(where, source, times)
                tables += found
                if not asked.json:
                    print_tables(*found)
    if asked.json:
        sys.stdout.buffer.write(msgspec.json.encode(tables) + b"\n")


if __name__ == "__main__":
    main()
