"""The mirror of a job folder in a bucket: uploads checkpoints in the background, fetches the newest valid one.

JOB/step-000000012/…                 the files of a checkpoint, as on disk
JOB/step-000000012/checkpoint.json   its marker, written last: without it the checkpoint does not exist
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

_POLL_S = 0.2
_RETRY_S = 5.0
_SCHEMES = ("gs://", "s3://", "file://")


def is_bucket(job_dir: str) -> bool:
    return is_url(job_dir)


def open_job_bucket(url: str) -> Bucket:
    """Open `gs://…`, `s3://…`, or `file://…` for a slow network folder. Imports the store only when it is used."""
    from outlast.errors import UsageError
    from outlast.store.bucket import open_bucket

    if not url.startswith(_SCHEMES):
        raise UsageError(
            f"--job-dir {url}: unknown URL scheme `{url.split('://')[0]}://`",
            hint="use a folder, gs://BUCKET/PATH or s3://BUCKET/PATH",
        )
    return open_bucket(url.removeprefix("file://"))


class BucketMirror:
    """Mirrors a folder to a bucket. Retries while the store is unreachable; `flush` uploads now, or raises."""

    def __init__(self, url: str, folder: str, *, keep: int) -> None:
        self.url = url
        self.folder = folder
        self.keep = keep
        self.bucket = open_job_bucket(url)
        # Step and marker time of the uploaded checkpoint: the same step may be saved again.
        self._sent = (-1, 0)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # Download

    def fetch(self) -> None:
        """Fetch the newest valid checkpoint, unless the folder has a newer one. Raises WorkspaceError."""
        local = files.found_in(self.folder)
        for step in self._steps():
            if local and local[0].step >= step:
                break
            if self._fetch(step):
                self._sent = _mark(os.path.join(self.folder, files.folder_name(step)), step)
                break

    def record(self) -> bytes:
        """Return the record of the job's end; empty if it is not finished."""
        try:
            return self.bucket.get("done.json")
        except Missing:
            return b""

    def _steps(self) -> list[int]:
        """Return the steps of the complete checkpoints in the bucket, newest first."""
        tail = "/" + files.MARKER
        names = {entry.key.removesuffix(tail) for entry in self.bucket.list("") if entry.key.endswith(tail)}
        return sorted((step for name in names if (step := files.step_of(name)) is not None), reverse=True)

    def _fetch(self, step: int) -> bool:
        name = files.folder_name(step)
        # Named by process: several ranks may fetch at once, and the first result is used.
        staged = os.path.join(self.folder, f"{name}.{os.getpid()}.tmp")
        try:
            for entry in self.bucket.list(name + "/"):
                self.bucket.download(entry.key, os.path.join(staged, entry.key.removeprefix(name + "/")))
            files.check(files.FoundCheckpoint(step=step, path=staged))
        except (files.BadCheckpoint, Missing) as problem:
            shutil.rmtree(staged, ignore_errors=True)
            print(
                f"outlast: {self.url}/{name}: {problem.message}; trying the previous one", file=sys.stderr, flush=True
            )
            return False
        try:
            os.rename(staged, os.path.join(self.folder, name))
        except OSError:
            shutil.rmtree(staged, ignore_errors=True)  # another rank was first
        return True

    # Upload

    def start(self) -> None:
        self._thread = threading.Thread(target=self._follow, name="mirror", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        pause_s = _POLL_S
        while not self._stop.wait(pause_s):
            try:
                self.flush()
                pause_s = _POLL_S
            except OutlastError as problem:
                # The checkpoint is on disk; the next try, or the end of the training, uploads it.
                print(f"outlast: not mirrored yet: {problem.message}", file=sys.stderr, flush=True)
                pause_s = _RETRY_S

    def flush(self) -> None:
        """Upload the newest checkpoint if the bucket does not have it. Raises WorkspaceError."""
        with self._lock:
            for found in files.found_in(self.folder)[:1]:
                try:
                    mark = _mark(found.path, found.step)
                    if mark != self._sent:
                        self._upload(found)
                        self._sent = mark
                        self._prune()
                except (FileNotFoundError, Missing):
                    return  # deleted in favour of a newer one

    def _upload(self, found: files.FoundCheckpoint) -> None:
        """Upload its files, and the marker last. Raises Missing if the folder is deleted meanwhile."""
        name = files.folder_name(found.step)
        paths = [os.path.join(where, file) for where, _, names in os.walk(found.path) for file in names]
        marker = os.path.join(found.path, files.MARKER)
        for path in [*(path for path in paths if path != marker), marker]:
            self.bucket.upload(f"{name}/{os.path.relpath(path, found.path)}", path)

    def _prune(self) -> None:
        for step in self._steps()[self.keep :]:
            name = files.folder_name(step)
            # The marker first: a concurrent reader sees a complete checkpoint or none.
            self.bucket.delete(f"{name}/{files.MARKER}")
            for entry in list(self.bucket.list(name + "/")):
                self.bucket.delete(entry.key)

    def finish(self, record: bytes) -> None:
        """Upload everything, then the record of the job's end."""
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
