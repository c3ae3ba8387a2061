"""The end of a boot script: the program runs as a systemd unit where there is systemd, else directly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.kit.boot_script import program_script

HEAD = 'log() { echo "outlast: $*"; }\nshutdown() { echo "shutdown $*"; }\n'
# Accepts what systemd accepts, writes the unit to a file, and starts the program with the given variables alone.
FAKE = """#!{python} -P
import json, os, subprocess, sys
argv, properties, variables, unit = sys.argv[1:], [], {{}}, ""
while argv[0].startswith("-"):
    option = argv.pop(0)
    if option == "-p":
        properties.append(argv.pop(0))
    elif option.startswith("--setenv="):
        name, _, value = option.removeprefix("--setenv=").partition("=")
        variables[name] = value
    elif option.startswith("--unit="):
        unit = option.removeprefix("--unit=")
    elif option not in ("--quiet", "--wait", "--collect"):
        sys.exit("unknown option " + option)
lines = ["[Unit]", *(one for one in properties if one.startswith("After="))]
lines += ["[Service]", *(one for one in properties if not one.startswith("After=")), "ExecStart=/bin/true"]
open(os.path.join({folder!r}, (unit or "trial") + ".service"), "w").write("\\n".join(lines) + "\\n")
sys.exit({refuses} or subprocess.run(argv, env=variables or None).returncode)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "probe.py").write_text(
        "import json, os, sys\nprint(json.dumps(dict(os.environ)))\nsys.exit(int(os.environ['CODE']))\n"
    )
    return tmp_path


def put_systemd(folder: Path, *, refuses: int = 0) -> None:
    program = folder / "bin" / "systemd-run"
    program.parent.mkdir()
    program.write_text(FAKE.format(python=sys.executable, folder=str(folder), refuses=refuses))
    program.chmod(0o755)


def boot(folder: Path, **variables: str) -> list[str]:
    """Run the end of the script; return its output."""
    path = f"{folder}/bin:/usr/bin:/bin" if (folder / "bin").exists() else f"{folder}/empty"
    script = HEAD + f"python={sys.executable}\n" + program_script("agent", "probe").replace(" -P ", " ")
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-c", script],
        env={"PATH": path, "PYTHONPATH": str(folder), "CODE": "7", "ODD": "two words\nand $HOME", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_program_is_a_unit_that_has_the_variables_of_the_script(folder: Path) -> None:
    put_systemd(folder)
    _, variables, end, off = boot(folder)
    assert json.loads(variables)["ODD"] == "two words\nand $HOME"
    assert end == "outlast: the agent ended with 7; switching off"
    assert off == "shutdown -h now"
    unit = (folder / "outlast-agent.service").read_text()
    assert "network-online.target" in unit
    assert "docker.service" in unit
    assert "KillMode=mixed" in unit


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_accepts_every_property_of_the_unit(folder: Path) -> None:
    put_systemd(folder)
    boot(folder)
    path = folder / "outlast-agent.service"
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", path],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if "outlast-agent.service" in line]
    assert not complaints
    # The check is one: systemd does report a property that it does not know.
    path.write_text(path.read_text().replace("KillMode=mixed", "KillMode=gentle"))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)
    assert "gentle" in done.stderr


@pytest.mark.parametrize("variables", [{}, {"OUTLAST_MACHINE": "box.1"}])
def test_without_systemd_and_on_the_local_cloud_the_program_runs_directly(
    folder: Path, variables: dict[str, str]
) -> None:
    if variables:
        put_systemd(folder)
    _, environment, end, _ = boot(folder, **variables)
    assert json.loads(environment)["CODE"] == "7"
    assert end == "outlast: the agent ended with 7; switching off"
    assert not (folder / "outlast-agent.service").exists()


def test_a_systemd_that_refuses_the_unit_is_not_used(folder: Path) -> None:
    put_systemd(folder, refuses=1)
    _, environment, end, _ = boot(folder)
    assert json.loads(environment)["CODE"] == "7"
    assert end == "outlast: the agent ended with 7; switching off"
    assert not os.path.exists(folder / "outlast-agent.service")
