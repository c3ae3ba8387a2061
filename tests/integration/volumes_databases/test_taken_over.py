"""A process that was suspended while it created a volume must not delete the volume of its successor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.resources import Volume
from outlast.errors import StoreTaken
from outlast.records.resources import ResourceRecord, ResourceRecords
from outlast.store.lease import host_name
from outlast.volumes import lifecycle
from outlast.workspace import open_workspace


@pytest.fixture
def records(tmp_path: Path) -> ResourceRecords:
    return ResourceRecords(open_workspace(str(tmp_path / "workspace")), "volume")


class Sleepy:
    """A local cloud: another process takes the creation over during ours, and then ours is interrupted."""

    name = "local"

    def __init__(self, real: LocalCloud, records: ResourceRecords) -> None:
        self.real = real
        self.records = records

    @property
    def volumes(self) -> Any:
        return self

    def create(self, there: str, **request: Any) -> Volume:
        self.real.volumes.create(there, **request)
        found = self.records.get("demos")
        taken = msgspec.structs.replace(found, phase="ready", by="elsewhere:7")
        self.records.bucket.put("volumes/demos.json", msgspec.json.encode(taken))
        raise KeyboardInterrupt


def test_a_volume_that_another_process_finished_is_not_rolled_back(tmp_path: Path, records: ResourceRecords) -> None:
    cloud = LocalCloud(str(tmp_path / "cloud"))
    sleepy: Any = Sleepy(cloud, records)
    with pytest.raises(KeyboardInterrupt):
        lifecycle.create(sleepy, records, "demos", size_gb=1, who="ann")
    record = records.get("demos")
    assert (record.phase, cloud.volumes.find(record.there).size_gb) == ("ready", 1)
    cloud.volumes.delete(record.there)


@pytest.mark.parametrize("other", [{"size_gb": 2.0}, {"engine": "mysql"}, {"zone": "local1-b"}])
def test_an_interrupted_creation_with_other_options_is_not_taken_over(
    records: ResourceRecords, other: dict[str, Any]
) -> None:
    request = ResourceRecord(kind="volume", name="demos", id="1", cloud="local", there="demos-1", size_gb=1.0)
    records.create(request)
    # Owned by a process that has died.
    begun = msgspec.structs.replace(records.get("demos"), by=f"{host_name()}:4194303")
    records.bucket.put("volumes/demos.json", msgspec.json.encode(begun))
    with pytest.raises(StoreTaken, match="with other options and is unfinished"):
        records.create(msgspec.structs.replace(request, **other))
    assert records.create(request).by != begun.by, "the same again takes it over"
