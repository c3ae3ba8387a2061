"""A build that is killed before or after any effect: the reaper finds the leftovers, and the next build succeeds."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.clouds.cloud import Image
from outlast.clouds.local.cloud import LocalCloud
from outlast.images.build import BuildRequest
from outlast.images.recipe import Recipe, read_recipe
from outlast.records.machines import MachineRecords
from outlast.spec.image import parse_image
from outlast.supervisor.loop import Supervisor
from outlast.supervisor.observe import Observer
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Reap
from outlast.workspace import Workspace, open_workspace
from tests.support.home import Home

NEVER = 10**9
EFFECTS = {"create", "put", "write", "delete", "launch", "stop", "snapshot", "admit", "delete_image"}


class Mortal:
    """A cloud or bucket that calls `point` before and after each effect, where the process may be killed."""

    def __init__(self, inner: Any, point: Callable[[str], None]) -> None:
        self.inner = inner
        self.point = point

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name not in EFFECTS:
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            what = f"{name} {arguments[0]}"
            self.point(f"before {what}")
            answer = found(*arguments, **options)
            self.point(f"after {what}")
            return answer

        return call


class Death:
    """Kills this very process at the point of that number, as a power cut would. Writes down what it passes."""

    def __init__(self, at: int, diary: Path) -> None:
        self.at = at
        self.diary = diary
        self.count = 0

    def __call__(self, label: str) -> None:
        # Who beats and writes logs does so by the clock: those points have no number.
        if any(part in label for part in ("leases/", "build.log", "put machines/", "clock")):
            return
        with self.diary.open("a") as file:
            file.write(f"{label}\n")
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


def recipe_of(home: Home) -> Recipe:
    spec = parse_image({"name": "env", "script": "echo hello > hello.txt"}, source="recipe.toml")
    base = Image(name="base", cloud="local")
    return read_recipe(spec, folder=str(home.project), base=base, source="recipe.toml")


def order(home: Home, workspace: Workspace, cloud: Any) -> BuildRequest:
    return BuildRequest(workspace, cloud, recipe_of(home), who="tester", report=lambda _: None, show=lambda _: None)


def build_and_die(home: Home, where: Path, at: int) -> list[str]:
    """Build in a separate workspace and process, and return the crash points that it passed."""
    diary = where.with_suffix(".diary")
    pid = os.fork()
    if pid == 0:
        try:
            death = Death(at, diary)
            workspace = open_workspace(str(where))
            workspace.bucket = Mortal(workspace.bucket, death)
            order(home, workspace, Mortal(LocalCloud(str(home.root / "cloud")), death)).ensure()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return diary.read_text().splitlines()


def reap(home: Home, workspace: Workspace) -> None:
    """By the supervisor's own eyes and hands: all that is left is found."""
    observer = Observer(workspace, {"local": home.cloud}, monotonic=time.monotonic, read_only=True)
    reaped = [step for step in plan(observer.observe(time.time())) if isinstance(step, Reap)]
    assert {step.machine for step in reaped} == {machine.name for machine in home.machines()}
    applier = Supervisor(workspace, {"local": home.cloud}).applier
    for step in reaped:
        applier.apply(step)
    assert home.machines() == []


# A quarter of the points is enough for every day; the soak dies at all of them.
@pytest.mark.full
@pytest.mark.parametrize("quarter", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2, 3))])
def test_killed_at_any_moment_nothing_is_left_that_the_reaper_does_not_find(
    shop: Home, monkeypatch: pytest.MonkeyPatch, quarter: int
) -> None:
    for name, value in shop.environment.items():
        monkeypatch.setenv(name, value)
    points = build_and_die(shop, shop.root / "whole", NEVER)
    assert [image.name for image in shop.cloud.images()] == ["base", recipe_of(shop).image]
    for effect in ("launch", "stop", "snapshot", "create machines/", "delete image-", "delete machines/"):
        assert any(f"before {effect}" in point for point in points), (effect, points)
    for number, label in list(enumerate(points))[quarter::4]:
        shop.cloud.delete_image(recipe_of(shop).image)
        where = shop.root / f"dead-{number}"
        passed = build_and_die(shop, where, number)
        assert passed[-1].split()[:2] == label.split()[:2], (passed, label)
        workspace = open_workspace(str(where))
        reap(shop, workspace)
        # All or nothing: an image is there if and only if its snapshot was taken.
        taken = any("after snapshot" in point for point in passed)
        assert [image.name for image in shop.cloud.images() if image.name != "base"] == [recipe_of(shop).image] * taken
        # Some of the points are enough to see that the next one gets it done, and tidies up the records.
        if not taken and number % 3 == 0:
            assert order(shop, workspace, shop.cloud).ensure().name == recipe_of(shop).image
            assert shop.machines() == []
            assert list(MachineRecords(workspace).all()) == [], label
