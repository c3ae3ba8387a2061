"""Whoever makes a volume and sleeps for too long is followed by another, whose volume it must leave alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.stores import Volume
from outlast.errors import StoreTaken
from outlast.volumes import care
from outlast.workspace.holdings import Holding, Holdings
from outlast.workspace.lease import computer
from outlast.workspace.workspace import open_workspace


@pytest.fixture
def holdings(tmp_path: Path) -> Holdings:
    return Holdings(open_workspace(str(tmp_path / "workspace")), "volume")


class Sleepy:
    """A local cloud; somebody else takes the making over while we make, and then we are interrupted."""

    name = "local"

    def __init__(self, real: LocalCloud, holdings: Holdings) -> None:
        self.real = real
        self.holdings = holdings

    @property
    def volumes(self) -> Any:
        return self

    def make(self, there: str, **wish: Any) -> Volume:
        self.real.volumes.make(there, **wish)
        found = self.holdings.demand("demos")
        taken = msgspec.structs.replace(found, phase="ready", by="elsewhere:7")
        self.holdings.bucket.put("volumes/demos.json", msgspec.json.encode(taken))
        raise KeyboardInterrupt


def test_a_volume_that_another_has_finished_meanwhile_is_not_taken_back(tmp_path: Path, holdings: Holdings) -> None:
    cloud = LocalCloud(str(tmp_path / "cloud"))
    sleepy: Any = Sleepy(cloud, holdings)
    with pytest.raises(KeyboardInterrupt):
        care.create(sleepy, holdings, "demos", size_gb=1, who="ann")
    holding = holdings.demand("demos")
    assert (holding.phase, cloud.volumes.find(holding.there).size_gb) == ("ready", 1)
    cloud.volumes.delete(holding.there)


@pytest.mark.parametrize("other", [{"size_gb": 2.0}, {"engine": "mysql"}, {"zone": "local1-b"}])
def test_what_was_begun_otherwise_is_not_taken_for_what_is_asked_now(holdings: Holdings, other: dict[str, Any]) -> None:
    wish = Holding(kind="volume", name="demos", id="1", cloud="local", there="demos-1", size_gb=1.0)
    holdings.create(wish)
    # By a process of long ago.
    begun = msgspec.structs.replace(holdings.demand("demos"), by=f"{computer()}:4194303")
    holdings.bucket.put("volumes/demos.json", msgspec.json.encode(begun))
    with pytest.raises(StoreTaken, match="half made"):
        holdings.create(msgspec.structs.replace(wish, **other))
    assert holdings.create(wish).by != begun.by, "the same again takes it over"
