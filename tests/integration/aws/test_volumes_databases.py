"""EFS and RDS against moto; botocore validates every parameter."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.clouds.aws import databases, volumes
from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.resources import DatabaseRequest, Databases, Volumes
from outlast.errors import BadRequest
from tests.integration.volumes_databases.suites import LABELS, DatabaseSuite, VolumeSuite
from tests.support.aws import Bridge


@pytest.fixture
def aws(bridge: Bridge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AwsCloud:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(databases, "_PAUSE_S", 0.01)
    monkeypatch.setattr(volumes, "_PAUSE_S", 0.01)
    return AwsCloud()


class TestEfs(VolumeSuite):
    @pytest.fixture
    def volumes(self, aws: AwsCloud) -> Volumes:
        return aws.volumes

    def test_machines_reach_it_from_the_zones_that_have_a_mount_target(self, aws: AwsCloud) -> None:
        everywhere = aws.volumes.create("wide", size_gb=100.0, labels=LABELS)
        assert len(everywhere.zones) > 1
        here = aws.volumes.create("narrow", size_gb=100.0, zone="us-east-1b", labels=LABELS)
        assert (here.zone, here.zones) == ("us-east-1b", ("us-east-1b",))
        assert here.usd_per_month == pytest.approx(30.0)
        assert here.source.endswith(".efs.us-east-1.amazonaws.com:/")
        with pytest.raises(BadRequest, match="zone `mars-1a` has no subnet of the network"):
            aws.volumes.create("lost", size_gb=1.0, zone="mars-1a", labels=LABELS)
        for name in ("wide", "narrow"):
            aws.volumes.delete(name)


class TestRds(DatabaseSuite):
    answers = False

    @pytest.fixture
    def databases(self, aws: AwsCloud) -> Databases:
        return aws.databases

    def test_a_restored_database_replaces_the_old_one(self, aws: AwsCloud) -> None:
        request = DatabaseRequest(engine="postgres", database="genes", user="genes", labels=LABELS)
        aws.databases.create("genes", request, password="a-password-of-a-test")
        backup = aws.databases.back_up("genes")
        aws.databases.restore("genes", backup.id)
        assert [one.name for one in aws.databases.list_all(LABELS)] == ["genes"]
        aws.databases.delete("genes")
        assert aws.databases.backups("genes") == []

    def test_a_type_with_an_unknown_price_is_refused(self, aws: AwsCloud) -> None:
        request = DatabaseRequest(engine="postgres", database="genes", user="genes", type="db.x9.huge")
        with pytest.raises(BadRequest, match="is unknown"):
            aws.databases.create("dear", request, password="a-password-of-a-test")
        assert aws.databases.list_all() == []
