"""The conformance suite of the cloud protocol, through Google's API, on machines that really boot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.clouds.cloud import Cloud, InteractiveCloud, Range, Requirements
from outlast.clouds.gcp.cloud import GcpCloud
from outlast.clouds.local.ssh import find_sshd
from outlast.testing.cloud_conformance import CloudConformance, MachineFactory
from outlast.testing.interactive_conformance import InteractiveConformance
from tests.support.gcp import Rehearsal


class TestGoogle(CloudConformance):
    patience_s = 40.0

    @pytest.fixture
    def cloud(self, gcp: GcpCloud, rehearsal: Rehearsal) -> Cloud:
        # The suite preempts machines of the cheapest offer, and would wait for 30 s of grace.
        cheapest = gcp.offers(Requirements(cpus=Range(low=1)))[0]
        rehearsal.local.set_zone(cheapest.zone, grace_s=1.0)
        return gcp


@pytest.mark.skipif(not find_sshd(), reason="sshd is not installed: apt install openssh-server")
class TestGoogleInteractive(InteractiveConformance):
    patience_s = 40.0

    @pytest.fixture
    def cloud(self, gcp: GcpCloud) -> InteractiveCloud:
        return gcp

    @pytest.mark.full
    def test_an_admitted_key_can_log_in_and_the_host_key_is_known(
        self, cloud: InteractiveCloud, fleet: MachineFactory, key: Path
    ) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root may listen on port 22, where Google's machines do; docs/serve.md describes 2222")
        super().test_an_admitted_key_can_log_in_and_the_host_key_is_known(cloud, fleet, key)
