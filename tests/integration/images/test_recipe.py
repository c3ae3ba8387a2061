"""Recipes: all problems are reported at once, and the digest changes exactly with the content of the image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.clouds.cloud import Image
from outlast.errors import SpecError
from outlast.images.recipe import Recipe, read_recipe, tree_digest
from outlast.spec.image import parse_image
from outlast.spec.parse import parse

BASE = Image(name="base", cloud="local", created_at=1.0)


def problems(table: dict[str, Any]) -> list[str]:
    with pytest.raises(SpecError) as raised:
        parse_image(table, source="recipe.toml")
    return raised.value.problems


def recipe(folder: Path, base: Image = BASE, **fields: Any) -> Recipe:
    table = {"name": "env", "script": "true", **fields}
    return read_recipe(parse_image(table, source="recipe.toml"), folder=str(folder), base=base, source="recipe.toml")


def test_a_complete_recipe_is_read() -> None:
    image = parse_image(
        {
            "image": {
                "name": "census-env",
                "base": "debian-12",
                "packages": ["git", "cmake=3.25.1-1"],
                "pip": "numpy",
                "requirements": ["requirements.txt"],
                "script": "make\nmake install",
                "files": {"/opt/model": "model", "~/data": "data"},
                "warm": ["python prepare.py"],
                "test": "python -c 'import numpy'",
                "cpus": "4+",
                "disk": "50GB",
                "timeout": "30m",
            }
        },
        source="recipe.toml",
    )
    assert image.packages == ("git", "cmake=3.25.1-1")
    assert image.files == {"/opt/model": "model", "data": "data"}
    assert image.machine.cpus.low == 4
    assert not image.machine.spot
    assert image.timeout_s == 1800


def test_the_recipe_of_a_project_has_its_name_and_its_cloud() -> None:
    spec = parse({"name": "census", "command": "true", "machine": {"cloud": "gcp"}, "image": {"pip": ["numpy"]}})
    assert spec.image is not None
    assert (spec.image.name, spec.image.machine.cloud) == ("census", "gcp")


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"name": "env"}, "the recipe is empty"),
        ({"name": "env", "packages": []}, "the recipe is empty"),
        ({"script": "true"}, "name: missing"),
        ({"name": "Env", "script": "true"}, "lower-case"),
        ({"name": "env", "pakages": ["git"]}, "did you mean `packages`?"),
        ({"name": "env", "packages": ["-o Evil"]}, "invalid apt package"),
        ({"name": "env", "packages": ["git; rm"]}, "invalid apt package"),
        ({"name": "env", "pip": ["--index-url x"]}, "put options of pip into a file"),
        ({"name": "env", "script": "true", "files": {"../up": "a"}}, "expected a path such as"),
        ({"name": "env", "script": "true", "files": {"/": "a"}}, "expected a path such as"),
        ({"name": "env", "script": "true", "timeout": "soon"}, "invalid duration"),
        ({"name": "env", "script": "true", "cloud": "moon"}, "unknown cloud"),
        ({"image": {"script": "true", "name": "env"}, "other": 1}, "other: unknown field"),
    ],
)
def test_invalid_fields_are_named(table: dict[str, Any], complaint: str) -> None:
    assert any(complaint in problem for problem in problems(table)), problems(table)


def test_all_problems_are_named_at_once() -> None:
    assert len(problems({"pakages": ["git"], "timeout": "soon", "cpus": "many"})) >= 4


def test_all_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as raised:
        recipe(tmp_path, script="setup.sh", requirements=["a.txt", "b.txt"], lock="c.lock", files={"data": "raw"})
    text = "\n".join(raised.value.problems)
    for name in ("setup.sh", "a.txt", "b.txt", "c.lock", "raw"):
        assert f"`{name}` cannot be read: No such file" in text
    assert str(tmp_path) in raised.value.hint


def test_a_script_that_bash_cannot_read_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_text("true\nif true; then\n  echo\n")
    with pytest.raises(SpecError) as raised:
        recipe(tmp_path, script="setup.sh")
    assert "script: setup.sh, line 4: syntax error" in raised.value.problems[0]


def test_the_same_recipe_has_the_same_digest_wherever_it_is(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "setup.sh").write_text("echo hello")
    first, second = (recipe(tmp_path / name, script="setup.sh") for name in ("a", "b"))
    assert first.digest == second.digest
    assert first.image == f"env-{first.digest[:12]}"


@pytest.mark.parametrize(
    "change",
    [
        {"script": "false"},
        {"packages": ["git"]},
        {"pip": ["numpy"]},
        {"warm": ["true"]},
        {"test": ["true"]},
        {"keep": [".git"]},
        {"name": "other"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_recipe_is_another_image(tmp_path: Path, change: dict[str, Any]) -> None:
    assert recipe(tmp_path).digest != recipe(tmp_path, **change).digest


def test_the_builders_type_does_not_matter(tmp_path: Path) -> None:
    assert recipe(tmp_path).digest == recipe(tmp_path, cpus="8+", disk="90GB", timeout="3h", spot=True).digest


def test_another_base_is_another_image(tmp_path: Path) -> None:
    newer = msgspec.structs.replace(BASE, created_at=2.0)
    assert recipe(tmp_path).digest != recipe(tmp_path, newer).digest


def test_the_contents_of_files_matter(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy==1")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/one").write_text("1")
    fields: dict[str, Any] = {"requirements": "requirements.txt", "files": {"data": "data"}}
    seen = {recipe(tmp_path, **fields).digest}
    (tmp_path / "requirements.txt").write_text("numpy==2")
    seen.add(recipe(tmp_path, **fields).digest)
    (tmp_path / "data/one").write_text("2")
    seen.add(recipe(tmp_path, **fields).digest)
    (tmp_path / "data/one").chmod(0o755)
    seen.add(recipe(tmp_path, **fields).digest)
    (tmp_path / "data/one").rename(tmp_path / "data/two")
    seen.add(recipe(tmp_path, **fields).digest)
    assert len(seen) == 5


def test_a_link_is_a_link_and_its_target_counts(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/link").symlink_to("nowhere")
    first = tree_digest(str(tmp_path / "a"))
    (tmp_path / "a/link").unlink()
    (tmp_path / "a/link").symlink_to("elsewhere")
    assert tree_digest(str(tmp_path / "a")) != first
