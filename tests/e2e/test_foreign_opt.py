"""A folder /opt/outlast of another user on this computer does not reach the machines of the local cloud."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.support.home import OUTLAST, Home

# Another user's /opt/outlast, in a mount namespace of this command and its machines alone.
FOREIGN = """
mount -t tmpfs tmpfs /opt && mkdir -p /opt/outlast/env/bin && ln -s /bin/false /opt/outlast/env/bin/python
chmod 755 /opt/outlast && exec "$0" "$@"
"""


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_an_opt_of_another_user_is_not_used_and_not_changed(home: Home) -> None:
    if home.cloud.mode != "root":
        pytest.skip("machines share the root file system here")
    line = "ls -A /opt/outlast; python -c 'print(40 + 2)' && mkdir -p /opt/outlast/own && echo writable"
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", FOREIGN, OUTLAST, "run", "--", "bash", "-c", line],
        cwd=home.project,
        env=home.environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[:2] == ["42", "writable"]
