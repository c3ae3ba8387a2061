"""`outlast logs` in a pipe, and for an attempt without output."""

from __future__ import annotations

from tests.support.home import Home


def test_a_pipe_gets_no_control_sequences_of_ours(home: Home) -> None:
    home.write("crash.py", "print('words', flush=True)\nraise SystemExit(3)\n")
    assert home.outlast("run", "--crashes", "2", "--", "python3", "crash.py").returncode == 3
    answer = home.outlast("logs", "last")
    assert (answer.stdout, answer.stderr) == ("words\nwords\n", "-- attempt 1\n-- attempt 2\n")


def test_follow_waits_for_an_attempt_without_output(home: Home) -> None:
    home.write(
        "late.py",
        "import os, time\nwhile not os.path.exists(os.environ['GO']): time.sleep(0.05)\nprint('late')\n",
    )
    go = home.root / "workspace" / "go"
    submitted = home.outlast("submit", "--env", f"GO={go}", "--", "python3", "late.py")
    assert submitted.returncode == 0, submitted.stderr
    home.until(lambda: home.state().attempts and home.state().attempts[0].started_at, "the start")
    assert home.outlast("logs", "last", "--attempt", "1").returncode == 2
    assert home.outlast("logs", "-f", "last", "--attempt", "2").returncode == 2
    following = home.start("logs", "-f", "last", "--attempt", "1")
    go.touch()
    output, _ = following.communicate(timeout=600)
    assert (following.returncode, output) == (0, "late\n")
