"""The wheel of this outlast in the workspace, from which machines install it; uploaded once per content."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import threading
import zipfile
from collections.abc import Iterator
from contextlib import suppress

import msgspec

import outlast
from outlast.cachefile import read_cache, write_cache
from outlast.errors import Exists, Missing, OutlastError
from outlast.store.bucket import Bucket

# A fixed time: the same files must produce the same wheel.
_DAY = (1980, 1, 1, 0, 0, 0)
_WHEEL = "Wheel-Version: 1.0\nGenerator: outlast\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_known: dict[str, str] = {}
_lock = threading.Lock()


class _Packed(msgspec.Struct, frozen=True):
    """The cache file: the hash of the wheel of these sources, by their names, sizes and times."""

    sources: str
    sha256: str


def store_wheel(bucket: Bucket) -> str:
    """Store the wheel and return its key. Checked once per process and workspace."""
    with _lock:  # many launches begin at the same time
        if bucket.url not in _known:
            _known[bucket.url] = _store(bucket)
        return _known[bucket.url]


def _store(bucket: Bucket) -> str:
    # Packing takes longer than all requests of a submission, so the hash is kept from one command to the next.
    path, sources = os.path.expanduser("~/.outlast/cache/wheel.json"), _fingerprint()
    packed = read_cache(path, _Packed)
    if packed is not None and packed.sources == sources:
        key = f"wheels/{packed.sha256}/{wheel_name()}"
        with suppress(Missing):
            bucket.head(key)
            return key
    body = wheel()
    sha256 = hashlib.sha256(body).hexdigest()
    key = f"wheels/{sha256}/{wheel_name()}"
    with suppress(Exists):  # another process stored the same
        bucket.create(key, body)
    write_cache(path, _Packed(sources=sources, sha256=sha256))
    return key


def _fingerprint() -> str:
    """Identify the sources without reading them."""
    found = hashlib.sha256(_metadata())
    for name, path in _paths():
        status = os.stat(path)
        found.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return found.hexdigest()


def wheel_name() -> str:
    return f"outlast-{outlast.__version__}-py3-none-any.whl"


def wheel() -> bytes:
    """Return this package, as installed or checked out, as a wheel."""
    about = f"outlast-{outlast.__version__}.dist-info"
    files = [*_sources(), (f"{about}/METADATA", _metadata()), (f"{about}/WHEEL", _WHEEL.encode())]
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name, body in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={digest}", len(body)])
    rows.writerow([f"{about}/RECORD", "", ""])
    files.append((f"{about}/RECORD", record.getvalue().encode()))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in files:
            entry = zipfile.ZipInfo(name, _DAY)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, body)
    return packed.getvalue()


def _sources() -> Iterator[tuple[str, bytes]]:
    for name, path in _paths():
        with open(path, "rb") as file:
            yield name, file.read()


def _paths() -> Iterator[tuple[str, str]]:
    """Yield the name in the wheel and the path of each file of this package."""
    top = os.path.dirname(os.path.abspath(outlast.__file__))
    for folder, below, names in os.walk(top):
        below[:] = sorted(name for name in below if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(folder, name)
            if not name.endswith((".pyc", ".pyo")):
                yield "outlast/" + os.path.relpath(path, top).replace(os.sep, "/"), path


def _metadata() -> bytes:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        text = distribution("outlast").read_text("METADATA")
    except PackageNotFoundError:
        text = None
    if not text:
        raise OutlastError(
            "the metadata of this outlast is missing, so no machine can install it",
            hint="install it with pip, or build an image that has it: `outlast image build`",
        )
    # The header with the requirements, without the description.
    return text.partition("\n\n")[0].encode() + b"\n"
