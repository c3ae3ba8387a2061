"""`outlast local serve` as a separate process, for tests that stop it, kill it or attack it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

OUTLAST = str(Path(sys.executable).parent / "outlast")


class Serving:
    """`outlast local serve` in a separate home folder, until it is stopped or killed."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.root = home / "served"
        self.variables = {"PATH": os.environ["PATH"], "HOME": str(home), "OUTLAST_LOCAL_CLOUD": str(home / "cloud")}
        self.process: subprocess.Popen[str] | None = None
        self.address = self.url = ""

    def start(self, *, port: int = 0, file_bytes_max: int = -1) -> None:
        argv = [OUTLAST, "local", "serve", "--root", str(self.root), "--port", str(port)]

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))

        self.process = subprocess.Popen(
            argv, preexec_fn=limit, env=self.variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address.startswith("http://127.0.0.1:"), self.process.communicate()[1]
        self.url = f"{self.address}/{(self.root / 'token').read_text()}"

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Stop the process; return its exit code and stderr."""
        assert self.process is not None
        self.process.send_signal(number)
        errors = self.process.communicate(timeout=600)[1]
        process, self.process = self.process, None
        return process.returncode, errors

    def outlast(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [OUTLAST, *argv], env=self.variables, capture_output=True, text=True, timeout=60, check=False
        )

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, data=body, method=method, headers=named)
        with urllib.request.urlopen(request, timeout=20) as response:
            content = response.read()
            assert isinstance(content, bytes)
            return content


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    served = Serving(tmp_path)
    served.start()
    yield served
    if served.process is not None:
        served.end(signal.SIGKILL)
