"""A run as one file: an uncompressed tar with all its objects under their keys, and the shared objects that it uses.

    outlast.json     format, name and index record of the run; first
    KEY …            the objects: request, story, checkpoints, logs, metrics, outputs, code, packages
    objects.json     key → size and SHA-256 of each; last, so that a file without it is incomplete

A restored run has the name of the archived one, because its objects name each other.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Mapping
from typing import IO

import msgspec

from outlast.errors import Exists, Missing, UsageError
from outlast.retention.collect import SHARED
from outlast.retention.delete import RunDeleter
from outlast.retention.references import names_in
from outlast.runs.deleted import split_number, used_up_to
from outlast.runs.ended import EndedRun, EndedRuns
from outlast.runs.notes import note_key
from outlast.store.bucket import Entry, check_key
from outlast.store.shared import check_references
from outlast.workspace import Workspace

_FORMAT = 1
_ABOUT, _OBJECTS = "outlast.json", "objects.json"
_CHUNK = 1 << 20
# Larger objects pass through a file instead of memory.
_LARGE = 32 << 20


class RunArchive(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an archiving or a restoration."""

    run: str
    path: str
    objects: int
    bytes: int


class _About(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    run: str
    record: EndedRun


def archive_run(workspace: Workspace, run: str, path: str) -> RunArchive:
    """Write an ended run to a new file. Raises UsageError if the run is live, or the file exists."""
    if os.path.exists(path):
        raise UsageError(f"`{path}` exists already", hint="choose another file")
    record = RunDeleter(workspace).record(run)
    entries = _entries_of(workspace, run)
    part = f"{path}.part"
    try:
        with open(part, "wb") as file:
            _write(workspace, file, _About(format=_FORMAT, run=run, record=record), entries)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as problem:
        raise UsageError(f"cannot write `{path}`: {problem.strerror}") from problem
    finally:
        if os.path.exists(part):
            os.unlink(part)
    return RunArchive(run=run, path=path, objects=len(entries), bytes=sum(entry.bytes for entry in entries))


def _entries_of(workspace: Workspace, run: str) -> list[Entry]:
    """Return the objects of a run, its request first, and the shared objects that its request names."""
    bucket = workspace.bucket
    own = list(bucket.list(f"runs/{run}/"))
    own.sort(key=lambda entry: not entry.key.endswith("/spec.json"))
    for key in (note_key(run), f"drills/{run}.json"):
        try:
            own.append(bucket.head(key))
        except Missing:
            pass
    names = names_in(bucket.get(f"runs/{run}/spec.json"))
    shared = [entry for prefix in SHARED for entry in bucket.list(prefix) if names & names_in(entry.key.encode())]
    return own + shared


def _write(workspace: Workspace, file: IO[bytes], about: _About, entries: list[Entry]) -> None:
    found: dict[str, tuple[int, str]] = {}
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, _ABOUT, msgspec.json.encode(about))
        for entry in entries:
            with tempfile.TemporaryDirectory(prefix="outlast-archive-") as folder:
                if entry.bytes <= _LARGE:
                    body: IO[bytes] = io.BytesIO(workspace.bucket.get(entry.key))
                else:
                    workspace.bucket.download(entry.key, os.path.join(folder, "body"))
                    body = open(os.path.join(folder, "body"), "rb")  # noqa: SIM115 - closed below
                with body:
                    found[entry.key] = _digest(body)
                    body.seek(0)
                    member = tarfile.TarInfo(entry.key)
                    member.size, member.mtime = found[entry.key][0], int(entry.modified_at)
                    tar.addfile(member, body)
        _add(tar, _OBJECTS, msgspec.json.encode(found))


