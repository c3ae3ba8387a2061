"""Who holds a lease, or makes a machine: what is known of a process of this computer."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from outlast.workspace.hand import name_of_this_process
from outlast.workspace.lease import Holder

_CONTAINED = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
_SAY = "from outlast.workspace.hand import name_of_this_process as name; print(name())"


def test_a_process_that_ended_is_known_to_be_dead_and_one_that_runs_is_not() -> None:
    with subprocess.Popen([sys.executable, "-c", _SAY], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        who = process.stdout.read().strip()
    assert Holder(who=who, epoch=1).plainly_dead()
    assert not Holder(who=name_of_this_process(), epoch=1).plainly_dead()


def test_one_that_was_killed_is_dead_though_nobody_has_asked_for_it() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", f"{_SAY}; import sys; sys.stdout.flush(); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdin is not None
    who = Holder(who=child.stdout.readline().decode().strip(), epoch=1)
    assert not who.plainly_dead()
    child.kill()
    # Seen to have ended, and left as it is.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert who.plainly_dead()
    child.stdin.close()
    child.wait()


def test_a_process_of_a_container_with_our_name_is_not_taken_for_dead() -> None:
    told = subprocess.run([*_CONTAINED, sys.executable, "-c", _SAY], capture_output=True, text=True, check=False)
    if told.returncode or not told.stdout:
        pytest.skip(f"no process numbers of one's own here: {told.stderr.strip()}")
    who = told.stdout.strip()
    assert who.startswith(f"{os.uname().nodename}/")
    # Its number is a small one: as one of ours it may be anybody's, or nobody's.
    assert not Holder(who=f"{who.rpartition(':')[0]}:4194303", epoch=1).plainly_dead()
