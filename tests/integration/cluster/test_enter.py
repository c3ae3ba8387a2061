"""The ways into a cluster, as people use them: a terminal on the head, Ray's own dashboard, jobs that are watched and
stopped.
One cluster for all of them, with real Ray; `test_head.py` has what they say when its head is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.integration.sync.keyboard import Keyboard
from tests.support.cluster import TICKS, Bench, benched, read_until
from tests.support.ports import free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.cluster
LEAVE = "\x02d"


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A cluster that is up, with its head alone; none of these tests changes that."""
    with benched(tmp_path_factory.mktemp("running_cluster")) as bench:
        (bench.project / "ticks.py").write_text(TICKS)
        bench.good("cluster", "up")
        yield bench


@pytest.fixture
def ticking(running_cluster: Bench) -> str:
    """The id of a job that runs."""
    return running_cluster.good("cluster", "submit", "--job", "ticks", "small", "--", "python", "ticks.py").strip()


def leave(process: subprocess.Popen[str]) -> str:
    """Ctrl-C at the terminal: the whole group gets it."""
    os.killpg(process.pid, signal.SIGINT)
    return process.communicate(timeout=600)[0]


def no_process_left(bench: Bench, word: str) -> bool:
    listed = bench.good("cluster", "exec", "small", "--", "ps", "-eo", "args")
    return not any("outlast_rayclient" in line and word in line for line in listed.splitlines())


def test_a_terminal_on_the_head_is_left_and_entered_again(running_cluster: Bench) -> None:
    first = Keyboard(running_cluster, "cluster", "attach", "small")
    first.until("$" if os.geteuid() else "#")
    first.type("remembered=4$((1+1)); ray --version; echo mark-$remembered\r")
    first.until("mark-42")
    first.type(LEAVE)
    first.until("detached")
    assert first.wait() == 0
    second = Keyboard(running_cluster, "cluster", "attach")
    second.until("mark-42")  # the screen is as it was left
    second.type("clear; echo again-$remembered; exit\r")
    second.until("again-42")
    assert second.wait() == 0


def test_attach_without_a_terminal_is_refused_with_a_hint(running_cluster: Bench) -> None:
    answer = running_cluster.outlast("cluster", "attach")
    assert answer.returncode == 2
    assert "needs a terminal" in answer.stderr
    assert "outlast cluster exec small -- COMMAND" in answer.stderr


def fetch(url: str, token: str = "") -> bytes:
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        body = answer.read()
    assert isinstance(body, bytes)
    return body


def test_the_dashboard_comes_through_a_tunnel_and_needs_the_token(running_cluster: Bench) -> None:
    port = free_port()
    process = running_cluster.start("cluster", "dashboard", "small", "--port", str(port))
    expected = read_until(process, "Ctrl-C stops forwarding")
    (token,) = re.findall(r"token: (\w+)", expected)
    assert b"Ray Dashboard" in fetch(f"http://127.0.0.1:{port}/")
    assert isinstance(json.loads(fetch(f"http://127.0.0.1:{port}/api/jobs/", token)), list)
    for wrong in ("", "0" * len(token)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            fetch(f"http://127.0.0.1:{port}/api/jobs/", wrong)
        assert refused.value.code in (401, 403)

    taken = running_cluster.outlast("cluster", "dashboard", "--port", str(port))
    assert taken.returncode == 2
    assert "--port" in taken.stderr
    assert "closed the tunnel" in leave(process)
    assert process.returncode == 0
    with pytest.raises(OSError):
        fetch(f"http://127.0.0.1:{port}/")


def test_output_is_followed_until_ctrl_c_and_the_job_continues(running_cluster: Bench, ticking: str) -> None:
    process = running_cluster.start("cluster", "logs", "small", ticking[:-2], "-f")
    read_until(process, "tick 2")
    leave(process)
    assert process.returncode == 130
    eventually(lambda: no_process_left(running_cluster, ticking), within_s=20, what="no follower on the head")
    seen = running_cluster.good("cluster", "logs", "small", ticking)
    assert "tick 2" in seen
    jobs = json.loads(running_cluster.good("cluster", "jobs", "--json"))
    assert [job["status"] for job in jobs if job["id"] == ticking] == ["RUNNING"]


def test_a_watched_cluster_is_printed_repeatedly_until_ctrl_c(running_cluster: Bench) -> None:
    process = running_cluster.start("cluster", "status", "--watch", "--json")
    assert process.stdout is not None
    sights = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert [[node["role"] for node in sight["nodes"]] for sight in sights] == [["head"], ["head"]]
    assert [sight["unreachable"] for sight in sights] == ["", ""]
    leave(process)
    assert process.returncode == 130
    eventually(lambda: no_process_left(running_cluster, " status "), within_s=20, what="no watcher on the head")
    shown = Keyboard(running_cluster, "cluster", "status", "--watch")
    shown.until("of at most 3 workers")
    shown.until("of at most 3 workers")
    os.kill(shown.process.pid, signal.SIGINT)
    assert shown.wait() == 130


def test_a_job_has_ended_when_stop_returns(running_cluster: Bench, ticking: str) -> None:
    eventually(
        lambda: "tick 2" in running_cluster.good("cluster", "logs", "small", ticking), within_s=60, what="its output"
    )
    stopped = running_cluster.outlast("cluster", "stop", "small", ticking)
    assert (stopped.returncode, stopped.stderr.splitlines()[-1]) == (0, f"{ticking} is STOPPED")
    jobs = json.loads(running_cluster.good("cluster", "jobs", "--json"))
    assert [job["status"] for job in jobs if job["id"] == ticking] == ["STOPPED"]
    again = running_cluster.outlast("cluster", "stop", "small", ticking[:-1])
    assert again.returncode == 0
    assert "had already ended" in again.stderr
    # The output of an ended job is read to its end, with and without `--follow`.
    assert "tick 2" in running_cluster.good("cluster", "logs", "-f", "small", ticking)


@pytest.mark.parametrize(
    ("argv", "code", "expected"),
    [
        (("logs", "small", "nothing"), 3, "no job `nothing`"),
        (("stop", "small", "nothing"), 3, "outlast cluster jobs"),
        (("stop", "small"), 2, "outlast cluster stop --help"),
        (("attach", "other"), 3, "clusters: small"),
        (("dashboard", "other"), 3, "clusters: small"),
        (("dashboard", "--port", "70000"), 2, "70000"),
        (("exec", "small", "--"), 2, "no command given"),
        (("status", "other"), 3, "no cluster `other`"),
        (("submit", "--job", "7", "small", "--", "true"), 2, "invalid job name `7`"),
        (("submit", "--dir", "nowhere", "small", "--", "true"), 2, "nowhere"),
        (("matrix", "small", "--", "true"), 2, "--axis"),
    ],
)
def test_errors_name_the_next_step(running_cluster: Bench, argv: tuple[str, ...], code: int, expected: str) -> None:
    answer = running_cluster.outlast("cluster", *argv)
    assert answer.returncode == code
    assert expected in answer.stderr
    assert "Traceback" not in answer.stderr
