"""The conformance suite of the cloud protocol, on Google's protocol, in front of machines that really boot."""

from __future__ import annotations

import pytest

from outlast.clouds.cloud import Cloud, Workshop
from outlast.clouds.gcp.cloud import GcpCloud
from outlast.clouds.local.ssh import find_sshd
from outlast.testing.clouds import CloudConformance
from outlast.testing.workshop import WorkshopConformance
from tests.gcp.conftest import ZONE, Rehearsal


class TestGoogle(CloudConformance):
    patience_s = 40.0

    @pytest.fixture
    def cloud(self, gcp: GcpCloud, rehearsal: Rehearsal) -> Cloud:
        # The suite takes the cheapest offer, and preempts there; half a minute of grace would be waited for.
        rehearsal.local.set_zone(ZONE, grace_s=1.0)
        return gcp


@pytest.mark.skipif(not find_sshd(), reason="there is no sshd here: apt install openssh-server")
class TestGoogleByHand(WorkshopConformance):
    patience_s = 40.0

    @pytest.fixture
    def cloud(self, gcp: GcpCloud) -> Workshop:
        return gcp
