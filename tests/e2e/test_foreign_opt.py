"""A folder /opt/outlast of another user on this computer does not reach the machines of the local cloud."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from outlast.clouds.local.ssh import find_sshd
from tests.support.home import OUTLAST, Home

# Another user's /opt/outlast, in a mount namespace of this command and its machines alone.
FOREIGN = """
mount -t tmpfs tmpfs /opt && mkdir -p /opt/outlast/env/bin && ln -s /bin/false /opt/outlast/env/bin/python
chmod 755 /opt/outlast && exec "$0" "$@"
"""
LINE = "ls -A /opt/outlast; python3 -c 'print(40 + 2)' && mkdir -p /opt/outlast/own && echo writable"

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare"),
]


def test_an_opt_of_another_user_is_not_used_and_not_changed(home: Home) -> None:
    if home.cloud.mode != "root":
        pytest.skip("machines share the root file system here")
    shown = outlast(home, FOREIGN, "run", "--", "bash", "-c", LINE)
    assert shown.splitlines()[:2] == ["42", "writable"]


@pytest.mark.skipif(not find_sshd(), reason="sshd is not installed: apt install openssh-server")
def test_an_opt_that_came_after_an_image_is_not_mixed_with_its_software(home: Home) -> None:
    if home.cloud.mode != "root":
        pytest.skip("machines share the root file system here")
    home.write("image.sh", "mkdir -p /opt/outlast/env && echo software > /opt/outlast/env/a\n")
    home.write("outlast.toml", '[image]\nname = "tool"\nscript = "image.sh"\n')
    outlast(home, 'mount -t tmpfs tmpfs /opt && exec "$0" "$@"', "image", "build")
    assert outlast(home, FOREIGN, "run", "--", "bash", "-c", "ls -A /opt/outlast/*").split() == ["a"]


def outlast(home: Home, around: str, *argv: str) -> str:
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", around, OUTLAST, *argv],
        cwd=home.project,
        env=home.environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
