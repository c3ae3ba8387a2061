"""Uploads to a volume through a gateway, with several rsyncs in parallel. A repeated upload resumes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from outlast.errors import CloudUnreachable, OutlastError, UsageError, VolumeFull
from outlast.machines.ssh import Link

_STREAMS = 4


def upload(link: Link, source: str, target: str, *, report: Callable[[str], None]) -> tuple[int, int]:
    """Upload files and return their number and size, including identical ones, which rsync skips."""
    if not os.path.exists(source):
        raise UsageError(f"SRC: `{source}` does not exist", hint="pass a file or folder of this computer")
    root, paths = _listed(source)
    shares = _shares(root, paths)
    shell = link.rsync_shell()
    done = 0
    with ThreadPoolExecutor(_STREAMS) as pool:
        running = [pool.submit(_rsync, shell, root, share, f"{link.host}:{target}/") for share in shares if share]
        for share, future in zip([share for share in shares if share], running, strict=True):
            future.result()
            done += len(share)
            report(f"{done} of {len(paths)} files")
    return len(paths), sum(_size(os.path.join(root, path)) for path in paths)


def _listed(source: str) -> tuple[str, list[str]]:
    if not os.path.isdir(source):
        folder, name = os.path.split(os.path.abspath(source))
        return folder, [name]
    root = os.path.abspath(source)
    found = [os.path.relpath(os.path.join(place, name), root) for place, _, names in os.walk(root) for name in names]
    return root, sorted(found)


def _shares(root: str, paths: list[str]) -> list[list[str]]:
    """Distribute the paths over the streams: largest first, each to the stream with the least bytes."""
    shares: list[list[str]] = [[] for _ in range(_STREAMS)]
    loads = [0] * _STREAMS
    for path in sorted(paths, key=lambda path: -_size(os.path.join(root, path))):
        least = loads.index(min(loads))
        shares[least].append(path)
        loads[least] += _size(os.path.join(root, path)) + 4096
    return shares


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _rsync(shell: str, root: str, share: list[str], destination: str) -> None:
    argv = ["rsync", "-lptR", "-s", "--partial-dir=.outlast-partial", "--files-from=-", "--from0", "-e", shell]
    names = b"".join(os.fsencode(path) + b"\0" for path in share)
    try:
        done = subprocess.run([*argv, f"{root}/", destination], input=names, capture_output=True, check=False)
    except FileNotFoundError as problem:
        raise OutlastError("`rsync` is not installed on this computer", hint="apt install rsync") from problem
    errors = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode == 0:
        return
    if "No space left" in errors or "Disk quota exceeded" in errors:
        hint = "`outlast volume resize NAME --size SIZE`, then repeat the command: it resumes"
        raise VolumeFull("the volume is full", hint=hint)
    if done.returncode in (10, 12, 30, 35, 255):
        raise CloudUnreachable(f"the connection was lost: {errors[-200:]}", hint="repeat the command: it resumes")
    raise OutlastError(f"rsync exited with {done.returncode}: {errors[-300:]}", hint="repeat the command: it resumes")
