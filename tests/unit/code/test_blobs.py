"""Blobs: one name a content, and no name that lies."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from outlast.errors import Missing, WorkspaceError
from outlast.workspace.blobs import Blob, blob_key, download_blob, put_blob, upload_blob
from outlast.workspace.bucket import Bucket


def test_the_same_content_is_stored_once(bucket: Bucket, tmp_path: Path) -> None:
    sha256 = put_blob(bucket, b"body")
    time = bucket.head(blob_key(sha256)).modified_at
    (tmp_path / "file").write_bytes(b"body")
    assert upload_blob(bucket, str(tmp_path / "file")) == Blob(sha256, 4)
    assert put_blob(bucket, b"body") == sha256 == hashlib.sha256(b"body").hexdigest()
    assert bucket.head(blob_key(sha256)).modified_at == time
    assert [entry.key for entry in bucket.list("")] == [blob_key(sha256)]


@pytest.mark.parametrize("size", [0, 1, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, (10 << 20) + 7])
def test_files_of_any_size_come_back(bucket: Bucket, tmp_path: Path, size: int) -> None:
    source = tmp_path / "files" / "source"
    source.parent.mkdir()
    source.write_bytes(os.urandom(1 << 20) * (size >> 20) + b"x" * (size & 0xFFFFF))
    blob = upload_blob(bucket, str(source))
    assert blob.bytes == size
    assert os.listdir(tmp_path / "files") == ["source"]
    target = tmp_path / "new" / "target"
    download_blob(bucket, blob.sha256, str(target), executable=True)
    assert target.read_bytes() == source.read_bytes()
    assert os.access(target, os.X_OK)
    assert os.listdir(tmp_path / "new") == ["target"]


def test_a_file_that_changes_under_the_upload_gives_no_blob_that_lies(bucket: Bucket, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"0" * (9 << 20))
    over = threading.Event()

    def scribble() -> None:
        with open(source, "r+b") as file:
            while not over.is_set():
                file.seek(int.from_bytes(os.urandom(3), "big") % (9 << 20))
                file.write(os.urandom(100))
                file.flush()

    writer = threading.Thread(target=scribble)
    writer.start()
    try:
        blobs = [upload_blob(bucket, str(source)) for _ in range(4)]
    finally:
        over.set()
        writer.join()
    for blob in blobs:
        download_blob(bucket, blob.sha256, str(tmp_path / "target"))


def test_a_corrupt_blob_is_refused_and_leaves_no_file(bucket: Bucket, tmp_path: Path) -> None:
    sha256 = put_blob(bucket, b"body")
    bucket.put(blob_key(sha256), b"evil")
    target = tmp_path / "target"
    with pytest.raises(WorkspaceError, match="corrupt"):
        download_blob(bucket, sha256, str(target))
    with pytest.raises(Missing):
        download_blob(bucket, "0" * 64, str(target))
    assert os.listdir(tmp_path) == ["workspace"]


def test_a_blob_of_the_wrong_size_is_mended(bucket: Bucket, tmp_path: Path) -> None:
    sha256 = put_blob(bucket, b"body")
    bucket.put(blob_key(sha256), b"bo")
    assert put_blob(bucket, b"body") == sha256
    download_blob(bucket, sha256, str(tmp_path / "target"))
