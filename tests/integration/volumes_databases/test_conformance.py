"""The local cloud's volumes and databases keep the protocols."""

from __future__ import annotations

import pytest

from outlast.clouds.resources import Databases, Volumes
from tests.integration.volumes_databases.suites import DatabaseSuite, VolumeSuite
from tests.support.team import Team


class TestLocalVolumes(VolumeSuite):
    @pytest.fixture
    def volumes(self, team: Team) -> Volumes:
        return team.cloud.volumes


class TestLocalDatabases(DatabaseSuite):
    @pytest.fixture
    def databases(self, team: Team) -> Databases:
        return team.cloud.databases
