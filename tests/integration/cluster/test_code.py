"""Code on a cluster: as a bundle of this folder, or as a commit that machines fetch themselves."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.support.cluster import FILE, Bench

SET_UP = FILE.replace("[cluster]\n", '[cluster]\nsetup = ["cat greeting > ~/seen-by-the-set-up"]\n', 1)


@pytest.mark.cluster
@pytest.mark.parametrize("way", ["bundle", "git"])
def test_the_set_up_runs_in_the_code_folder_which_stays(bench: Bench, way: str) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    (bench.project / "greeting").write_text("hello\n")
    code = '[code]\npath = "."\n'
    if way == "git":
        # In the workspace, which machines see as well.
        place = bench.root / "workspace" / "greeting.git"
        place.mkdir(parents=True)
        (place / "greeting").write_text("hello\n")
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        for argv in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", "one"), ("tag", "v1")):
            subprocess.run(["git", *argv], cwd=place, check=True)
        (place / "greeting").write_text("later\n")
        subprocess.run(["git", *who, "commit", "-qam", "two"], cwd=place, check=True)
        (bench.project / "greeting").write_text("here\n")
        code = f'[code]\ngit = "file://{place}"\nref = "v1"\n'
    (bench.project / "outlast.toml").write_text(SET_UP + code)
    assert bench.good("cluster", "up") == "small\n"
    seen = bench.good("cluster", "exec", "small", "--", "cat ~/seen-by-the-set-up ~/code/greeting")
    assert seen.split() == ["hello", "hello"]
    bench.good("cluster", "down", "--yes")
    assert bench.cloud.machines() == []
