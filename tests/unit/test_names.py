"""Checkpoints that consist of some files of a folder: only these are saved and restored."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.runs.checkpoints import restore
from outlast.runs.folder_listing import survey
from outlast.runs.manifest import Manifest, write_manifest
from outlast.runs.packs import upload_files
from outlast.runs.state import Checkpoint
from outlast.spec.checkpoint_patterns import is_meant, may_hold, with_sidecars
from outlast.store.bucket import open_bucket
from outlast.store.parts import Parts

RUN = "r"


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def committed(workspace: Path, folder: Path, paths: list[str]) -> Checkpoint:
    parts = Parts(open_bucket(str(workspace)), RUN, 1)
    files = upload_files(parts, str(folder), paths)
    write_manifest(parts.bucket, Manifest(run=RUN, checkpoint="c1", attempt=1, files=files))
    return Checkpoint(id="c1", attempt=1, step=None, at=0.0, bytes=0)


@pytest.mark.parametrize(
    ("path", "names", "meant", "below"),
    [
        ("model.pt", ("model.pt",), True, True),
        ("model.pt.tmp", ("model.pt",), False, False),
        ("model.pt/part-1", ("model.pt",), True, True),
        ("logs", ("logs/version_*/last.ckpt",), False, True),
        ("logs/version_3", ("logs/version_*/last.ckpt",), False, True),
        ("logs/version_3/last.ckpt", ("logs/version_*/last.ckpt",), True, True),
        ("logs/version_3/first.ckpt", ("logs/version_*/last.ckpt",), False, False),
        ("sub/model.pt", ("*.pt",), False, False),
        (".hidden.pt", ("*.pt",), True, True),
        ("anything", (), True, True),
    ],
)
def test_a_name_matches_a_file_or_everything_in_a_folder(
    path: str, names: tuple[str, ...], meant: bool, below: bool
) -> None:
    assert (is_meant(path, names), may_hold(path, names)) == (meant, below)


def test_sidecar_files_are_included(tmp_path: Path) -> None:
    write(tmp_path, cp_dot_ckpt_dot_index="i", checkpoint__code_dot_py="code", train_dot_py="code")
    write(tmp_path, **{"cp_dot_ckpt_dot_data-00000-of-00001": "d", "step-000000012__checkpoint_dot_json": "{}"})
    files = survey(str(tmp_path), names=with_sidecars(["cp.ckpt"])).files
    assert sorted(files) == ["cp.ckpt.data-00000-of-00001", "cp.ckpt.index", "step-000000012/checkpoint.json"]
    assert "deep/study.db-wal" in with_sidecars(["deep/study.db"])
    assert with_sidecars([]) == ()


def test_a_link_to_a_file_that_does_not_match_is_followed(tmp_path: Path) -> None:
    write(tmp_path, **{"model-5_dot_pt": "five"})
    (tmp_path / "latest.pt").symlink_to("model-5.pt")
    assert list(survey(str(tmp_path), names=["latest.pt"])[0]) == ["latest.pt"]
    assert survey(str(tmp_path), names=["*.pt"])[1] == {"latest.pt": "model-5.pt"}
    write(tmp_path, runs__e3__model_dot_pt="three")
    (tmp_path / "latest").symlink_to("runs/e3")
    files, links, _ = survey(str(tmp_path), names=["runs", "latest/model.pt"])
    assert (sorted(files), links) == (["latest/model.pt", "runs/e3/model.pt"], {})


def test_a_restore_replaces_only_matching_files(tmp_path: Path) -> None:
    source, folder, elsewhere = tmp_path / "source", tmp_path / "work", tmp_path / "elsewhere"
    write(source, model_dot_pt="saved", best__model_dot_pt="best")
    saved = committed(tmp_path / "workspace", source, ["best/model.pt", "model.pt"])
    write(folder, model_dot_pt="stale", best__old_dot_pt="stale", train_dot_py="code")
    write(elsewhere, precious="kept")
    (folder / "model.pt-wal").symlink_to(elsewhere / "precious")
    names = with_sidecars(["model.pt", "best"])
    manifest, problems = restore(open_bucket(str(tmp_path / "workspace")), RUN, [saved], str(folder), names=names)
    assert (manifest is not None, problems) == (True, [])
    found = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert found == {"model.pt": "saved", "best/model.pt": "best", "train.py": "code"}
    assert (elsewhere / "precious").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "source", "work", "workspace"]


def test_a_manifest_that_names_other_files_is_refused(tmp_path: Path) -> None:
    source, folder, elsewhere = tmp_path / "source", tmp_path / "work", tmp_path / "elsewhere"
    write(source, train_dot_py="evil", out__model_dot_pt="evil")
    write(folder, train_dot_py="code")
    elsewhere.mkdir()
    (folder / "out").symlink_to(elsewhere)
    bucket = open_bucket(str(tmp_path / "workspace"))
    for paths, names in ((["train.py"], ["model.pt"]), (["out/model.pt"], ["out/model.pt"])):
        saved = committed(tmp_path / "workspace", source, paths)
        manifest, problems = restore(bucket, RUN, [saved], str(folder), names=names)
        assert manifest is None
        assert "does not match the checkpoint files" in problems[0]
        bucket.delete("runs/r/checkpoints/c1/manifest.json")
    assert (folder / "train.py").read_text() == "code"
    assert list(elsewhere.iterdir()) == []
