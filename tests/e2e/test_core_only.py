"""Every command in an installation without extras: it works, or names the extra that it needs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import click
import pytest

from outlast.cli.app import all_commands
from outlast.extras import extras_present, install_command
from tests.support.core_only import core_only, environment

# Runs each argument list in a copy of one process, as importing the command line takes longer than most commands.
DRIVER = """
import json, os, sys, tempfile, traceback
from outlast.cli.app import call
answers = []
for argv in json.load(sys.stdin):
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        code = 255
        try:
            code = call(argv)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = []
    for file in (out, err):
        file.seek(0)
        texts.append(file.read().decode())
    answers.append([code, *texts])
json.dump(answers, sys.stdout)
"""
# Commands that serve until a signal ends them, or take longer than all others together.
ENDLESS = {"demo", "local serve"}
ENDING = {
    "supervise": ["--until-idle"],
    "run": ["-q", "--", "true"],
    "drill": ["--help"],
    "machine keep": ["--help"],
    "machine delete": ["thing", "--yes"],
}
WORK = {"init", "doctor", "run", "ps", "machine create", "machine list", "volume create", "prices", "cost", "reap"}

# The extra that each command line names.
NAMED = [
    (["prices", "--cloud", "aws"], "aws"),
    (["prices", "--cloud", "gcp"], "gcp"),
    (["prices"], "aws"),
    (["run", "--cloud", "aws", "--", "true"], "aws"),
    (["submit", "--cloud", "gcp", "--", "true"], "gcp"),
    (["machine", "create", "box", "--cloud", "aws"], "aws"),
    (["volume", "create", "v", "--size", "10GB", "--cloud", "aws"], "aws"),
    (["db", "create", "d", "--cloud", "gcp"], "gcp"),
    (["setup", "aws"], "aws"),
    (["setup", "gcp"], "gcp"),
    (["sweep", "start", "-p", "x=1,2", "--goal", "min:loss", "--", "true"], "sweep"),
    (["ui"], "ui"),
    (["init", "--from", "cluster.yaml"], "yaml"),
    (["cluster", "up", "cluster.yaml"], "yaml"),
]


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return core_only(tmp_path_factory.mktemp("core") / "env")


def calls(core: Path, root: Path, argvs: list[list[str]]) -> list[tuple[int, str, str]]:
    project = root / "project"
    project.mkdir(exist_ok=True)
    (project / "cluster.yaml").write_text("cluster_name: c\nprovider: {type: aws, region: us-east-1}\n")
    answer = subprocess.run(
        [core.parent / "python", "-c", DRIVER],
        input=json.dumps(argvs),
        cwd=project,
        env=environment(root),
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return [(code, out, err) for code, out, err in json.loads(answer.stdout)]


def arguments(name: str, command: click.Command) -> list[str]:
    """Return a command line with a value for each required parameter."""
    if name in ENDING:
        return [*name.split(), *ENDING[name]]
    argv = name.split()
    for param in command.params:
        if isinstance(param, click.Option) and param.required:
            argv += [param.opts[0], "10GB" if "size" in param.opts[0] else "thing"]
    return argv + ["thing" for param in command.params if isinstance(param, click.Argument) and param.required]


@pytest.mark.timeout(400)
@pytest.mark.full
def test_no_command_ends_with_a_traceback(core: Path, tmp_path: Path) -> None:
    leaves = [(name, command) for name, command in all_commands() if not isinstance(command, click.Group)]
    argvs = [arguments(name, command) for name, command in leaves if name not in ENDLESS]
    argvs += [[*name.split(), "--help"] for name, _ in leaves]
    for argv, (code, out, err) in zip(argvs, calls(core, tmp_path, argvs), strict=True):
        assert code == 0 or (" ".join(argv[:2]) not in WORK and argv[0] not in WORK), (argv, err)
        assert "Traceback" not in out + err, (argv, err)
        assert 0 <= code < 100, (argv, err)


def test_a_command_that_needs_an_extra_names_it(core: Path, tmp_path: Path) -> None:
    answers = calls(core, tmp_path, [argv for argv, _ in NAMED])
    for (argv, extra), (code, _, err) in zip(NAMED, answers, strict=True):
        assert f"pip install 'outlast[{extra}]'" in err, (argv, code, err)


def test_prices_of_the_other_clouds_are_listed(core: Path, tmp_path: Path) -> None:
    ((code, out, err),) = calls(core, tmp_path, [["prices"]])
    assert code == 0, err
    assert "local-1" in out


@pytest.mark.parametrize(
    ("files", "present", "command"),
    [
        (["bin", "pyvenv.cfg"], ["sweep"], "pip install 'outlast[aws]'"),
        (["bin", "pyvenv.cfg", "pipx_metadata.json"], [], "pipx install --force 'outlast[aws]'"),
        (["bin", "pyvenv.cfg", "uv-receipt.toml"], [], "uv tool install 'outlast[aws]'"),
        (["bin", "uv-receipt.toml"], ["sweep", "aws"], "uv tool install 'outlast[aws,sweep]'"),
    ],
)
def test_the_command_fits_the_installation(files: list[str], present: list[str], command: str) -> None:
    assert install_command("outlast[aws]", present=present, files=files) == command


def test_extras_are_present_if_all_of_their_packages_are() -> None:
    lines = ["click>=8.2", "boto3>=1.40; extra == 'aws'", 'uv>=0.9; extra == "aws"', "optuna>=5; extra == 'sweep'"]
    assert extras_present(lines, {"optuna", "boto3"}) == ["sweep"]
    assert extras_present(lines, {"optuna", "boto3", "uv"}) == ["aws", "sweep"]


def test_an_installation_by_uv_tool_is_recognized(core: Path, tmp_path: Path) -> None:
    receipt = core.parent.parent / "uv-receipt.toml"
    receipt.write_text("")
    try:
        ((_, _, err),) = calls(core, tmp_path, [["prices", "--cloud", "aws"]])
    finally:
        os.unlink(receipt)
    assert "uv tool install 'outlast[aws]'" in err
