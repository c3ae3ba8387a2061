"""`outlast image build` on the local cloud over a real sshd: an image or a clear error, and never a builder left."""

from __future__ import annotations

import json
import signal
import zipfile
from pathlib import Path

import msgspec
import pytest

from outlast.records.machines import MachineRecords
from tests.support.home import Home
from tests.support.waiting import eventually

RECIPE = """
name = "census"
command = "cat ~/prepared.txt; tiny"
environment = "host"
[image]
name = "census-env"
files = { "raw.txt" = "raw.txt", "wheels" = "wheels", "project" = "project" }
requirements = "requirements.txt"
script = "setup.sh"
warm = ["sort raw.txt > prepared.txt"]
test = ["test -s prepared.txt", "tiny | grep -q 'tiny works'"]
"""


def wheel(folder: Path) -> None:
    """The smallest package, with a program."""
    folder.mkdir(parents=True, exist_ok=True)
    info = "tiny-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("tiny.py", "def main():\n    print('tiny works')\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\ntiny = tiny:main\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def project(shop: Home) -> Home:
    shop.write("outlast.toml", RECIPE)
    shop.write("raw.txt", "b\na\n")
    shop.write("setup.sh", "echo set up\necho 'export TOKEN=1' > ~/.bash_history\nmkdir -p ~/.ssh\n")
    shop.write("requirements.txt", "--no-index\n--find-links wheels\ntiny==1.0\n")
    shop.write("project/.env", "TOKEN=1")
    shop.write("project/train.py", "print('hello')")
    wheel(shop.project / "wheels")
    return shop


def plain(shop: Home, script: str, more: str = "", name: str = "env") -> None:
    """A recipe that is a script."""
    shop.write("setup.sh", script)
    shop.write("outlast.toml", f'command = "true"\n[image]\nname = "{name}"\nscript = "setup.sh"\n{more}\n')


def nothing_left(home: Home) -> None:
    assert home.machines() == []
    assert list(MachineRecords(home.workspace).all()) == []
    assert home.outlast("reap", "--dry-run").stdout == "no machines to delete\n"


def test_a_recipe_becomes_an_image_that_a_run_boots_from(project: Home) -> None:
    answer = project.outlast("run", "-q", "--no-pull", timeout_s=240)
    assert answer.returncode == 0, answer.stderr
    # Built first, with progress; then the run, in what the recipe has prepared.
    assert "building the image `census-env-" in answer.stderr
    assert "set up" in answer.stderr
    assert answer.stdout == "a\nb\ntiny works\n"
    # Shown before it was removed.
    for line in ("~/.bash_history  (history)", "~/project/.env  (environment files)", "~/.ssh  (ssh keys)"):
        assert line in answer.stderr
    [image] = [image for image in project.cloud.images() if image.family == "census-env"]
    assert project.workspace.request(project.only_run()).spec.machine.image == image.name
    nothing_left(project)
    again = project.outlast("image", "build")
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == image.name
    assert "already exists" in again.stderr
    shown = project.outlast("image", "show", "census-env")
    for word in (image.name, "current of census-env", "setup.sh", "echo set up", "scrubbed"):
        assert word in shown.stdout, shown.stdout
    log = project.outlast("image", "show", image.name, "--log").stdout
    assert "set up" in log
    facts = json.loads(project.outlast("image", "show", image.name, "--json").stdout)
    assert facts["recipe"]["digest"] == facts["digest"]
    assert facts["result"]["bytes"] > 0
    assert any(path.endswith("/.env") for path in facts["result"]["scrubbed"])


def test_the_last_output_of_a_script_is_reported_without_a_final_newline(shop: Home) -> None:
    plain(shop, "echo one\nprintf 'last words' >&2\nexit 3\n")
    answer = shop.outlast("image", "build")
    assert answer.returncode == 1
    assert "setup.sh, line 3: `exit 3` exited with 3" in answer.stderr
    assert answer.stderr.split("error:")[1].count("    last words\n") == 1


@pytest.mark.full
def test_a_failed_script_reports_its_line_and_leaves_nothing(shop: Home) -> None:
    plain(shop, "# one\necho two\n\necho four\n\necho six\nls /nowhere/at/all\necho eight\n")
    answer = shop.outlast("image", "build")
    assert answer.returncode == 1
    assert "setup.sh, line 7: `ls /nowhere/at/all` exited with 2" in answer.stderr
    assert "    six" in answer.stderr.split("error:")[1]
    assert "No such file or directory" in answer.stderr.split("error:")[1]
    assert "eight" not in answer.stderr
    assert [image.name for image in shop.cloud.images()] == ["base"]
    nothing_left(shop)
    [digest] = shop.workspace.bucket.children("images/")
    assert b"failed: setup.sh, line 7" in shop.workspace.bucket.get(f"images/{digest}/build.log")


@pytest.mark.full
def test_a_failed_test_step_creates_no_image(shop: Home) -> None:
    plain(shop, "echo fine\n", 'test = ["echo almost; exit 3"]')
    answer = shop.outlast("image", "build")
    assert answer.returncode == 1
    assert "test: echo almost; exit 3" in answer.stderr
    assert [image.name for image in shop.cloud.images()] == ["base"]
    nothing_left(shop)


