"""Packages on bare machines: from submit to the first line without, with a new and with a cached environment.

    python benchmarks/environments.py [--quick]

The machines boot from a minimal Debian root behind the emulated Google Cloud, and need root and debootstrap. What the
environment adds is compared with `uv pip sync` on this computer and with reading the archive, in the same run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure import OUTLAST, Table, print_tables, row
from tests.support.bare import bare_root

from outlast.clouds.gcp.cloud import GcpCloud
from outlast.clouds.gcp.prices import PriceBook
from outlast.clouds.local.cloud import LocalCloud
from outlast.code.environment import EnvironmentRecord
from outlast.environments import archive
from outlast.kit.uv import run_uv
from outlast.workspace import Workspace, open_workspace
from outlast_gcp_emulator.endpoint import Endpoint
from outlast_gcp_emulator.environment import PROJECT, variables, write_files

PACKAGES = "numpy==2.4.6\nscikit-learn==1.9.1\n"
BARE = "import sys; print('first line', sys.prefix)"
LOADED = "import sys; sys.stdout.write('first line\\n'); import numpy, sklearn"


class Bench:
    """A user's computer with two projects, and a workspace in the emulated storage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "HOME": str(folder / "home"), "OUTLAST_WORKSPACE": "gs://bench/ws"}
        for name in ("without", "with"):
            (folder / name).mkdir(parents=True)
        (folder / "with" / "requirements.txt").write_text(PACKAGES)
        self.workspace: Workspace = open_workspace("gs://bench/ws")
        self.records: list[EnvironmentRecord] = []

    def first_line_s(self, project: str, program: str) -> float:
        """Return the time from the command to the first line of the program's output."""
        began = time.perf_counter()
        process = subprocess.Popen(
            [OUTLAST, "run", "--cloud", "gcp", "--zone", "us-central1-a", "--no-pull", "--", "python", "-c", program],
            cwd=self.folder / project,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        took, output = 0.0, ""
        for line in process.stdout:
            output += line
            if line.startswith("first line") and not took:
                took = time.perf_counter() - began
        if process.wait() or not took:
            sys.exit(f"the run failed:\n{output}")
        return took

    def record(self) -> EnvironmentRecord:
        run = max(self.workspace.runs(), key=lambda run: self.workspace.request(run).submitted_at)
        record = self.workspace.request(run).code.environment
        assert record is not None
        return record

    def forget(self) -> None:
        """Delete the packed environments: the next machine builds one."""
        for entry in self.workspace.bucket.list("environments/"):
            if not entry.key.endswith("/lock"):
                self.workspace.bucket.delete(entry.key)

    def wait_until_stored(self, record: EnvironmentRecord) -> archive.Archive:
        ends_at = time.monotonic() + 120
        while time.monotonic() < ends_at:
            for name in self.workspace.bucket.children(f"environments/{record.digest}/"):
                if name.endswith(".json"):
                    found = archive.find_archive(self.workspace.bucket, record, name.removesuffix(".json"))
                    assert found is not None
                    return found
            time.sleep(0.2)
        sys.exit("no machine stored the environment")

    def sync_s(self, record: EnvironmentRecord) -> float:
        """Return the time of `uv pip sync` with the same lock, without a cache, on this computer."""
        with tempfile.TemporaryDirectory() as place:
            lock = Path(place, "lock.txt")
            lock.write_bytes(self.workspace.bucket.get(record.lock_key))
            began = time.perf_counter()
            run_uv(["venv", "--quiet", "--python", "3.11", f"{place}/env"], what="venv")
            target = ["--python", f"{place}/env/bin/python", "--no-cache", "--quiet"]
            run_uv(["pip", "sync", *target, str(lock)], what="sync")
            return time.perf_counter() - began

    def read_s(self, found: archive.Archive) -> float:
        """Return the time to read and unpack the archive on this computer, as a machine does."""
        with tempfile.TemporaryDirectory() as place:
            began = time.perf_counter()
            archive.unpack(self.workspace.bucket, found, f"{place}/env")
            return time.perf_counter() - began


def measure(bench: Bench, rounds: int) -> Table:
    bench.first_line_s("without", BARE)  # builds and stores the agent kit
    names = ("without", "cold", "cached", "sync", "read")
    took: dict[str, list[float]] = {name: [] for name in names}
    size = 0.0
    for _ in range(rounds):
        took["without"].append(bench.first_line_s("without", BARE))
        bench.forget()
        took["cold"].append(bench.first_line_s("with", LOADED))
        record = bench.record()
        found = bench.wait_until_stored(record)
        size = found.bytes / 1e6
        took["cached"].append(bench.first_line_s("with", LOADED))
        took["sync"].append(bench.sync_s(record))
        took["read"].append(bench.read_s(found))

    def added(name: str, base: str) -> str:
        pairs = zip(took[name], took["without"], took[base], strict=True)
        ratios = sorted((one - without) / other for one, without, other in pairs)
        return f"adds {ratios[len(ratios) // 2]:.1f}x"

    rows = [
        row("submit to the first line, no packages", took["without"], "s"),
        row(
            "the same, new environment (numpy, scikit-learn)",
            took["cold"],
            "s",
            against=f"{added('cold', 'sync')} `uv pip sync`",
        ),
        row(
            "the same, cached environment",
            took["cached"],
            "s",
            against=f"{added('cached', 'read')} reading the archive",
        ),
        row("`uv pip sync` on this computer, no cache", took["sync"], "s"),
        row(f"read and unpack the archive ({size:.0f} MB) on this computer", took["read"], "s"),
    ]
    return Table("Packages on a bare machine", rows)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    rounds = 1 if parser.parse_args().quick else 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        local = LocalCloud(f"{folder}/cloud", mode="root", base=bare_root(folder))
        local.base_names = True
        endpoint = Endpoint(f"{folder}/served", cloud=local)
        endpoint.start()
        write_files(endpoint.root, endpoint.url)
        os.environ.update(variables(endpoint.root, endpoint.url))
        cloud = GcpCloud(PROJECT, prices=PriceBook(f"{folder}/cache"))
        try:
            cloud.client.call("storage", "POST", "b", query={"project": "p"}, body={"name": "bench"})
            print_tables(measure(Bench(folder), rounds))
        finally:
            for machine in local.machines():
                local.delete(machine.name)
            endpoint.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
