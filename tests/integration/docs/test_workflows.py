"""The workflows of the documentation are valid YAML, and the outlast commands in them exist."""

from __future__ import annotations

import shlex

import click
import yaml

from outlast.cli.app import app
from tests.conventions.sources import ROOT
from tests.integration.docs.blocks import blocks

WORKFLOWS = [block for block in blocks(ROOT / "docs" / "automation.md") if block.language == "yaml"]


def test_every_workflow_has_jobs_whose_steps_run_or_use_something() -> None:
    assert len(WORKFLOWS) == 2
    for block in WORKFLOWS:
        # YAML 1.1 reads the key `on` as true.
        found = yaml.safe_load(block.text)
        assert set(found) >= {"name", True, "jobs"}, block.where
        for job in found["jobs"].values():
            assert job["runs-on"]
            assert all(("run" in step) != ("uses" in step) for step in job["steps"]), block.where


def test_the_commands_of_the_workflows_exist_with_their_options() -> None:
    lines = [
        step["run"]
        for block in WORKFLOWS
        for job in yaml.safe_load(block.text)["jobs"].values()
        for step in job["steps"]
        if step.get("run", "").startswith("outlast ")
    ]
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line.partition(">")[0])[1:]
        name, argv = words[0], words[1:]
        context = click.Context(app)
        command = app.get_command(context, name)
        assert command is not None, line
        own = argv[: argv.index("--")] if "--" in argv else argv
        command.make_context(name, list(own), resilient_parsing=False)
