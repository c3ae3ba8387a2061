"""The folder of the code on a machine whose image has files in it."""

from __future__ import annotations

from pathlib import Path

from outlast.agent.code import clear_for_code, fetch_code, refresh_code
from outlast.code.bundle import pack, store
from outlast.store.folder import FolderBucket


def test_files_of_the_image_are_kept_beside_the_code(tmp_path: Path) -> None:
    folder, reported = tmp_path / "work", []
    folder.mkdir()
    (folder / "data").write_text("of the image")
    clear_for_code(str(folder), reported.append)
    assert not folder.exists()
    assert (tmp_path / "work.image" / "data").read_text() == "of the image"
    assert reported == [f"the code is in {folder}; the files that the image has there are now in {folder}.image"]

    # A second fetch of the same attempt replaces the code of the first, and keeps the image's files.
    folder.mkdir()
    (folder / "train.py").touch()
    clear_for_code(str(folder), reported.append)
    assert not folder.exists()
    assert (tmp_path / "work.image" / "data").exists()
    assert len(reported) == 1


def test_a_second_command_in_the_folder_finds_the_code_and_the_kept_paths_only(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "work"
    (source / "lib").mkdir(parents=True)
    (source / "lib" / "model.py").write_text("model")
    (source / "train.py").write_text("train")
    bucket = FolderBucket(str(tmp_path / "bucket"))
    record = store(bucket, pack(str(source)))
    fetch_code(bucket, record, str(folder))
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "model.bin").touch()
    (folder / "lib" / "data").mkdir()
    (folder / "lib" / "data" / "points.csv").touch()
    (folder / "shared").symlink_to(volume)
    # Left by the first command: a state, a changed program, a link out of the folder.
    (folder / "snapshot.pt").touch()
    (folder / "lib" / "cache").mkdir()
    (folder / "train.py").write_text("changed")
    (folder / "elsewhere").symlink_to(volume)

    refresh_code(bucket, record, str(folder), keep=["lib/data/", "shared"])
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        "lib/data/points.csv",
        "lib/model.py",
        "train.py",
    ]
    assert (folder / "train.py").read_text() == "train"
    assert (folder / "shared" / "model.bin").exists()
    assert (volume / "model.bin").exists()
    assert not (folder / "elsewhere").is_symlink()
