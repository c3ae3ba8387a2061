"""The folder of the code on a machine whose image has files in it."""

from __future__ import annotations

from pathlib import Path

from outlast.agent.code import clear_for_code


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
