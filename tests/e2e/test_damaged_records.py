"""Damaged records: every listing shows the others, names the damaged one, and exits with 4.

A resource can be deleted without its record.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outlast.clouds.local import images
from outlast.errors import BadRequest
from tests.support.home import Home
from tests.support.machines import needs_ssh

LISTINGS = {
    ("volume", "list", "--json"): "volumes/bad.json",
    ("db", "list", "--json"): "databases/bad.json",
    ("machine", "list", "--json"): "machines/bad.json",
    ("cluster", "list", "--json"): "clusters/bad.json",
    ("sweep", "list", "--json"): "sweeps/bad-s1/sweep.json",
    ("ps", "--all", "--json"): "runs/bad-1/story/00000001.json",
    ("cost", "--json"): "volumes/gone/bad.json",
    ("reap", "--dry-run", "--json"): "clusters/bad.json",
}


@pytest.mark.full
@pytest.mark.parametrize("damage", [b'{"name": "ba', b""], ids=["torn", "empty"])
def test_a_damaged_record_does_not_hide_others(home: Home, damage: bytes) -> None:
    assert home.outlast("volume", "create", "demos", "--size", "1GB").returncode == 0
    for key in LISTINGS.values():
        home.workspace.bucket.put(key, damage)
    for argv, key in LISTINGS.items():
        answer = home.outlast(*argv)
        assert answer.returncode == 4, (argv, answer.stdout, answer.stderr)
        assert key in answer.stderr, (argv, answer.stderr)
        json.loads(answer.stdout)
        if argv[0] == "volume":
            assert [row["name"] for row in json.loads(answer.stdout)] == ["demos"]


def test_reap_keeps_a_machine_with_a_damaged_record_and_delete_deletes_it(home: Home) -> None:
    needs_ssh()
    made = home.outlast("machine", "create", "one", "--cpus", "1")
    assert made.returncode == 0, made.stderr
    home.workspace.bucket.put("machines/one.json", b"{")
    reaped = home.outlast("reap")
    assert reaped.returncode == 4
    assert "machines/one.json cannot be read" in reaped.stderr
    assert [machine.name for machine in home.machines()] == ["one"]
    answer = home.outlast("machine", "delete", "one", "--yes")
    assert answer.returncode == 0, answer.stderr
    assert home.machines() == []
    assert not home.workspace.bucket.children("machines/")


def test_a_damaged_image_is_listed_as_damaged_and_boots_no_machine(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "env-1.json").write_text("{")
    assert [image.description[:7] for image in images.list_all(str(tmp_path)) if image.name == "env-1"] == ["damaged"]
    with pytest.raises(BadRequest, match="damaged"):
        images.layers_for(str(tmp_path), "env-1", mode="plain")
    images.delete(str(tmp_path), "env-1")
    assert [image.name for image in images.list_all(str(tmp_path))] == ["base"]
