"""The first day on AWS: bare machines behind the bridge, and a workspace in S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.aws.home import AwsHome
from tests.support.aws import run_bridge
from tests.support.bare import BareSuite, Bed, bare_root

pytestmark = pytest.mark.full


class TestBareMachines(BareSuite):
    @pytest.fixture
    def bed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
        bare_root(tmp_path)
        (folder := tmp_path / "aws").mkdir()
        with run_bridge(str(folder), mode="root") as bridge:
            for name, value in bridge.variables.items():
                monkeypatch.setenv(name, value)
            home = AwsHome(tmp_path / "user", bridge)

            def boot_from(root: str, names: bool) -> None:
                bridge.send("base", {"base": root, "names": names})

            def allow_gpus() -> None:
                bridge.conditions(gpu_quota=None)

            yield Bed(home, cloud=("aws",), local=bridge.local, boot_from=boot_from, allow_gpus=allow_gpus)
            home.clean()
