"""Shell completion of commands, options, runs, zones and machines."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from outlast.images.records import BuildResult, ImageRecords, RecipeRecord
from outlast.records.machines import MachineRecord, MachineRecords
from outlast.records.resources import ResourceRecord, ResourceRecords
from outlast.runs.events import Submitted
from outlast.spec.spec import ImageSpec
from outlast.workspace import open_workspace
from tests.conventions.test_documented import ALL_COMMANDS
from tests.integration.cli.console import OUTLAST, Console


def complete(console: Console, line: str) -> list[str]:
    """Return the completions for the end of the line."""
    variables = {"_OUTLAST_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    answer = console.run(**variables)
    assert answer.returncode == 0
    assert answer.stderr == ""
    return [found.partition(",")[2] for found in answer.stdout.splitlines()]


def test_completes_commands(console: Console) -> None:
    assert set(complete(console, "outlast lo")) == {"local", "logs"}
    assert "run" in complete(console, "outlast ")


def test_completes_commands_of_a_group_and_options(console: Console) -> None:
    assert complete(console, "outlast local s") == ["serial", "serve", "set"]
    assert complete(console, "outlast run --checkpoint-") == ["--checkpoint-every"]


def test_completes_runs(console: Console) -> None:
    workspace = open_workspace(str(console.workspace))
    for run in ("census-1", "census-2", "other-1"):
        workspace.story(run).append_or_raise(Submitted(), nonce="")
    assert complete(console, "outlast show cen") == ["census-1", "census-2"]
    assert "last" in complete(console, "outlast logs ")


def test_completes_zones(console: Console) -> None:
    assert complete(console, "outlast local set local2") == ["local2-a", "local2-b"]


@pytest.mark.full
def test_completes_machines_runs_and_images_in_every_command(console: Console) -> None:
    workspace = open_workspace(str(console.workspace))
    workspace.story("census-1").append_or_raise(Submitted(), nonce="")
    MachineRecords(workspace).create(MachineRecord(name="census-box", id="1a2b3c", cloud="local"))
    spec = ImageSpec(name="census-env")
    records = ImageRecords(workspace)
    records.write_recipe(RecipeRecord(digest="d1", image="census-env-d1", cloud="gcp", base="", spec=spec))
    records.write_result("d1", BuildResult(image="census-env-d1"))
    assert complete(console, "outlast attach cen") == ["census-1", "census-box"]
    assert complete(console, "outlast tunnel cen") == ["census-1", "census-box"]
    assert complete(console, "outlast machine ssh cen") == ["census-box"]
    assert complete(console, "outlast cost cen") == ["census-1"]
    assert complete(console, "outlast machine cp cen")[:2] == ["census-1:", "census-box:"]
    assert complete(console, "outlast sync cen")[:2] == ["census-1:", "census-box:"]
    assert complete(console, "outlast image show cen") == ["census-env", "census-env-d1"]
    assert complete(console, "outlast image rollback cen") == ["census-env"]
    assert complete(console, "outlast run --image cen") == ["census-env", "census-env-d1"]
    assert complete(console, "outlast run --cloud g") == ["gcp"]


def test_completes_sweeps_clusters_volumes_and_databases(console: Console) -> None:
    for kind in ("volume", "database"):
        request = ResourceRecord(name=f"demo-{kind}", kind=kind, id="1a2b3c", cloud="local", there=f"demo-{kind}-1")
        ResourceRecords(open_workspace(str(console.workspace)), kind).create(request)
    assert complete(console, "outlast volume show de") == ["demo-volume"]
    assert complete(console, "outlast volume mount de")[0] == "demo-volume"
    assert complete(console, "outlast db check de") == ["demo-database"]
    assert complete(console, "outlast sweep show la") == ["last"]


# Metavars of things with a recorded name.
NAMED = ("RUN", "MACHINE", "SWEEP", "IMAGE", "FAMILY", "ZONE")


def test_every_recorded_name_is_completed() -> None:
    """The name of a new resource cannot be completed."""
    missing = []
    for command, param in arguments():
        metavar = param.make_metavar(click.Context(ALL_COMMANDS[command])).strip("[].").upper()
        new = command.endswith(" create")
        known = any(word in metavar for word in NAMED) or metavar == "NAME"
        if known and not new and param._custom_shell_complete is None:
            missing.append(f"{command} {metavar}")
    assert not missing


def arguments() -> Iterator[tuple[str, click.Parameter]]:
    for name, command in ALL_COMMANDS.items():
        yield from ((name, param) for param in command.params if isinstance(param, click.Argument))


def test_is_quiet_about_a_command_that_does_not_exist(console: Console) -> None:
    complete(console, "outlast nonsense x")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_prints_a_script_for_each_shell(console: Console, shell: str) -> None:
    script = console.well("completion", shell)
    assert "_OUTLAST_COMPLETE" in script
    assert console.well("completion", SHELL=f"/usr/bin/{shell}") == script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
@pytest.mark.parametrize(
    ("argv", "found"),
    [("logs cen", {"census-1", "census-2"}), ("attach census-b", {"census-box"}), ("sweep show la", {"last"})],
)
def test_bash_itself_completes_names(console: Console, argv: str, found: set[str]) -> None:
    workspace = open_workspace(str(console.workspace))
    for run in ("census-1", "census-2"):
        workspace.story(run).append_or_raise(Submitted(), nonce="")
    MachineRecords(workspace).create(MachineRecord(name="census-box", id="1a2b3c", cloud="local"))
    # Call the function that `complete -F` registered, like readline.
    ask = (
        "source <(outlast completion bash); "
        "function=$(complete -p outlast | sed 's/.*-F \\([^ ]*\\).*/\\1/'); "
        f"COMP_WORDS=(outlast {argv}); COMP_CWORD={argv.count(' ') + 1}; $function outlast; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    variables = {**console.variables, "PATH": f"{Path(OUTLAST).parent}:{console.variables['PATH']}"}
    answer = subprocess.run(["bash", "-c", ask], env=variables, capture_output=True, text=True, check=True)
    assert set(answer.stdout.split()) == found
    assert answer.stderr == ""


def test_zsh_and_fish_get_their_own_formats(console: Console) -> None:
    open_workspace(str(console.workspace)).story("census-1").append_or_raise(Submitted(), nonce="")
    zsh = {"_OUTLAST_COMPLETE": "zsh_complete", "COMP_WORDS": "outlast logs cen", "COMP_CWORD": "2"}
    assert console.run(**zsh).stdout.split() == ["plain", "census-1", "_"]
    fish = {"_OUTLAST_COMPLETE": "fish_complete", "COMP_WORDS": "outlast logs cen", "COMP_CWORD": "cen"}
    assert "census-1" in console.run(**fish).stdout


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_itself_completes_with_the_script(console: Console) -> None:
    ask = 'COMP_WORDS=(outlast lo); COMP_CWORD=1; _outlast_completion outlast; printf "%s\\n" "${COMPREPLY[@]}"'
    variables = {**console.variables, "PATH": f"{Path(OUTLAST).parent}:{console.variables['PATH']}"}
    answer = subprocess.run(
        ["bash", "-c", f"source <(outlast completion bash); {ask}"],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(answer.stdout.split()) == {"local", "logs"}
    assert answer.stderr == ""


def test_prints_install_instructions_on_a_terminal(console: Console) -> None:
    """Only on a terminal: a start-up file evaluates the same command in every new shell."""
    ours, theirs = pty.openpty()
    try:
        answer = subprocess.run(
            [OUTLAST, "completion", "fish"], env=console.variables, stdout=theirs, stderr=subprocess.PIPE, check=True
        )
    finally:
        os.close(theirs)
        os.close(ours)
    assert b"completions/outlast.fish" in answer.stderr
    assert console.run("completion", "fish").stderr == ""


@pytest.mark.parametrize("shell", ["", "/bin/tcsh"])
def test_an_unknown_shell_is_a_usage_error(console: Console, shell: str) -> None:
    answer = console.run("completion", SHELL=shell)
    assert answer.returncode == 2
    assert "bash|zsh|fish" in answer.stderr
