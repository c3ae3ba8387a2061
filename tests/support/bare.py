"""Bare machines: a minimal Debian 12 root, as bare as the images of Google and Amazon, for machines of mode `root`.

It has `python3` and no `python`, no pip, no ensurepip, no compiler, no git and no docker.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from outlast.clouds.local.probe import why_not

PACKAGES = ("python3", "ca-certificates", "curl", "openssl")
FOLDER = Path(__file__).resolve().parents[2] / ".venv" / "bare-debian-12"


def bare_root(folder: Path) -> str:
    """Return the path of the bare root, built on first use. Skips the test where it cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("a bare root needs root")
    if reason := why_not("root", root=str(folder)):
        pytest.skip(f"machines of mode root do not work here: {reason}")
    if shutil.which("debootstrap") is None:
        pytest.skip("debootstrap is not installed")
    FOLDER.parent.mkdir(exist_ok=True)
    with open(f"{FOLDER}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not FOLDER.exists():
            _build(Path(f"{FOLDER}.part"))
            os.rename(f"{FOLDER}.part", FOLDER)
    return str(FOLDER)


def _build(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    argv = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", "bookworm", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"debootstrap failed: {done.stdout.strip().splitlines()[-1:]}")
    # Certificates of this computer: the package index may be behind a proxy with its own.
    target = folder / "etc/ssl/certs/ca-certificates.crt"
    target.write_bytes(Path("/etc/ssl/certs/ca-certificates.crt").read_bytes())
    assert not (folder / "usr/bin/python").exists()
    assert not (folder / "usr/bin/pip").exists()
