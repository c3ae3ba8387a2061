"""Filestore and Cloud SQL through the emulator; every request is validated against the description of the API."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from outlast.clouds.gcp.cloud import GcpCloud
from outlast.clouds.resources import Databases, Volumes
from outlast.errors import BadRequest
from tests.integration.volumes_databases.suites import LABELS, DatabaseSuite, VolumeSuite
from tests.support.gcp import Rehearsal
from tests.support.home import OUTLAST
from tests.support.team import needs_engine


class TestFilestore(VolumeSuite):
    least_gb = 1100.0

    @pytest.fixture
    def volumes(self, gcp: GcpCloud) -> Volumes:
        return gcp.volumes

    def test_the_smallest_size_that_is_sold_is_billed(self, gcp: GcpCloud) -> None:
        made = gcp.volumes.create("small", size_gb=10.0, zone="europe-west1-b", labels=LABELS)
        assert made.size_gb == pytest.approx(1099.5, abs=0.1)
        assert made.usd_per_month == pytest.approx(163.84)
        assert (made.zone, made.zones) == ("europe-west1-b", ("europe-west1",))
        with pytest.raises(BadRequest, match="cannot shrink"):
            gcp.volumes.resize(gcp.volumes.resize("small", 3000.0).name, 1100.0)
        gcp.volumes.delete("small")


class TestCloudSql(DatabaseSuite):
    @pytest.fixture
    def databases(self, gcp: GcpCloud) -> Databases:
        return gcp.databases

    def test_a_type_with_an_unknown_price_is_refused(self, gcp: GcpCloud) -> None:
        from outlast.clouds.resources import DatabaseRequest

        request = DatabaseRequest(engine="postgres", database="genes", user="genes", type="db-perf-optimized-N-2")
        with pytest.raises(BadRequest, match="is unknown"):
            gcp.databases.create("dear", request, password="a-password-of-a-test")
        assert gcp.databases.list_all() == []


@pytest.fixture
def shell(rehearsal: Rehearsal, tmp_path: Path) -> dict[str, str]:
    own = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OUTLAST_WORKSPACE": str(tmp_path / "ws")}
    return {**own, "OUTLAST_LOCAL_CLOUD": str(tmp_path / "cloud"), **rehearsal.variables}


def outlast(shell: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([OUTLAST, *argv], env=shell, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.full
def test_a_cloud_sql_database_by_the_command_line(shell: dict[str, str], gcp: GcpCloud) -> None:
    needs_engine("postgres")
    made = outlast(shell, "db", "create", "genomes", "--cloud", "gcp")
    assert made.returncode == 0, made.stderr
    assert "$9.37 a month" in made.stdout
    checked = outlast(shell, "db", "check", "genomes", "--json")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert [step["ok"] for step in json.loads(checked.stdout)] == [True] * 6
    assert outlast(shell, "db", "allow", "genomes", "ann=127.0.0.9").returncode == 0
    assert outlast(shell, "db", "check", "genomes", "--from", "127.0.0.9").returncode == 0
    assert outlast(shell, "db", "revoke", "genomes", "ann").returncode == 0
    assert outlast(shell, "db", "check", "genomes", "--from", "127.0.0.9").returncode == 24
    assert outlast(shell, "db", "delete", "genomes", "--yes").returncode == 0
    assert gcp.databases.list_all() == []


def test_a_filestore_volume_by_the_command_line(shell: dict[str, str], gcp: GcpCloud) -> None:
    made = outlast(shell, "volume", "create", "demos", "--size", "1TB", "--cloud", "gcp", "--zone", "us-central1-b")
    assert made.returncode == 0, made.stderr
    assert "$163.84 a month" in made.stdout
    listed = json.loads(outlast(shell, "volume", "list", "--json").stdout)
    assert (listed[0]["name"], listed[0]["state"], listed[0]["zones"]) == ("demos", "ready", ["us-central1"])
    again = outlast(shell, "volume", "create", "demos", "--size", "1TB", "--cloud", "gcp")
    assert again.returncode == 21
    assert len(gcp.volumes.list_all()) == 1, "the second one was refused before it cost"
    assert outlast(shell, "volume", "delete", "demos", "--yes").returncode == 0
    assert gcp.volumes.list_all() == []
