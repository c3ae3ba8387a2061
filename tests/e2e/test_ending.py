"""`outlast wait` and `logs -f` exit like the run; `outlast cancel` takes several runs and groups."""

from __future__ import annotations

from tests.support.home import Home

PAIR = """
name = "pair"
[tasks.a]
command = "sleep 600"
[tasks.b]
command = "sleep 600"
"""


def submit(home: Home, *command: str) -> str:
    answer = home.outlast("submit", "--crashes", "1", "--", *command)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def test_wait_exits_like_the_first_run_that_failed(home: Home) -> None:
    good, bad = submit(home, "true"), submit(home, "sh", "-c", "echo going; exit 3")
    answer = home.outlast("wait", good, bad)
    assert answer.returncode == 3
    first, second = sorted(answer.stdout.splitlines(), key=lambda line: line.startswith(bad))
    assert first.startswith(f"{good} finished after ")
    assert second.startswith(f"{bad} failed after ")
    assert home.outlast("wait", good, "--quiet").stdout == ""
    followed = home.outlast("logs", "-f", bad)
    assert (followed.returncode, followed.stdout) == (3, "going\n")
    assert home.outlast("logs", "-f", good).returncode == 0


def test_wait_supervises_a_run_that_has_no_supervisor(home: Home) -> None:
    run = home.run("true")
    answer = home.outlast("wait", run)
    assert answer.returncode == 0, answer.stderr
    assert home.state(run).ending == "finished"


def test_cancel_ends_several_runs_and_groups_or_none_at_all(home: Home) -> None:
    alone = submit(home, "sleep", "600")
    home.write("outlast.toml", PAIR)
    assert home.outlast("submit").returncode == 0
    refused = home.outlast("cancel", alone, "pair-1", "missing")
    assert refused.returncode == 3
    assert "missing" in refused.stderr
    assert home.state(alone).alive
    answer = home.outlast("cancel", alone, "pair-1")
    assert answer.stdout == f"cancelled {alone}, pair-1-a, pair-1-b\n", answer.stderr
    assert home.outlast("wait", alone, "pair-1").returncode == 7
    again = home.outlast("cancel", alone, "pair-1")
    assert (again.returncode, again.stdout) == (0, "")
    assert f"{alone} has already ended: cancelled" in again.stderr
    home.until(lambda: not home.machines(), "no machine")
