"""Small wheels, as a package index in a folder: tests of environments need no network."""

from __future__ import annotations

import base64
import functools
import hashlib
import socket
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def write_wheel(
    folder: Path, name: str, *, version: str = "1.0", text: str = "", requires: tuple[str, ...] = ()
) -> Path:
    """Write a wheel with one module of the package's name, and a program that imports it."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    files = {
        f"{name}.py": text or f"NAME = {name!r}\n\ndef main():\n    print('program of', NAME)\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": f"[console_scripts]\n{name}-program = {name}:main\n",
    }
    rows = [f"{path},sha256={_digest(body)},{len(body)}\n" for path, body in files.items()]
    files[f"{about}/RECORD"] = "".join(rows) + f"{about}/RECORD,,\n"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, body in files.items():
            archive.writestr(member, body)
    return path


def index_of(folder: Path) -> dict[str, str]:
    """Write an index of the wheels in a folder; return the variables with which uv uses it instead of the internet."""
    index = folder / "simple"
    for wheel in folder.glob("*.whl"):
        page = index / wheel.name.partition("-")[0] / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        page.write_text(f'<a href="../../{wheel.name}#sha256={digest}">{wheel.name}</a>')
    return {"UV_DEFAULT_INDEX": index.as_uri()}


@contextmanager
def served(folder: Path, *, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve a folder over HTTP; yield its URL."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer((host, 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://{host}:{server.server_port}"
        server.shutdown()


def host_address() -> str:
    """Return an address of this computer that its machines reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        trial.connect(("192.0.2.1", 9))  # sends nothing
        return str(trial.getsockname()[0])


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def _digest(body: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(body.encode()).digest()).rstrip(b"=").decode()
