"""Every interactive cloud passes the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.test_clouds import local_cloud

from outlast.clouds.cloud import InteractiveCloud
from outlast.clouds.local.ssh import find_sshd
from outlast.testing.interactive_conformance import InteractiveConformance


@pytest.mark.skipif(not find_sshd(), reason="sshd is not installed: apt install openssh-server")
class TestLocalCloud(InteractiveConformance):
    @pytest.fixture(params=["root", "userns", "pidns", "plain"])
    def cloud(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InteractiveCloud]:
        yield from local_cloud(tmp_path, request.param)
