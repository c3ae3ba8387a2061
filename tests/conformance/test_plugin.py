"""A cloud of another distribution, found through the entry point group `outlast.clouds`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MODULE = """
from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.traits import CloudTraits


class MoonCloud(LocalCloud):
    name = "moon"
    traits = CloudTraits(silence_s=7.0, store_scheme="s3")
"""
PROGRAM = """
from outlast.clouds.registry import Clouds, clouds
from outlast.clouds.traits import known_clouds, traits_of
from outlast.spec.fields import cloud

assert cloud("moon") == "moon"
assert known_clouds() == ("local", "gcp", "aws", "moon")
assert traits_of("moon").silence_s == 7.0
assert type(clouds()["moon"]).__name__ == "MoonCloud"
assert list(clouds()) == ["local"], "a lookup must not enable a cloud"
assert list(Clouds(("moon", "mars"))) == ["moon"]
"""


def test_a_cloud_of_another_distribution_is_found_by_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "moon.py").write_text(MODULE)
    info = tmp_path / "outlast_moon-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outlast-moon\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[outlast.clouds]\nmoon = moon:MoonCloud\n")
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
