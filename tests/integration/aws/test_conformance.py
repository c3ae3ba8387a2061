"""The conformance suites on EC2, emulated by moto and machines of the local cloud."""

from __future__ import annotations

import pytest

from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.cloud import Cloud
from outlast.clouds.local.ssh import find_sshd
from outlast.testing.cloud_conformance import CloudConformance
from outlast.testing.interactive_conformance import InteractiveConformance
from tests.support.aws import Bridge


class TestCloud(CloudConformance):
    @pytest.fixture
    def cloud(self, bridge: Bridge) -> Cloud:  # type: ignore[override]
        return AwsCloud()


@pytest.mark.full
@pytest.mark.skipif(not find_sshd(), reason="sshd is not installed: apt install openssh-server")
class TestWorkshop(InteractiveConformance):
    pass
