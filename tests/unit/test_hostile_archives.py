"""Malicious archives and manifests: no write outside their folder, and no full disk."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from outlast.code.bundle import CodeRecord, code_key, unpack, zstd_module
from outlast.errors import WorkspaceError
from outlast.runs.checkpoints import restore
from outlast.runs.manifest import Manifest, write_manifest
from outlast.runs.state import Checkpoint
from outlast.store.bucket import Bucket, open_bucket
from outlast.store.parts import StoredFile


def bundle_of(bucket: Bucket, *members: tuple[tarfile.TarInfo, bytes]) -> CodeRecord:
    """A bundle whose record is true but for what it is made of."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stored(bucket, body.getvalue(), files=len(members))


def stored(bucket: Bucket, tar: bytes, *, files: int) -> CodeRecord:
    digest = hashlib.sha256(tar).hexdigest()
    bucket.put(code_key(digest), zstd_module().compress(tar))
    return CodeRecord(kind="bundle", sha256=digest, bytes=1000, files=files)


def member(name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.mode = kind, link, mode
    return found


ESCAPES = {
    "above": [member("../evil")],
    "deep above": [member("a/../../evil")],
    "absolute": [member("/tmp/outlast-evil")],
    "link out": [member("a", tarfile.SYMTYPE, link="../..")],
    "absolute link": [member("a", tarfile.SYMTYPE, link="/etc/passwd")],
    "through a link": [member("a", tarfile.SYMTYPE, link="."), member("a/../evil")],
    "link by way of links": [
        member("x/y/b", tarfile.SYMTYPE, link=".."),
        member("c", tarfile.SYMTYPE, link="x/y/b/../.."),
    ],
    "hard link": [member("a", tarfile.LNKTYPE, link="/etc/passwd")],
    "device": [member("a", tarfile.CHRTYPE)],
    "pipe": [member("a", tarfile.FIFOTYPE)],
    "folder": [member("a", tarfile.DIRTYPE)],
    "sparse": [member("a", tarfile.GNUTYPE_SPARSE)],
    "twice": [member("a"), member("a")],
    "file and folder": [member("a"), member("a/b")],
    "link and file": [member("a", tarfile.SYMTYPE, link="b"), member("a")],
}


@pytest.mark.parametrize("members", ESCAPES.values(), ids=ESCAPES)
def test_a_bundle_with_paths_outside_its_folder_is_refused(members: list[tarfile.TarInfo], tmp_path: Path) -> None:
    bucket = open_bucket("memory://")
    code = bundle_of(bucket, *[(one, b"evil" if one.isreg() else b"") for one in members])
    with pytest.raises(WorkspaceError):
        unpack(bucket, code, str(tmp_path / "deep" / "code"))
    assert [path.name for path in tmp_path.rglob("*") if path.name != "deep"] == []


def test_unpacked_files_have_no_special_permissions(tmp_path: Path) -> None:
    bucket = open_bucket("memory://")
    code = bundle_of(bucket, (member("tool", mode=0o6777), b"#!/bin/sh\n"), (member("line\nbreak"), b""))
    unpack(bucket, code, str(tmp_path / "code"))
    assert os.stat(tmp_path / "code" / "tool").st_mode & 0o7022 == 0
    assert (tmp_path / "code" / "line\nbreak").exists()


def test_a_bundle_that_expands_beyond_its_size_is_refused(tmp_path: Path) -> None:
    bucket = open_bucket("memory://")
    header = member("bomb")
    header.size = 1 << 40
    compressor, packed = zstd_module().ZstdCompressor(), io.BytesIO()
    packed.write(compressor.compress(header.tobuf(tarfile.GNU_FORMAT)))
    for _ in range(64):
        packed.write(compressor.compress(bytes(1 << 20)))
    packed.write(compressor.flush())
    bucket.put(code_key("0" * 64), packed.getvalue())
    assert len(packed.getvalue()) < 100_000
    with pytest.raises(WorkspaceError, match="larger than recorded"):
        unpack(bucket, CodeRecord(kind="bundle", sha256="0" * 64, bytes=1000, files=1), str(tmp_path / "code"))
    assert list(tmp_path.iterdir()) == []


MANIFESTS = {
    "above": [StoredFile(path="../evil")],
    "absolute": [StoredFile(path="/tmp/outlast-evil")],
    "file through a link": [StoredFile(path="a", link="x"), StoredFile(path="a/b")],
    "zero": [StoredFile(path="a\0b")],
    "nothing": [StoredFile(path="")],
    "itself": [StoredFile(path=".", link="x")],
    "folder above": [StoredFile(path="../evil/file")],
    "normalized": [StoredFile(path="a/../b")],
}
LINKS = {
    "above": [StoredFile(path="a", link="..")],
    "absolute": [StoredFile(path="a", link="/etc")],
    "by way of links": [StoredFile(path="x/y/b", link=".."), StoredFile(path="c", link="x/y/b/../..")],
    "the same, the other way round": [StoredFile(path="c", link="x/y/b/../.."), StoredFile(path="x/y/b", link="..")],
    "in a chain": [StoredFile(path="a", link="b"), StoredFile(path="b", link="c"), StoredFile(path="c", link="..")],
}


@pytest.mark.parametrize("files", MANIFESTS.values(), ids=MANIFESTS)
def test_a_checkpoint_with_paths_outside_its_folder_is_not_restored(files: list[StoredFile], tmp_path: Path) -> None:
    bucket = open_bucket("memory://")
    write_manifest(bucket, Manifest(run="r", checkpoint="c", attempt=1, files=tuple(files)))
    folder = tmp_path / "checkpoints"
    saved = Checkpoint(id="c", attempt=1, step=None, at=0.0, bytes=0)
    found, problems = restore(bucket, "r", [saved], str(folder))
    assert found is None
    assert len(problems) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("files", LINKS.values(), ids=LINKS)
def test_a_link_to_a_target_outside_is_omitted_and_reported(files: list[StoredFile], tmp_path: Path) -> None:
    bucket = open_bucket("memory://")
    whole = (*files, StoredFile(path="weights"))
    write_manifest(bucket, Manifest(run="r", checkpoint="c", attempt=1, files=whole))
    folder = tmp_path / "checkpoints"
    saved = Checkpoint(id="c", attempt=1, step=None, at=0.0, bytes=0)
    found, remarks = restore(bucket, "r", [saved], str(folder))
    assert found is not None
    assert remarks
    assert all("was omitted" in remark for remark in remarks)
    assert (folder / "weights").is_file()
    for path in folder.rglob("*"):
        assert not path.exists() or path.resolve().is_relative_to(folder)


def test_links_inside_of_a_checkpoint_come_back(tmp_path: Path) -> None:
    bucket = open_bucket("memory://")
    files = (
        StoredFile(path="step-5/weights"),
        StoredFile(path="latest", link="step-5"),
        StoredFile(path="step-5/up", link="../latest"),
    )
    write_manifest(bucket, Manifest(run="r", checkpoint="c", attempt=1, files=files))
    saved = Checkpoint(id="c", attempt=1, step=None, at=0.0, bytes=0)
    found, problems = restore(bucket, "r", [saved], str(tmp_path / "checkpoints"))
    assert (found is not None, problems) == (True, [])
    assert os.readlink(tmp_path / "checkpoints" / "step-5" / "up") == "../latest"
