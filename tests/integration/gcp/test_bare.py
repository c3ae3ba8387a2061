"""The first day on Google Cloud: bare machines behind the emulator, and a workspace in its storage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.clouds.local.cloud import LocalCloud
from outlast_gcp_emulator.conditions import REAL
from tests.integration.emulator.discovery import Watching
from tests.support.bare import BareSuite, Bed, bare_root
from tests.support.gcp import Rehearsal
from tests.support.home import Home

pytestmark = pytest.mark.full


class TestBareMachines(BareSuite):
    @pytest.fixture
    def bed(self, tmp_path: Path, watching: Watching, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
        local = LocalCloud(str(tmp_path / "cloud"), mode="root", base=bare_root(tmp_path))
        rehearsal = Rehearsal(tmp_path, watching, local)
        for name, value in rehearsal.variables.items():
            monkeypatch.setenv(name, value)
        rehearsal.prepare()
        rehearsal.cloud().client.call("storage", "POST", "b", query={"project": "p"}, body={"name": "bare-box"})
        home = Home(tmp_path / "user")
        home.environment |= {**rehearsal.variables, "OUTLAST_WORKSPACE": "gs://bare-box/ws"}

        def boot_from(root: str, names: bool) -> None:
            local.base, local.base_names = root, names

        def allow_gpus() -> None:
            rehearsal.endpoint.surroundings.now = replace(REAL, quotas={})

        cloud = ("gcp", "--zone", "us-central1-a")
        yield Bed(home, cloud=cloud, local=local, boot_from=boot_from, allow_gpus=allow_gpus)
        home.clean()
        rehearsal.close()

    def test_an_image_without_python_is_explained_by_its_first_machine(self, bed: Bed) -> None:
        bed.boot(names=False, root=bare_root(bed.home.root, python=False))
        run = bed.home.outlast("submit", "--cloud", "gcp", "--zone", "us-central1-a", "--", "true").stdout.strip()

        def explained() -> bool:
            serials = [bed.local.serial(machine.name) for machine in bed.local.machines()]
            shown = bed.home.outlast("show", run).stdout
            return any("uv could not download Python" in text for text in [*serials, shown])

        bed.home.until(explained, "the reason on the console", within_s=600.0)
        bed.home.outlast("cancel", run)
