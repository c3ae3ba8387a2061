"""The JSON schema of `outlast.toml`: up to date, complete, and true for every file in the documentation."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.conventions.sources import ROOT

from outlast.errors import SpecError
from outlast.spec.parse import parse

PLACE = ROOT / "src" / "outlast" / "spec" / "outlast.schema.json"
SCHEMA: dict[str, Any] = json.loads(PLACE.read_text(encoding="utf-8"))


def test_the_schema_is_that_of_the_documentation() -> None:
    spec = importlib.util.spec_from_file_location("schema", ROOT / "tools" / "schema.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert PLACE.read_text(encoding="utf-8") == module.rendered(), "run `make schema`"


def examples() -> list[tuple[str, str]]:
    found = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        for number, block in enumerate(
            re.findall(r"^```toml.*?\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
        ):
            found.append((f"{page.name}-{number}", block))
    return found


@pytest.mark.parametrize("block", [pytest.param(block, id=name) for name, block in examples()])
def test_every_file_that_the_parser_accepts_fits_the_schema(block: str) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")
    try:
        table = tomllib.loads(block)
        parse({"command": "true", **table})
    except (SpecError, tomllib.TOMLDecodeError):
        pytest.skip("another kind of file")
    jsonschema.validate(table, SCHEMA)


def test_an_unknown_field_is_marked() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")
    for wrong in ({"limits": {"stesp": 3}}, {"comand": "true"}, {"machine": {"spot": "yes"}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, SCHEMA)


def test_every_field_has_a_description() -> None:
    limits = SCHEMA["properties"]["limits"]["properties"]
    assert limits["idle_gpu"]["type"] == ["string", "number"]
    assert "](" not in json.dumps(SCHEMA), "links are removed"
    assert Path(PLACE).stat().st_size < 60_000
