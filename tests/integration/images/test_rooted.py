"""Images of machines with a separate root file system: installed software is in the image only."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.images.test_build import nothing_left
from tests.support.home import Home

RECIPE = """
name = "census"
command = "tiny-tool; cat /opt/data/raw.txt; ls -d ~/.bash_history /tmp/left-over 2>&1 | grep -c cannot"
[image]
name = "census-env"
files = { "/opt/data/raw.txt" = "raw.txt", "/opt/tiny.deb" = "tiny.deb", "/opt/project" = "project" }
script = "image.sh"
test = ["tiny-tool"]
"""


def package(folder: Path) -> None:
    """The smallest package of Debian, with a program."""
    tree = folder / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        "Package: tiny-tool\nVersion: 1.0\nArchitecture: all\nMaintainer: me <me@example.org>\nDescription: tiny\n"
    )
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/tiny-tool").write_text("#!/bin/sh\necho tiny tool works\n")
    (tree / "usr/bin/tiny-tool").chmod(0o755)
    subprocess.run(["dpkg-deb", "--build", str(tree), str(folder / "tiny.deb")], check=True, capture_output=True)
    shutil.rmtree(tree)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg, as on Debian")
def test_installed_software_is_in_the_image_and_not_on_this_computer(rooted: Home) -> None:
    rooted.write("outlast.toml", RECIPE)
    rooted.write("raw.txt", "raw\n")
    rooted.write("project/.git/config", "url")
    rooted.write("image.sh", "dpkg -i /opt/tiny.deb\necho secret > ~/.bash_history\ntouch /tmp/left-over\n")
    package(rooted.project)
    answer = rooted.outlast("run", "-q", "--no-pull", timeout_s=110)
    assert answer.returncode == 0, answer.stderr
    # The test of the build, and the run on a machine that was born with it.
    assert "tiny tool works" in answer.stderr
    assert answer.stdout == "tiny tool works\nraw\n2\n"
    for line in (
        "~/.bash_history  (history)",
        "/tmp/left-over  (temporary files)",
        "/opt/project/.git  (repositories)",
    ):
        assert line in answer.stderr
    assert shutil.which("tiny-tool") is None
    assert not os.path.exists("/opt/tiny.deb")
    nothing_left(rooted)


@pytest.mark.full
def test_packages_are_installed_by_apt(rooted: Home) -> None:
    rooted.write("outlast.toml", '[image]\nname = "env"\npackages = ["hello"]\ntest = "hello"\n')
    answer = rooted.outlast("image", "build", timeout_s=110)
    if "Failed to fetch" in answer.stderr or "Temporary failure resolving" in answer.stderr:
        pytest.skip("needs a mirror of Debian")
    assert answer.returncode == 0, answer.stderr
    assert "Hello, world!" in answer.stderr
    nothing_left(rooted)


@pytest.mark.skipif(shutil.which("runc") is None, reason="needs the Debian package runc")
@pytest.mark.skipif(shutil.which("busybox") is None, reason="needs the Debian package busybox-static")
def test_a_container_works_on_a_machine_with_cgroups_and_else_the_reason_is_reported(
    rooted: Home,
) -> None:
    for name in ("etc", "proc", "dev", "sys", "tmp"):
        rooted.write(f"box/{name}/.keep", "")
    rooted.write("box/bin/.keep", "")
    for name in ("busybox", "cat"):
        shutil.copy(str(shutil.which("busybox")), rooted.project / "box/bin" / name)
    rooted.write("outlast.toml", '[image]\nname = "boxed"\nfiles = { "/opt/box" = "box" }\n')
    argv = ("run", "-q", "--no-pull", "--name", "look", "--container", "oci:/opt/box")
    answer = rooted.outlast(*argv, "--", "/bin/cat", "/proc/self/cgroup", timeout_s=110)
    state = rooted.state()
    if answer.returncode == 0:
        # Below the machine's own, which is all that it sees of this computer's.
        assert "0::/outlast-look-1-a1" in answer.stdout
    else:
        assert answer.returncode == 6, answer.stderr
        assert "control groups" in state.why
        assert "pidns" in state.hint
    assert len(state.attempts) == 1
    nothing_left(rooted)