@pytest.mark.full
def test_a_timeout_creates_no_image(shop: Home) -> None:
    plain(shop, "echo begun\nsleep 100\n", 'timeout = "8s"')
    answer = shop.outlast("image", "build")
    assert answer.returncode == 1
    assert "the build timed out in setup.sh" in answer.stderr
    assert "timeout" in answer.stderr.split("hint:")[1]
    assert [image.name for image in shop.cloud.images()] == ["base"]
    nothing_left(shop)


@pytest.mark.full
def test_a_kept_builder_is_reported_and_reaped_in_time(shop: Home) -> None:
    plain(shop, "touch here\nfalse\n")
    answer = shop.outlast("image", "build", "--keep-on-failure", "1h")
    assert answer.returncode == 1
    [machine] = shop.machines()
    assert f"outlast machine ssh {machine.name}" in answer.stderr
    assert "keeps running and is billed for 1h" in answer.stderr
    assert machine.status == "running"
    assert "no machine" in shop.outlast("reap", "--dry-run").stdout
    machine_records = MachineRecords(shop.workspace)
    [machine_record] = machine_records.all()
    machine_records.write(msgspec.structs.replace(machine_record, until=1.0))
    assert "the time for which it was kept is over" in shop.outlast("reap").stdout
    assert shop.machines() == []


@pytest.mark.full
def test_a_preempted_builder_is_reported(shop: Home) -> None:
    plain(shop, "echo begun\nsleep 100\n", "spot = true")
    process = shop.start("image", "build")
    eventually(lambda: "begun" in _log(shop), within_s=40, what="begin of the script")
    [machine] = shop.machines()
    shop.cloud.preempt(machine.name, notice=False)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 5, output
    assert "during setup.sh" in output
    assert "spot = false" in output
    nothing_left(shop)


def _log(home: Home) -> str:
    return "".join(
        home.workspace.bucket.get(entry.key).decode()
        for entry in home.workspace.bucket.list("images/")
        if entry.key.endswith("build.log")
    )


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_build_deletes_its_builder(shop: Home, number: signal.Signals) -> None:
    plain(shop, "echo begun\nsleep 100\n")
    process = shop.start("image", "build")
    eventually(lambda: "begun" in _log(shop), within_s=40, what="begin of the script")
    process.send_signal(number)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130, output
    nothing_left(shop)


@pytest.mark.full
def test_two_concurrent_builds_of_the_same_recipe_create_one_image(shop: Home) -> None:
    go = shop.root / "go"
    plain(shop, f"echo begun\nuntil test -e {go}; do sleep 0.1; done\necho done\n")
    first = shop.start("image", "build")
    eventually(lambda: "begun" in _log(shop), within_s=40, what="begin of the script")
    second = shop.start("image", "build")
    seen: list[str] = []
    assert second.stdout is not None
    for line in second.stdout:
        seen.append(line)
        if "begun" in line:
            break  # the second one sees the output of the first
    assert "is being built by" in "".join(seen)
    assert len(shop.machines()) == 1
    go.write_text("")
    outputs = [process.communicate(timeout=600)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    [image] = [image for image in shop.cloud.images() if image.name != "base"]
    assert all(output.rstrip().endswith(image.name) for output in outputs)
    nothing_left(shop)


@pytest.mark.full
def test_a_process_that_waits_for_a_build_reports_its_failure(shop: Home) -> None:
    go = shop.root / "go"
    plain(shop, f"echo begun\nuntil test -e {go}; do sleep 0.1; done\nfalse\n")
    first = shop.start("image", "build")
    eventually(lambda: "begun" in _log(shop), within_s=40, what="begin of the script")
    second = shop.start("image", "build")
    assert second.stdout is not None
    for line in second.stdout:
        if "begun" in line:
            break
    go.write_text("")
    outputs = [process.communicate(timeout=600)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (1, 1), outputs
    assert "setup.sh, line 3" in outputs[1]
    nothing_left(shop)


@pytest.mark.full
def test_kept_files_are_in_the_image(shop: Home) -> None:
    plain(shop, "mkdir -p a/.git b/.git\ntouch a/.git/x b/.git/x\n")
    answer = shop.outlast("image", "build", "--keep", "a/.git")
    assert answer.returncode == 0, answer.stderr
    assert "kept: ~/a/.git" in answer.stderr
    assert "~/b/.git  (repositories)" in answer.stderr


@pytest.mark.soak
def test_an_image_that_was_deleted_is_built_again(shop: Home) -> None:
    plain(shop, "echo hello\n")
    name = shop.outlast("image", "build", "-q").stdout.strip()
    assert shop.outlast("image", "delete", name, "--yes").returncode == 0
    answer = shop.outlast("image", "build")
    assert answer.returncode == 0, answer.stderr
    assert "hello" in answer.stderr
    assert answer.stdout.strip() == name


@pytest.mark.full
def test_a_family_can_be_the_base_of_the_next(shop: Home) -> None:
    plain(shop, "echo below > below.txt\n", name="lower")
    assert shop.outlast("image", "build", "-q").returncode == 0
    plain(shop, "cat below.txt\n", 'base = "lower"', name="upper")
    answer = shop.outlast("image", "build")
    assert answer.returncode == 0, answer.stderr
    assert "   below" in answer.stderr
