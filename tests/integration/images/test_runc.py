"""A run in a real container of an OCI runtime: it gets the preemption notice, resumes and ends, as without one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.probe import why_not
from tests.support.home import Home, processes_mentioning

BUSYBOX = shutil.which("busybox")
RUNC = shutil.which("runc") or shutil.which("/usr/sbin/runc")

pytestmark = [
    pytest.mark.skipif(RUNC is None, reason="needs the Debian package runc"),
    pytest.mark.skipif(BUSYBOX is None, reason="needs the Debian package busybox-static"),
]

# Counts as the other tests' counter does, in the only language that this small a container has.
COUNTER = """
count=$(cat "$OUTLAST_CHECKPOINT_DIR/count" 2>/dev/null || echo 0)
echo "resumed at $count, inside: $(test -e /etc/inside && echo yes), machine: $OUTLAST_MACHINE"
trap 'echo "heard of it"; test -e "$OUTLAST_NOTICE_FILE" && echo "and read it"; exit 0' TERM
while [ "$count" -lt "$1" ]; do
  sleep 0.05
  count=$((count + 1))
  echo "$count" > "$OUTLAST_CHECKPOINT_DIR/new" && mv "$OUTLAST_CHECKPOINT_DIR/new" "$OUTLAST_CHECKPOINT_DIR/count"
  echo "count $count"
done
echo "$count" > "$OUTLAST_OUTPUT_DIR/total.txt"
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """On machines that share this computer's files: the root file system of the container is one of them."""
    home = Home(tmp_path)
    mode = "plain" if why_not("pidns", root=str(tmp_path / "cloud")) else "pidns"
    home.environment["OUTLAST_LOCAL_MODE"] = mode
    home.cloud = LocalCloud(str(tmp_path / "cloud"), mode=mode)
    yield home
    home.clean()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The smallest root file system."""
    root = tmp_path / "root"
    for name in ("bin", "etc", "proc", "dev", "sys", "tmp"):
        (root / name).mkdir(parents=True)
    assert BUSYBOX is not None
    shutil.copy(BUSYBOX, root / "bin/busybox")
    for name in ("sh", "cat", "sleep", "mv", "test", "id", "env"):
        os.symlink("busybox", root / f"bin/{name}")
    (root / "etc/inside").write_text("")
    return root


def count_with_a_preemption(home: Home, root: Path, *argv: str) -> None:
    home.write("count.sh", COUNTER)
    process = home.start("run", "--name", "count", "--checkpoint", "ckpt", "--container", f"oci:{root}", "--", *argv)
    home.until_counted(10)
    home.cloud.preempt(home.machines()[0].name)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output


def test_a_preempted_container_gets_the_notice_and_resumes(home: Home, root: Path) -> None:
    count_with_a_preemption(home, root, "/bin/sh", "count.sh", "60")
    log = home.log()
    assert "inside: yes" in log, log
    assert "heard of it\nand read it" in log, log
    state = home.state()
    assert [a.outcome for a in state.attempts] == ["preempted", "finished"]
    assert "resumed at 0" in log
    assert log.count("resumed at") == 2
    assert log.count("count 60\n") == 1
    final = home.workspace.bucket.get(f"runs/{home.only_run()}/outputs/2/total.txt")
    assert final == b"60\n"
    assert home.machines() == []
    home.until(lambda: not processes_mentioning(str(home.root / "cloud")), "end of every process")


def test_the_exit_code_of_the_program_is_the_runs(home: Home, root: Path) -> None:
    answer = home.outlast(
        *("run", "--container", f"oci:{root}", "--crashes", "1", "--", "/bin/sh", "-c", "id; echo oops; exit 9")
    )
    assert answer.returncode == 9, answer.stderr
    assert "oops" in answer.stdout
    assert f"uid={os.getuid()}" in answer.stdout or "uid=0" in answer.stdout


def test_a_program_below_a_shell_that_ignores_signals_is_terminated(home: Home, root: Path) -> None:
    count_with_a_preemption(home, root, "/bin/sh", "-c", "/bin/sh count.sh 40; exit $?")
    assert "heard of it" in home.log()


def test_a_secret_reaches_the_program_and_stays_nowhere(home: Home, root: Path) -> None:
    home.write("wait.sh", 'echo "${#TOKEN} letters"; while ! test -e "$OUTLAST_OUTPUT_DIR/go"; do sleep 0.05; done')
    process = home.start(
        *("run", "--name", "tell", "--container", f"oci:{root}", "--secret", "TOKEN", "--no-pull"),
        *("--", "/bin/sh", "wait.sh"),
        TOKEN="hush-hush",
    )
    home.until(lambda: home.workspace.runs() and "9 letters" in home.log(), "first words")
    [machine] = home.machines()
    disk = Path(home.cloud.disk_path(machine.name))
    [bundle] = disk.rglob("container/config.json")
    assert bundle.parent.stat().st_mode & 0o77 == 0
    (next(disk.rglob("work/outputs")) / "go").write_text("")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    leaks = [path for path in home.root.rglob("*") if path.is_file() and b"hush-hush" in path.read_bytes()]
    assert leaks == []


def test_a_missing_root_ends_the_run_at_once_with_the_reason(home: Home) -> None:
    answer = home.outlast("run", "--container", "oci:/nowhere/root", "--", "/bin/sh", "-c", "true")
    assert answer.returncode == 6, answer.stderr
    state = home.state()
    assert state.ending == "failed"
    assert "has no folder `/nowhere/root`" in state.why
    assert "OCI bundle" in state.hint
    assert len(state.attempts) == 1
    assert home.machines() == []


def test_a_missing_engine_ends_the_run_at_once_with_the_reason(home: Home, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "sh", "env"):
        found = shutil.which(name)
        assert found is not None
        os.symlink(found, programs / name)
    answer = home.outlast("run", "--container", "python:3.12", "--", "python3", "-c", "1", PATH=str(programs))
    assert answer.returncode == 6, answer.stderr
    assert "docker" in home.state().why
    assert len(home.state().attempts) == 1
