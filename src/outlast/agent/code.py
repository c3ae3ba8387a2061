"""Fetches a run's code to the machine: a bundle, or a git URL at one commit. Leaves all of it or nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from outlast.agent import apt
from outlast.code.bundle import CodeRecord, unpack
from outlast.code.git import check_remote, git_environment, is_commit, public_url, ref_not_found, scrub
from outlast.errors import OutlastError, SpecError
from outlast.store.bucket import Bucket

# Give up on a server that sends nothing for a minute; git itself would wait forever.
_TIMEOUT = ("-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60")
_NO_SUCH_REF = ("couldn't find remote ref", "not our ref", "unadvertised object", "no such remote ref")
_NO_ACCESS = ("not found", "does not exist", "not appear to be a git repository", "could not read username")


# The folders that this process has cleared.
_cleared: set[str] = set()


class _GitFailed(Exception):
    """git failed; the message is its standard error."""


def fetch_code(bucket: Bucket, record: CodeRecord, destination: str) -> CodeRecord:
    """Fetch the code to `destination`, replacing anything that is there. Returns the record with the commit.

    Raises WorkspaceError or Missing for a bundle; SpecError and OutlastError for a git URL.
    """
    with _staged(bucket, record, destination) as (staged, record):
        _replace_folder(staged, os.path.abspath(destination))
    return record


def refresh_code(bucket: Bucket, record: CodeRecord, destination: str, *, keep: Collection[str]) -> CodeRecord:
    """Fetch the code again for a command that starts in a folder where another one ran. Raises as `fetch_code` does.

    Everything else in the folder is deleted, except the paths to keep: data and mounted volumes.
    """
    kept = {os.path.normpath(path) for path in keep if not os.path.isabs(path)}
    with _staged(bucket, record, destination) as (staged, record):
        _clear(os.path.abspath(destination), kept)
        _move_into(staged, os.path.abspath(destination))
    return record


@contextmanager
def _staged(bucket: Bucket, record: CodeRecord, destination: str) -> Iterator[tuple[str, CodeRecord]]:
    """Fetch the code to a folder beside the destination, which exists for the duration of the context."""
    staged = os.path.abspath(destination) + ".fetched"
    shutil.rmtree(staged, ignore_errors=True)
    try:
        if record.kind == "bundle":
            unpack(bucket, record, staged)
        elif record.kind == "git":
            commit = fetch_git(record.url, record.ref, record.commit, staged)
            record = msgspec.structs.replace(record, commit=commit)
        else:
            os.makedirs(staged)
        yield staged, record
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _clear(folder: str, kept: Collection[str], below: str = "") -> None:
    """Delete everything but the kept paths. A kept path may be a mounted volume: its content must not be touched."""
    for name in os.listdir(folder):
        path, inner = os.path.join(folder, name), os.path.join(below, name)
        if inner in kept:
            continue
        if any(one.startswith(inner + os.sep) for one in kept) and not os.path.islink(path):
            _clear(path, kept, inner)
        elif os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def _move_into(staged: str, folder: str) -> None:
    """Move all files of a folder into another one, merging folders that both have. Kept files take precedence."""
    for name in os.listdir(staged):
        source, target = os.path.join(staged, name), os.path.join(folder, name)
        if not os.path.lexists(target):
            os.rename(source, target)
        elif os.path.isdir(source) and os.path.isdir(target) and not os.path.islink(target):
            _move_into(source, target)


def ensure_git(record: CodeRecord, report: Callable[[str], None]) -> None:
    """Install git if the code is a repository. Raises OSError."""
    if record.kind == "git":
        apt.install_git(report)


def clear_for_code(folder: str, report: Callable[[str], None]) -> None:
    """Make room for the code. Files that the image has there are kept beside it, and reported. May be repeated."""
    if folder in _cleared or not os.path.isdir(folder) or not os.listdir(folder):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        aside = f"{folder}.image"
        shutil.rmtree(aside, ignore_errors=True)
        # An overlay refuses to rename a folder of its lower layers; `move` then copies it.
        shutil.move(folder, aside)
        report(f"the code is in {folder}; the files that the image has there are now in {aside}")
    _cleared.add(folder)


def fetch_git(url: str, ref: str, commit: str, destination: str) -> str:
    """Check out the commit, or else the ref, to a new folder. Returns the commit.

    Raises SpecError if the repository or ref does not exist, OutlastError if git is missing or the server unreachable.
    """
    check_remote(url, ref)
    if is_commit(ref):
        commit = commit or ref
    destination = os.path.abspath(destination)
    os.makedirs(destination)
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, destination, ignore_errors=True)
        try:
            _git(destination, "init", "-q")
            found = _fetch_commit(destination, url, commit or ref or "HEAD")
            _git(destination, "checkout", "-q", "--force", "--detach", found)
            _fetch_submodules(destination, url)
        except _GitFailed as problem:
            raise _error_of(url, str(problem)) from None
        undo.pop_all()
    return found


def _fetch_commit(folder: str, url: str, wanted: str) -> str:
    """Fetch a branch, tag or commit, alone if the server permits it, else everything. Returns its commit."""
    try:
        _git(folder, *_TIMEOUT, "fetch", "-q", "--depth=1", "--no-tags", "--", url, wanted)
        return _git(folder, "rev-parse", "--verify", "FETCH_HEAD^{commit}")
    except _GitFailed as problem:
        if not any(sign in str(problem).lower() for sign in _NO_SUCH_REF):
            raise
    if not re.fullmatch(r"[0-9a-f]{4,64}", wanted):
        raise ref_not_found(url, wanted)
    # Some servers serve a commit only as part of a branch, and none serves one by a short id.
    everything = "+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"
    _git(folder, *_TIMEOUT, "fetch", "-q", "--", url, *everything)
    try:
        return _git(folder, "rev-parse", "--verify", "-q", f"{wanted}^{{commit}}")
    except _GitFailed:
        raise ref_not_found(url, wanted) from None


def _fetch_submodules(folder: str, url: str) -> None:
    if not os.path.exists(os.path.join(folder, ".gitmodules")):
        return
    # Submodule URLs may be relative to this one.
    _git(folder, "config", "remote.origin.url", public_url(url))
    _git(folder, *_TIMEOUT, "submodule", "update", "-q", "--init", "--recursive")


def _git(folder: str, *arguments: str) -> str:
    environment = git_environment()
    # A new machine knows no host keys: accept the first key of a host, and refuse a changed one.
    if "GIT_SSH_COMMAND" not in os.environ:
        environment["GIT_SSH_COMMAND"] += " -o StrictHostKeyChecking=accept-new"
    try:
        done = subprocess.run(
            ["git", "-C", folder, "-c", "advice.detachedHead=false", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
            errors="replace",
        )
    except FileNotFoundError as problem:
        raise OutlastError(
            "[code] git: the machine has no `git`",
            hint="use an image that has git, or send the code along with `[code] path`",
        ) from problem
    if done.returncode != 0:
        raise _GitFailed(done.stderr.strip() or f"git exited with {done.returncode}")
    return done.stdout.strip()


def _error_of(url: str, stderr: str) -> OutlastError:
    """Return the error for a failure of git. Not chained: the cause would show the URL with its credentials."""
    shown = public_url(url)
    stderr = scrub(stderr, url)
    if any(sign in stderr.lower() for sign in _NO_ACCESS):
        return SpecError(
            [f"[code] git = {shown!r}: no such repository, or no access to it: {stderr.splitlines()[-1]}"],
            hint="credentials in a URL are not stored: give the machine a key, or send the code with `[code] path`",
        )
    return OutlastError(f"could not fetch code from {shown}: {stderr}", hint="check the network of the machine")


def _replace_folder(staged: str, destination: str) -> None:
    """Replace the old folder by the new one. A power cut in between leaves neither, and the next try starts clean."""
    old = destination + ".old"
    shutil.rmtree(old, ignore_errors=True)
    if os.path.lexists(destination):
        os.rename(destination, old)
    os.rename(staged, destination)
    shutil.rmtree(old, ignore_errors=True)
