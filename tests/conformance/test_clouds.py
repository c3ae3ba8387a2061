"""Every cloud passes the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.cloud import Cloud
from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.probe import why_not
from outlast.testing.cloud_conformance import CloudConformance


def local_cloud(root: Path, mode: str) -> Iterator[LocalCloud]:
    if reason := why_not(mode, root=str(root)):
        pytest.skip(f"mode {mode} does not work here: {reason}")
    cloud = LocalCloud(str(root), mode=mode)
    for zone in cloud.zone_settings():
        cloud.set_zone(zone, grace_s=0.3)
    yield cloud
    for machine in cloud.machines():
        cloud.delete(machine.name)


class TestLocalCloudWithPidNamespace(CloudConformance):
    @pytest.fixture
    def cloud(self, tmp_path: Path) -> Iterator[Cloud]:
        yield from local_cloud(tmp_path, "pidns")


class TestLocalCloudWithPlainProcesses(CloudConformance):
    @pytest.fixture
    def cloud(self, tmp_path: Path) -> Iterator[Cloud]:
        yield from local_cloud(tmp_path, "plain")


class TestLocalCloudWithARootOfItsOwn(CloudConformance):
    @pytest.fixture
    def cloud(self, tmp_path: Path) -> Iterator[Cloud]:
        yield from local_cloud(tmp_path, "root")


class TestLocalCloudOfAnOrdinaryUser(CloudConformance):
    @pytest.fixture
    def cloud(self, tmp_path: Path) -> Iterator[Cloud]:
        yield from local_cloud(tmp_path, "userns")
