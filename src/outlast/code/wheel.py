"""The wheel of this outlast in the workspace, from which machines install it; uploaded once per content."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import zipfile
from collections.abc import Iterator

import outlast
from outlast.errors import Exists, Missing, OutlastError
from outlast.store.bucket import Bucket

# A fixed time: the same files must produce the same wheel.
_DAY = (1980, 1, 1, 0, 0, 0)
_WHEEL = "Wheel-Version: 1.0\nGenerator: outlast\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_known: dict[str, str] = {}


def store_wheel(bucket: Bucket) -> str:
    """Store the wheel and return its key. Checked once per process and workspace."""
    if bucket.url not in _known:
        body = wheel()
        key = f"wheels/{hashlib.sha256(body).hexdigest()}/{wheel_name()}"
        try:
            bucket.head(key)
        except Missing:
            try:
                bucket.create(key, body)
            except Exists:
                pass  # another process stored the same
        _known[bucket.url] = key
    return _known[bucket.url]


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
    top = os.path.dirname(os.path.abspath(outlast.__file__))
    for folder, below, names in os.walk(top):
        below[:] = sorted(name for name in below if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(folder, name)
            if not name.endswith((".pyc", ".pyo")):
                with open(path, "rb") as file:
                    yield "outlast/" + os.path.relpath(path, top).replace(os.sep, "/"), file.read()


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
