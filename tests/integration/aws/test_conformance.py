"""EC2, as moto and the local cloud's machines play it, keeps the protocols of clouds and of workshops."""

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


@pytest.mark.skipif(not find_sshd(), reason="there is no sshd here: apt install openssh-server")
class TestWorkshop(InteractiveConformance):
    pass
