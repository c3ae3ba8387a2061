"""`outlast image`: its error messages, and the commands for existing images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outlast.cli.shared.project import Project, spec_of
from outlast.clouds.cloud import Boot, Requirements
from outlast.submit.run import submit
from tests.support.home import Home


def make(home: Home, name: str, family: str) -> None:
    """An image, as a machine set up by hand gives one."""
    offer = home.cloud.offers(Requirements(spot=False))[0]
    home.cloud.launch(offer, "donor", boot=Boot(), labels={})
    home.cloud.stop("donor")
    home.cloud.snapshot("donor", name, family=family)
    home.cloud.delete("donor")


def current(home: Home, family: str) -> str:
    rows = json.loads(home.outlast("image", "list", "--json", "--family", family).stdout)
    return next((row["image"] for row in rows if row["current"]), "")


@pytest.fixture
def family(home: Home) -> Home:
    for number in (1, 2, 3):
        make(home, f"env-{number}", "env")
    return home


@pytest.mark.parametrize(
    ("recipe", "complaints"),
    [
        ("", ["found no `outlast.toml` with `[image]`", "docs/images.md"]),
        ('command = "true"', ["outlast.toml has no `[image]`"]),
        ("[image]\n", ["the recipe is empty"]),
        ('[image]\nscript = "true"\nbase = "bsae"', ["[image] base", "`bsae`", "base"]),
        ('[image]\nrequirements = "nothing.txt"', ["[image] requirements: `nothing.txt` cannot be read"]),
        ('[image]\nscirpt = "true"', ["did you mean `script`?"]),
        ('[image]\nscript = "if"', ["script, line 2: syntax error"]),
        ("image = 3", ["image"]),
        ('[image]\nscript = "true"\ncpus = 4000', ["no machine type of local matches"]),
    ],
)
def test_problems_of_a_recipe_are_reported_before_any_launch(shop: Home, recipe: str, complaints: list[str]) -> None:
    if recipe:
        shop.write("outlast.toml", recipe)
    answer = shop.outlast("image", "build")
    assert answer.returncode in (2, 5), answer.stderr
    assert "Traceback" not in answer.stderr
    for complaint in complaints:
        assert complaint in answer.stderr
    assert shop.machines() == []
    assert "no machine" in shop.outlast("reap", "--dry-run").stdout


def test_packages_are_refused_where_a_machine_shares_the_computers_software(shop: Home) -> None:
    shop.write("outlast.toml", '[image]\npackages = ["git"]\nfiles = { "/opt/x" = "outlast.toml" }')
    answer = shop.outlast("image", "build", OUTLAST_LOCAL_MODE="plain")
    assert answer.returncode == 2
    assert "[image] packages: machines of mode `plain` share the software of this computer" in answer.stderr
    assert "[image] files: `/opt/x`" in answer.stderr
    assert "mode `root` or `userns`" in answer.stderr
    assert shop.machines() == []


def test_a_recipe_may_be_in_a_separate_file(shop: Home) -> None:
    shop.write("recipes/env.toml", 'name = "env"\nscript = "true"')
    answer = shop.outlast("image", "build", "recipes/env.toml", "--dry-run", "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["family"] == "env"
    assert "would be built" in answer.stderr
    missing = shop.outlast("image", "build", "recipes/nothing.toml")
    assert missing.returncode == 2
    assert "no such file: `recipes/nothing.toml`" in missing.stderr


def test_a_recipe_is_found_by_its_name(shop: Home) -> None:
    shop.write("outlast.toml", '[image]\nname = "env"\nscript = "true"')
    assert shop.outlast("image", "build", "env", "--dry-run").returncode == 0
    answer = shop.outlast("image", "build", "enf")
    assert answer.returncode == 2
    assert "is called `env`" in answer.stderr


def test_a_run_on_a_family_without_members_is_refused(home: Home) -> None:
    answer = home.outlast("run", "--image", "nothing", "--", "true")
    assert answer.returncode == 2
    assert "nothing" in answer.stderr
    assert home.machines() == []


def test_a_run_may_name_a_family(family: Home) -> None:
    answer = family.outlast("run", "-q", "--no-pull", "--image", "env", "--", "echo", "hello")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "hello\n"


def test_a_run_whose_image_was_deleted_meanwhile_fails_with_the_reason(family: Home) -> None:
    assert family.outlast("run", "--image", "env-1", "--", "true").returncode == 0
    project = Project({}, folder=str(family.project), source="command line")
    spec = spec_of(project, {"name": "late", "machine": {"image": "env-1"}}, ["true"])
    run = submit(family.workspace, {"local": family.cloud}, spec, environment=family.environment).run
    family.cloud.delete_image("env-1")
    family.supervise()
    state = family.state(run)
    assert state.ending == "failed"
    assert "env-1" in state.why
    assert family.machines() == []


def test_images_are_listed_by_family_newest_first(family: Home) -> None:
    rows = json.loads(family.outlast("image", "list", "--json", "--family", "env").stdout)
    assert [row["image"] for row in rows] == ["env-3", "env-2", "env-1"]
    assert [row["current"] for row in rows] == [True, False, False]
    assert "env-3  env     current" in family.outlast("image", "list").stdout


def test_a_family_goes_back_and_forth(family: Home) -> None:
    assert family.outlast("image", "rollback", "env").stdout == "env is now env-2\n"
    assert current(family, "env") == "env-2"
    assert family.outlast("image", "promote", "env-1").stdout == "env is now env-1\n"
    assert current(family, "env") == "env-1"
    refused = family.outlast("image", "rollback", "env")
    assert refused.returncode == 5
    assert "is the oldest image" in refused.stderr
    assert family.outlast("image", "promote", "env-3").returncode == 0
    assert current(family, "env") == "env-3"


def test_deleting_the_current_image_asks_and_a_live_run_prevents_it(family: Home) -> None:
    asked = family.outlast("image", "delete", "env-3")
    assert asked.returncode == 2
    assert "`env` becomes `env-2`" in asked.stderr
    refused = family.outlast("image", "delete", "env", "--yes")
    assert refused.returncode == 2
    assert "is a family" in refused.stderr
    family.outlast("submit", "--name", "long", "--image", "env-3", "--", "sleep", "100")
    needed = family.outlast("image", "delete", "env-3", "--yes")
    assert needed.returncode == 2
    assert "is needed by run long-1" in needed.stderr
    assert family.outlast("image", "delete", "env-1", "--yes").returncode == 0
    assert [image.name for image in family.cloud.images()] == ["base", "env-2", "env-3"]


def test_prune_lists_the_images_and_deletes_them(family: Home) -> None:
    would = family.outlast("image", "prune", "--keep", "1", "--dry-run")
    assert would.stdout.count("delete env-") == 2
    assert len(list(family.cloud.images())) == 4
    assert family.outlast("image", "prune", "--keep", "1").returncode == 2
    assert family.outlast("image", "prune", "--keep", "1", "--yes").returncode == 0
    assert [image.name for image in family.cloud.images()] == ["base", "env-3"]
    assert family.outlast("image", "prune", "--keep", "0").returncode == 2


def test_an_image_can_be_shared(family: Home) -> None:
    answer = family.outlast("image", "share", "env-3", "team-b", "team-c")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "env-3 is shared with team-b, team-c\n"


@pytest.mark.parametrize("command", [("show",), ("promote",), ("rollback",), ("delete", "--yes"), ("share",)])
def test_a_missing_image_is_reported(home: Home, command: tuple[str, ...]) -> None:
    answer = home.outlast("image", command[0], "nothing", *command[1:], *(["me"] if command[0] == "share" else []))
    assert answer.returncode in (2, 5)
    assert "nothing" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_an_image_without_a_recipe_is_shown_as_manual(family: Home, tmp_path: Path) -> None:
    shown = family.outlast("image", "show", "env")
    assert "env-3  current of env" in shown.stdout
    assert "created manually" in shown.stdout
    log = family.outlast("image", "show", "env", "--log")
    assert log.returncode == 2
    assert "no log" in log.stderr