def _add(tar: tarfile.TarFile, name: str, body: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(body)
    tar.addfile(member, io.BytesIO(body))


def _digest(body: IO[bytes]) -> tuple[int, str]:
    hasher, size = hashlib.sha256(), 0
    while chunk := body.read(_CHUNK):
        hasher.update(chunk)
        size += len(chunk)
    return size, hasher.hexdigest()


def restore_run(workspace: Workspace, path: str) -> RunArchive:
    """Store an archived run in a workspace. May be interrupted, and repeated.

    Raises UsageError for a damaged file, and if the name belongs to another run, or to a deleted one.
    """
    try:
        with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            about, members = _checked(tar, path)
            _refuse_taken(workspace, tar, about.run, members)
            _store(workspace, tar, about, members)
    except OSError as problem:
        raise UsageError(f"cannot read `{path}`: {problem.strerror}") from problem
    except tarfile.TarError as problem:
        raise _damaged(path, str(problem)) from problem
    size = sum(member.size for member in members.values())
    return RunArchive(run=about.run, path=path, objects=len(members), bytes=size)


def _checked(tar: tarfile.TarFile, path: str) -> tuple[_About, dict[str, tarfile.TarInfo]]:
    """Return what the file contains, after a comparison of each object with its hash."""
    members = {member.name: member for member in tar if member.isreg()}
    try:
        about = msgspec.json.decode(_body(tar, members.pop(_ABOUT)), type=_About)
        wanted = msgspec.json.decode(_body(tar, members.pop(_OBJECTS)), type=dict[str, tuple[int, str]])
    except KeyError as problem:
        raise _damaged(path, f"it has no {problem}") from problem
    except (msgspec.MsgspecError, UnicodeError) as problem:
        raise _damaged(path, str(problem)) from problem
    if about.format != _FORMAT:
        raise UsageError(f"`{path}` was written by a newer outlast (format {about.format})", hint="update outlast")
    if wanted.keys() != members.keys() or f"runs/{about.run}/spec.json" not in wanted:
        raise _damaged(path, "objects are missing")
    allowed = (f"runs/{about.run}/", *SHARED)
    for key, member in members.items():
        check_key(key)
        if not key.startswith(allowed) and key not in (note_key(about.run), f"drills/{about.run}.json"):
            raise _damaged(path, f"`{key}` does not belong to {about.run}")
        body = tar.extractfile(member)
        assert body is not None
        if _digest(body) != wanted[key]:
            raise _damaged(path, f"the content of `{key}` differs from its hash")
    return about, members


def _damaged(path: str, why: str) -> UsageError:
    return UsageError(f"`{path}` is not a complete archive of a run: {why}")


def _body(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    body = tar.extractfile(member)
    assert body is not None
    return body.read()


def _refuse_taken(workspace: Workspace, tar: tarfile.TarFile, run: str, members: Mapping[str, tarfile.TarInfo]) -> None:
    name, number = split_number(run)
    if number and number <= used_up_to(workspace.bucket, name):
        try:
            there = workspace.bucket.get(f"runs/{run}/spec.json")
        except Missing:
            there = b""
        if there != _body(tar, members[f"runs/{run}/spec.json"]):
            raise UsageError(
                f"{run} cannot be restored to {workspace.url}: the names of its deleted runs are never used again",
                hint="restore it to another workspace: `--workspace FOLDER`",
            )


def _store(workspace: Workspace, tar: tarfile.TarFile, about: _About, members: Mapping[str, tarfile.TarInfo]) -> None:
    """Store shared objects, then the request, which refers to them, then the rest; the story makes the run visible."""
    bucket, request = workspace.bucket, f"runs/{about.run}/spec.json"
    shared = [key for key in members if key.startswith(SHARED)]
    for key in shared:
        _put(workspace, tar, key, members[key])
    body = _body(tar, members[request])
    try:
        bucket.create(request, body)
    except Exists:
        if bucket.get(request) != body:
            raise UsageError(
                f"{workspace.url} has another run `{about.run}`",
                hint="restore it to another workspace: `--workspace FOLDER`",
            ) from None
    check_references(bucket, shared, each=workspace.each)
    rest = [key for key in members if key not in shared and key != request]
    for key in sorted(rest, key=lambda key: (f"runs/{about.run}/story/" in key, key)):
        _put(workspace, tar, key, members[key])
    EndedRuns(workspace, each=workspace.each).add(about.record)


def _put(workspace: Workspace, tar: tarfile.TarFile, key: str, member: tarfile.TarInfo) -> None:
    """Store one object unless it is there with this size: an interrupted restoration continues."""
    try:
        if workspace.bucket.head(key).bytes == member.size:
            return
    except Missing:
        pass
    if member.size <= _LARGE:
        workspace.bucket.put(key, _body(tar, member), durable=True)
        return
    body = tar.extractfile(member)
    assert body is not None
    with tempfile.NamedTemporaryFile(prefix="outlast-restore-") as file:
        while chunk := body.read(_CHUNK):
            file.write(chunk)
        file.flush()
        workspace.bucket.upload(key, file.name)
