"""Programs that images of public clouds lack, installed with `apt-get` on first use."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable

# Other programs use apt at boot, so wait for its lock.
_APT = ("apt-get", "-y", "-q", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3")
_APT_S = 900.0
_TRIES, _PAUSE_S = 3, 5.0
_KEYS, _SOURCES = "/usr/share/keyrings", "/etc/apt/sources.list.d"
_KEY_S = 60.0


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(package: str, report: Callable[[str], None]) -> str:
    """Install a package; return the last line of the error, empty if there is none."""
    for left in range(_TRIES - 1, -1, -1):
        failed = _install(package)
        if not failed:
            return ""
        if left:
            report(f"apt-get failed and is tried again: {failed}")
            time.sleep(_PAUSE_S)
    return failed


def _install(package: str) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # The recommended packages of container engines are for networks, which are not used.
    for step in (("update",), ("install", "--no-install-recommends", package)):
        try:
            done = subprocess.run(
                [*_APT, *step],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env=environment,
                timeout=_APT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"`apt-get {step[0]}` did not end within {_APT_S:g} s"
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            return lines[-1] if lines else f"`apt-get {step[0]}` exited with {done.returncode}"
    return ""


def add_repository(name: str, *, key_url: str, url: str) -> None:
    """Add a repository with its signing key. Raises OSError."""
    with urllib.request.urlopen(key_url, timeout=_KEY_S) as answer:
        body = answer.read()
    key = os.path.join(_KEYS, f"{name}.asc")
    for path, text in (
        (key, body),
        (os.path.join(_SOURCES, f"{name}.list"), f"deb [signed-by={key}] {url} /\n".encode()),
    ):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(text)


def install_git(report: Callable[[str], None]) -> None:
    """Install git if the machine, which outlast may change, lacks it. Raises OSError."""
    if shutil.which("git") or not can_install():
        return
    report("installing git, because this image lacks it")
    if failed := install("git", report):
        raise OSError(f"`apt-get` cannot install git: {failed}")
