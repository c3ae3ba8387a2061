"""`outlast doctor` reports every problem that it covers, and never fails itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from outlast.clouds.cloud import LABEL_ATTEMPT, LABEL_RUN, LABEL_WORKSPACE, Boot, Requirements
from outlast.clouds.local.cloud import LocalCloud
from outlast.runs.group import Groups
from outlast.store.lease import Lease
from outlast.workspace import open_workspace
from tests.integration.cli.console import Console


def rows(console: Console, *argv: str, **variables: str) -> dict[str, dict[str, Any]]:
    return {row["check"]: row for row in console.json("doctor", *argv, **variables)["checks"]}


def test_an_empty_home_is_usable(console: Console) -> None:
    answer = console.run("doctor")
    assert answer.returncode == 0
    assert "outlast is usable here" in answer.stdout
    found = rows(console)
    assert found["workspace"]["state"] == "ok"
    assert found["disk space"]["state"] in ("ok", "warning")
    assert found["clock"]["state"] == "ok"
    assert "no supervisor is running" in found["supervisor"]["says"]
    assert {"python", "outlast", "local cloud", "git", "ssh", "rsync", "tmux", "machines", "stories"} <= set(found)


def test_leaves_no_test_objects_behind(console: Console) -> None:
    console.well("doctor")
    assert not list(console.workspace.glob("doctor/*"))


def test_a_workspace_below_a_file_is_an_error_without_a_traceback(console: Console) -> None:
    (console.folder / "file").touch()
    answer = console.run("doctor", "-w", str(console.folder / "file" / "workspace"))
    assert answer.returncode == 1
    assert "is not a folder" in answer.stdout
    assert "not usable" in answer.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_workspace_is_an_error(console: Console) -> None:
    console.workspace.mkdir(mode=0o500)
    answer = console.run("doctor")
    assert answer.returncode == 1
    assert "cannot be written" in answer.stdout


def test_an_unknown_store_and_a_broken_project_are_rows(console: Console) -> None:
    assert rows(console, "-w", "ftp://x")["workspace"]["state"] == "error"
    (console.folder / "outlast.toml").write_text("this is not TOML")
    assert "invalid TOML" in rows(console, OUTLAST_WORKSPACE="")["workspace"]["says"]


def test_missing_programs_are_warnings_with_their_purpose(console: Console, tmp_path: Path) -> None:
    answer = console.run("doctor", PATH=str(tmp_path / "empty"))
    assert answer.returncode == 0
    found = rows(console, PATH=str(tmp_path / "empty"))
    for tool in ("git", "ssh", "rsync", "tmux"):
        assert found[tool]["state"] == "warning"
        assert "install" in found[tool]["fix"]


def test_uv_is_listed_with_its_purpose(console: Console) -> None:
    row = rows(console)["uv"]
    assert row["state"] == "ok"
    assert "`[image] pip`" in row["says"]


@pytest.mark.parametrize(("mode", "state"), [("nonsense", "error"), ("plain", "warning")])
def test_reports_the_mode_of_the_local_cloud_and_why_not_a_better_one(console: Console, mode: str, state: str) -> None:
    row = rows(console, OUTLAST_LOCAL_MODE=mode)["local cloud"]
    assert mode in row["says"]
    if os.uname().sysname == "Linux":
        assert row["state"] == state


def test_a_read_only_local_cloud_is_a_row(console: Console) -> None:
    (console.folder / "file").touch()
    answer = console.run("doctor", OUTLAST_LOCAL_CLOUD=str(console.folder / "file" / "cloud"))
    assert answer.returncode == 1
    assert "set OUTLAST_LOCAL_CLOUD" in answer.stdout


def test_names_the_supervisor(console: Console) -> None:
    lease = Lease(open_workspace(str(console.workspace)).bucket, "supervisor", who="laptop:7", ttl_s=3600.0)
    assert lease.hold()
    assert "laptop:7" in rows(console)["supervisor"]["says"]


def test_an_unsupervised_run_is_a_warning(console: Console) -> None:
    open_workspace(str(console.workspace)).wake("census-1")
    row = rows(console)["supervisor"]
    assert row["state"] == "warning"
    assert "outlast supervise" in row["fix"]


def test_a_group_is_not_a_damaged_run(console: Console) -> None:
    workspace = open_workspace(str(console.workspace))
    group = Groups(workspace).reserve("evolve", who="ann", tasks=("main",))
    assert group in workspace.runs()
    row = rows(console)["stories"]
    assert (row["state"], row["says"]) == ("ok", "runs: 0; every story can be read")


def test_counts_machines_that_no_run_owns(console: Console) -> None:
    workspace = open_workspace(str(console.workspace))
    cloud = LocalCloud(str(console.cloud))
    labels = {LABEL_WORKSPACE: workspace.id, LABEL_RUN: "gone-1", LABEL_ATTEMPT: "1"}
    cloud.launch(cloud.offers(Requirements())[0], "gone-1-a1", boot=Boot(), labels=labels)
    row = rows(console)["machines"]
    assert row["state"] == "warning"
    assert "left over: 1" in row["says"]
    assert "outlast reap" in row["fix"]


@pytest.mark.full
def test_a_damaged_story_and_one_with_a_gap_are_named(console: Console) -> None:
    (console.folder / "train.py").touch()
    console.well("run", "--no-pull", "--name", "whole", "--", "true")
    assert rows(console)["stories"]["state"] == "ok"
    story = console.workspace / "runs" / "whole-1" / "story"
    (story / "00000002.json").rename(console.folder / "kept")
    assert "00000002.json is missing" in rows(console)["stories"]["says"]
    (story / "00000002.json").write_text("{}")
    row = rows(console)["stories"]
    assert row["state"] == "warning"
    assert "whole-1" in row["says"]
    assert "damaged" in row["says"]
