"""The blocks of the guide to Ray clusters, typed literally on the local cloud with real Ray."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conventions.sources import ROOT
from tests.integration.docs.blocks import blocks
from tests.support.cluster import OUTLAST, Bench
from tests.support.cluster import bench as bench
from tests.support.waiting import eventually

pytestmark = pytest.mark.cluster
PAGE = ROOT / "docs" / "guides" / "ray-cluster.md"
# Machine types of Google → those of the local cloud; a command that runs until it is interrupted.
INSTEAD = {"e2-standard-4": "local-1", "n1-standard-8": "local-1", "max = 10": "max = 1"}
ENDLESS = "outlast cluster status search --watch"
TUNE = """
import os
import ray

ray.init()


@ray.remote
def lengths():
    return {name: os.path.getsize(f"/data/{name}") for name in os.listdir("/data")}


print("sees", ray.get(lengths.remote()))
"""


def page_script() -> str:
    """Return the page as a bash program; a failing line ends it."""
    lines = ["set -euo pipefail", 'endless() { timeout --signal INT 5 "$@" || [ $? = 124 ] || [ $? = 130 ]; }']
    for block in blocks(PAGE):
        if block.is_run or block.argv.get("needs") == "ray":
            lines.append(block.text.replace(ENDLESS, f"endless {ENDLESS}"))
    return "\n".join(lines)


def test_the_blocks_of_the_guide_run_on_a_cluster_with_its_volume(bench: Bench) -> None:
    (table,) = (block.text for block in blocks(PAGE) if block.language == "toml")
    for theirs, here in INSTEAD.items():
        table = table.replace(theirs, here)
    (bench.project / "outlast.toml").write_text(table)
    (bench.project / "tune.py").write_text(TUNE)
    environment = {**bench.environment, "PATH": f"{Path(OUTLAST).parent}:{os.environ['PATH']}"}
    answer = subprocess.run(
        ["bash", "-c", page_script()],
        cwd=bench.project,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=560,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout
    assert "Traceback" not in answer.stdout, answer.stdout
    assert answer.stdout.count("sees {'a.txt': 4}") == 2, "the job's output, then its log"
    eventually(lambda: not bench.cloud.machines(), within_s=20, what="no machine is left")
