"""Forged records in the workspace stop neither the supervision of other runs nor `outlast reap`."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.support.home import Home

STORY = "runs/{}/story/00000001.json"


def workspace(home: Home) -> Path:
    return Path(home.workspace.url)


def forge(home: Home, run: str, *, inside: str = "", **spec: object) -> None:
    """Forge a run, as any user with write access to the workspace can."""
    request = {"run": inside or run, "spec": {"command": "true", "name": "evil", **spec}, "code": {"kind": "none"}}
    for key, value in (
        (f"runs/{run}/spec.json", request),
        (STORY.format(run), {"event": "submitted"}),
        (f"heartbeats/{run}", {}),
    ):
        path = workspace(home) / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))


def test_forged_runs_launch_nothing_and_do_not_block_others(home: Home) -> None:
    for run in (
        "a\nb-1",
        "a\x1b[2J-1",
        "-rf",
        "$(touch owned)-1",
        "x y;touch owned-1",
        "A" * 200,
        "..x-1",
        "long" * 40,
    ):
        forge(home, run)
    forge(home, "other-1", inside="../../x")
    forge(home, "cloud-1", machine={"cloud": "no-such"})
    for folder, name in (("heartbeats", b"/\xff\xfe"), ("wakeups", b"/lonely")):
        os.makedirs(workspace(home) / folder, exist_ok=True)
        with open(os.fsencode(workspace(home) / folder) + name, "w") as file:
            file.write("{}")
    answer = home.outlast("run", "--", "echo", "good")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "good\n"
    assert "bug:" not in answer.stderr
    listing = home.outlast("ps", "--all").stdout
    assert "cloud-1" in listing
    assert home.outlast("reap").stdout == "no machines to delete\n"
    assert not list(home.root.rglob("owned"))
