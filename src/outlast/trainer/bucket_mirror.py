"""A job folder's twin in a bucket: whole checkpoints go up in the background, the newest that holds comes down.

JOB/step-000000012/…                 the files of a checkpoint, as on disk
JOB/step-000000012/checkpoint.json   its marker, last: without it the checkpoint is not there
JOB/done.json                        the job is finished
One job writes to a job folder at a time.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from typing import TYPE_CHECKING

from outlast.errors import Missing, OutlastError
from outlast.store.traits import is_url
from outlast.trainer import files

if TYPE_CHECKING:
    from outlast.store.bucket import Bucket

_LOOK_S = 0.2
_TROUBLE_S = 5.0
_SCHEMES = ("gs://", "s3://", "file://")


def is_bucket(place: str) -> bool:
    return is_url(place)


def open_place(url: str) -> Bucket:
    """The bucket behind `gs://…`, `s3://…`, or `file://…` for a slow or far folder. Loaded only when it is used."""
    from outlast.errors import UsageError
    from outlast.store.bucket import open_bucket

    if not url.startswith(_SCHEMES):
        raise UsageError(
            f"--job-dir {url}: unknown URL scheme `{url.split('://')[0]}://`",
            hint="use a folder, gs://BUCKET/PATH or s3://BUCKET/PATH",
        )
    return open_bucket(url.removeprefix("file://"))


class BucketMirror:
    """Between a folder and a bucket. A store that is away is tried again; `flush` has the last word."""

    def __init__(self, url: str, folder: str, *, keep: int) -> None:
        self.url = url
        self.folder = folder
        self.keep = keep
        self.bucket = open_place(url)
        # Step and time of the marker of the checkpoint that is up: the same step may be saved again.
        self._sent = (-1, 0)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # Down

    def fetch(self) -> None:
        """The newest checkpoint that holds into the folder, unless a newer one is there. Raises WorkspaceError."""
        local = files.found_in(self.folder)
        for step in self._steps():
            if local and local[0].step >= step:
                break
            if self._fetch(step):
                self._sent = _mark(os.path.join(self.folder, files.folder_name(step)), step)
                break

    def record(self) -> bytes:
        """What the bucket knows of the job's end; empty if it is not finished."""
        try:
            return self.bucket.get("done.json")
        except Missing:
            return b""

    def _steps(self) -> list[int]:
        """The whole checkpoints in the bucket, newest first."""
        tail = "/" + files.MARKER
        names = {entry.key.removesuffix(tail) for entry in self.bucket.list("") if entry.key.endswith(tail)}
        return sorted((step for name in names if (step := files.step_of(name)) is not None), reverse=True)

    def _fetch(self, step: int) -> bool:
        name = files.folder_name(step)
        # A name of its own: several ranks may fetch at once, and the first one's is as good as the others'.
        staged = os.path.join(self.folder, f"{name}.{os.getpid()}.tmp")
        try:
            for entry in self.bucket.list(name + "/"):
                self.bucket.download(entry.key, os.path.join(staged, entry.key.removeprefix(name + "/")))
            files.check(files.FoundCheckpoint(step=step, path=staged))
        except (files.BadCheckpoint, Missing) as problem:
            shutil.rmtree(staged, ignore_errors=True)
            print(f"outlast: {self.url}/{name}: {problem.message}; trying the one before", file=sys.stderr, flush=True)
            return False
        try:
            os.rename(staged, os.path.join(self.folder, name))
        except OSError:
            shutil.rmtree(staged, ignore_errors=True)  # another rank was first
        return True

    # Up

    def start(self) -> None:
        self._thread = threading.Thread(target=self._follow, name="mirror", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        pause_s = _LOOK_S
        while not self._stop.wait(pause_s):
            try:
                self.flush()
                pause_s = _LOOK_S
            except OutlastError as problem:
                # The checkpoint is on disk; the next try, or the end of the training, takes it along.
                print(f"outlast: not mirrored yet: {problem.message}", file=sys.stderr, flush=True)
                pause_s = _TROUBLE_S

    def flush(self) -> None:
        """Send the newest checkpoint if it is not there. Raises WorkspaceError."""
        with self._lock:
            for found in files.found_in(self.folder)[:1]:
                try:
                    mark = _mark(found.path, found.step)
                    if mark != self._sent:
                        self._send(found)
                        self._sent = mark
                        self._prune()
                except (FileNotFoundError, Missing):
                    return  # it made room for a newer one

    def _send(self, found: files.FoundCheckpoint) -> None:
        """Its files, and the marker last. Raises Missing if the folder goes away meanwhile."""
        name = files.folder_name(found.step)
        paths = [os.path.join(where, file) for where, _, names in os.walk(found.path) for file in names]
        marker = os.path.join(found.path, files.MARKER)
        for path in [*(path for path in paths if path != marker), marker]:
            self.bucket.upload(f"{name}/{os.path.relpath(path, found.path)}", path)

    def _prune(self) -> None:
        for step in self._steps()[self.keep :]:
            name = files.folder_name(step)
            # The marker first: whoever looks meanwhile sees a whole checkpoint or none.
            self.bucket.delete(f"{name}/{files.MARKER}")
            for entry in list(self.bucket.list(name + "/")):
                self.bucket.delete(entry.key)

    def finish(self, record: bytes) -> None:
        """The job's end: everything is up, and then the record."""
        self.flush()
        self.bucket.put("done.json", record, durable=True)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            try:
                self.flush()
            except OutlastError as problem:
                print(f"outlast: the newest checkpoint is not in {self.url}: {problem.message}", file=sys.stderr)


def _mark(path: str, step: int) -> tuple[int, int]:
    return step, os.stat(os.path.join(path, files.MARKER)).st_mtime_ns
