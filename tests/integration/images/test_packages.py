"""The Python packages of an image: runs and shells of its machines find them, and this computer stays as it was."""

from __future__ import annotations

import os

import pytest

from tests.support.home import Home
from tests.support.wheels import write_wheel

RECIPE = """
name = "talk"
command = ["python", "-c", "import greeting, sys; print(greeting.NAME, sys.prefix)"]
[image]
name = "talk-env"
files = { "wheels/greeting-1.0-py3-none-any.whl" = "greeting-1.0-py3-none-any.whl" }
pip = ["./wheels/greeting-1.0-py3-none-any.whl"]
test = ["python -c 'import greeting'"]
"""


@pytest.mark.full
def test_without_an_environment_of_the_project_a_run_has_the_packages_of_its_image(home: Home) -> None:
    home.environment["OUTLAST_LOCAL_MODE"] = "plain"
    home.write("outlast.toml", 'environment = "none"\n' + RECIPE)
    home.write("requirements.txt", "none-such-package==1.0\n")
    write_wheel(home.project, "greeting")
    answer = home.outlast("run", "--no-pull", timeout_s=150)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "outlast: environment: none; packages of the image, in " in answer.stdout
    printed = next(line for line in answer.stdout.splitlines() if line.startswith("greeting "))
    assert printed.endswith("/.outlast/env")


@pytest.mark.full
def test_a_run_and_a_shell_find_the_packages_of_their_image(rooted: Home) -> None:
    there = os.path.exists("/opt/outlast")
    rooted.write("outlast.toml", RECIPE)
    write_wheel(rooted.project, "greeting")
    answer = rooted.outlast("run", "--no-pull", timeout_s=150)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "greeting /opt/outlast/env" in answer.stdout
    made = rooted.outlast("machine", "create", "box", "--image", "talk-env", timeout_s=110)
    assert made.returncode == 0, made.stdout + made.stderr
    shown = rooted.outlast("machine", "ssh", "box", "python -c 'import greeting, sys; print(sys.prefix)'")
    assert shown.stdout == "/opt/outlast/env\n", shown.stderr
    login = rooted.outlast("machine", "ssh", "box", "bash -lc 'command -v python pip greeting-program'")
    assert login.stdout.splitlines() == [
        f"/opt/outlast/env/bin/{name}" for name in ("python", "pip", "greeting-program")
    ]
    # The `pip` of an image takes pip's own options, as a module as well.
    removed = "pip3 --version && python -m pip uninstall -y greeting && pip list && python -c 'import greeting'"
    answer = rooted.outlast("machine", "ssh", "box", removed)
    assert "pip (uv) from /opt/outlast/env/" in answer.stdout
    assert "ModuleNotFoundError: No module named 'greeting'" in answer.stderr
    assert os.path.exists("/opt/outlast") == there, "a machine's /opt is not this computer's"
