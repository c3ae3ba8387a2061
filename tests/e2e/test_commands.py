"""Commands from the user's view: wrong arguments, broken files, stockouts, secrets, data, git."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.app.background import start_supervisor
from tests.support.home import COUNTER, Home, processes_mentioning


def assert_clean_error(answer: subprocess.CompletedProcess[str], code: int, *argv: str) -> None:
    assert answer.returncode == code, (answer.returncode, answer.stdout, answer.stderr)
    assert "error:" in answer.stderr
    assert "Traceback" not in answer.stderr + answer.stdout
    for word in argv:
        assert word in answer.stderr, (word, answer.stderr)


def test_all_problems_of_a_file_are_reported_and_nothing_is_launched(home: Home) -> None:
    home.write(
        "outlast.toml",
        """
nmae = "x"
command = "python missing.py"
[machine]
disk = "-5GB"
cpus = "lots"
spot = "perhaps"
[limits]
crashes = -1
""",
    )
    answer = home.outlast("run")
    assert_clean_error(answer, 2, "nmae", "did you mean `name`", "disk", "cpus", "spot", "crashes", "outlast.toml")
    assert home.machines() == []
    assert home.workspace.runs() == []


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("", ["command: missing"]),
        ('command = "python missing.py"', ["missing.py", "does not exist"]),
        ('command = "true"\n[machine]\ntype = "local-3"', ["local-3"]),
        ('command = "true"\n[machine]\nimage = "nope"', ["nope"]),
        ('command = "true"\n[machine]\nzones = ["mars-a"]', ["mars-a"]),
        ('command = "true"\n[machine]\ncloud = "azure"', ["azure"]),
        ('command = "true"\n[machine]\ncpus = 1000', ["no machine type of `local` meets the requirements"]),
        ('command = "true"\n[data]\nx = "not-there"', ["[data]", "not-there"]),
        ('command = "true"\n[code]\npath = "not-there"', ["[code] path", "not-there"]),
        ('command = "true"\nsecrets = ["NOT_SET_ANYWHERE"]', ["NOT_SET_ANYWHERE"]),
        ('command = "true', ["outlast.toml", "TOML", "Unterminated"]),
    ],
)
def test_the_wrong_field_is_named(home: Home, text: str, argv: list[str]) -> None:
    home.write("outlast.toml", text)
    for verb in ("run", "submit"):
        assert_clean_error(home.outlast(verb), 2, *argv)
    assert home.machines() == []
    assert home.workspace.runs() == []


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["rnu"], 2, "did you mean `run`"),
        (["run", "--no-such-option"], 2, "--no-such-option"),
        (["logs"], 2, "`outlast logs last` is the newest run"),
        (["cancel"], 2, "`outlast cancel last` is the newest run"),
        (["run", "--param", "novalue", "--", "true"], 2, "NAME=VALUE"),
        (["run", "--file", "absent.toml"], 2, "absent.toml"),
        (["show", "nothing"], 3, "no run `nothing`"),
        (["logs", "last"], 3, "no run"),
        (["pull", "x"], 3, "no run"),
        (["cancel", "x"], 3, "no run"),
        (["preempt", "x"], 3, "no run"),
        (["ps", "--workspace", "ftp://x"], 2, "ftp"),
        (["run", "--workspace", "/dev/null/x", "--", "true"], 4, "workspace"),
    ],
)
def test_wrong_arguments_get_a_clear_error_and_a_code(home: Home, argv: list[str], code: int, says: str) -> None:
    assert_clean_error(home.outlast(*argv), code, says)


def test_a_stockout_moves_to_the_next_zone_and_is_reported(home: Home) -> None:
    home.cloud.set_zone("local2-b", capacity=0)
    answer = home.outlast("run", "--", "true")
    assert answer.returncode == 0, answer.stderr
    first, second = home.state().attempts
    assert (first.outcome, first.zone) == ("refused", "local2-b")
    assert second.zone != "local2-b"
    assert "refused" in answer.stderr


@pytest.mark.full
def test_a_run_without_capacity_waits_with_a_reason_and_continues_when_there_is_some(home: Home) -> None:
    zones = list(home.cloud.zone_settings())
    for zone in zones:
        home.cloud.set_zone(zone, capacity=0)
    assert home.outlast("submit", "--type", "local-1", "--", "true").returncode == 0
    home.until(lambda: home.state().waiting, "hold")
    (row,) = json.loads(home.outlast("ps", "--json").stdout)
    assert row["state"] == "waiting"
    assert "no machine in 5 zones" in row["why"]
    for zone in zones:
        home.cloud.set_zone(zone, capacity=None)
    home.until(lambda: home.state().closed, "the end", 60)
    assert home.state().ending == "finished"


def test_a_permanent_error_of_the_cloud_is_reported_at_once_and_not_retried_in_other_zones(home: Home) -> None:
    for zone in home.cloud.zone_settings():
        home.cloud.set_zone(zone, deny="the account may not create machines")
    answer = home.outlast("run", "--", "true", timeout_s=20)
    assert answer.returncode == 6
    assert "the account may not create machines" in answer.stderr
    assert len(home.state().attempts) == 1
    assert home.machines() == []


SECRET = "s3cr3t-Value-7731"


def everything_below(*roots: Path) -> bytes:
    body = b""
    for root in roots:
        for folder, _, names in os.walk(root):
            body += "\n".join(names).encode()
            for name in names:
                path = Path(folder) / name
                if path.is_file():
                    body += path.read_bytes()
    return body


@pytest.mark.full
def test_secrets_reach_the_process_and_nothing_else(home: Home) -> None:
    home.write(
        "use.py",
        """
import os, sys, time
value = os.environ["TOKEN"]
print("length", len(value), "and the value", value, flush=True)
sys.stdout.write("split " + value[:7]); sys.stdout.flush(); time.sleep(0.4)
print(value[7:], "end", flush=True)
while not os.path.exists("/proc/self/nothing") and os.environ["OUTLAST_ATTEMPT"] == "1": time.sleep(0.05)
""",
    )
    home.write(".env", f"TOKEN={SECRET}\n")
    process = home.start("run", "--secret", "TOKEN", "--", "python3", "use.py", TOKEN=SECRET)
    home.until(lambda: home.workspace.runs() and "end" in home.log(), "output")
    name = home.machines()[0].name
    machine = home.root / "cloud" / "machines" / name
    assert SECRET.encode() not in everything_below(home.root / "workspace", machine)
    assert SECRET not in home.cloud.serial(name)
    for path in (home.root / "cloud" / "secrets").iterdir():
        assert path.stat().st_mode & 0o077 == 0
    home.outlast("preempt", "last")  # the second attempt also needs the secret, and the submitter's shell may be closed
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert SECRET not in output
    assert output.count("length 17") == 2
    assert "left out of the bundle: .env" in output
    assert SECRET.encode() not in everything_below(home.root / "workspace", home.root / "cloud", home.root / "home")


def test_parameters_reach_command_environment_and_metadata(home: Home) -> None:
    home.write(
        "outlast.toml",
        """
name = "params"
command = "python3 show.py --rate {rate} --text {text}"
[params]
rate = 0.1
text = "a b'c"
[env]
GREETING = "hello"
""",
    )
    home.write(
        "show.py",
        """
import http.client, json, os, sys
print(json.dumps(sys.argv[1:]), os.environ["OUTLAST_PARAMS"], os.environ["GREETING"])
print("mean life", os.environ["OUTLAST_MEAN_LIFE_S"])
c = http.client.HTTPConnection(os.environ["GCE_METADATA_HOST"])
c.request("GET", "/computeMetadata/v1/instance/attributes/param-rate", headers={"Metadata-Flavor": "Google"})
print("metadata", c.getresponse().read().decode())
""",
    )
    answer = home.outlast("run", "--param", "rate=0.5")
    assert answer.returncode == 0, answer.stderr
    assert '["--rate", "0.5", "--text", "a b\'c"]' in answer.stdout
    assert '{"rate":0.5,"text":"a b\'c"} hello' in answer.stdout
    assert "metadata 0.5" in answer.stdout
    assert "mean life 7200" in answer.stdout


def test_a_misspelled_parameter_is_refused_and_one_that_nothing_mentions_is_reported(home: Home) -> None:
    home.write("outlast.toml", 'command = "echo {steps}"\n[params]\nsteps = 3\n')
    assert_clean_error(home.outlast("submit", "-p", "stesp=4"), 2, "unknown parameter `stesp`", "did you mean `steps`?")
    assert home.workspace.runs() == []
    answer = home.outlast("run", "-q", "-p", "colour=red")
    assert answer.returncode == 0, answer.stderr
    assert "only a program that reads OUTLAST_PARAM_COLOUR uses parameter `colour`" in answer.stderr


def test_data_is_copied_to_the_machine(home: Home) -> None:
    for number in range(30):
        home.write(f"../store/part-{number}.txt", str(number))
    home.write("outlast.toml", 'command = "cat data/*.txt | sort -n | tail -1"\n[data]\n"data" = "../store"\n')
    answer = home.outlast("run")
    assert answer.returncode == 0, answer.stderr
    assert "29" in answer.stdout


def test_code_by_git_ref_is_fetched_at_that_commit_which_is_recorded(home: Home) -> None:
    repository = home.root / "repository"
    repository.mkdir()

    def git(*argv: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(["git", *identity, *argv], cwd=repository, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q", "-b", "main")
    (repository / "say.py").write_text("print('version one')\n")
    git("add", ".")
    git("commit", "-qm", "one")
    git("tag", "v1")
    first = git("rev-parse", "HEAD")
    (repository / "say.py").write_text("print('version two')\n")
    git("commit", "-qam", "two")
    home.write("outlast.toml", f'command = "python3 say.py"\n[code]\ngit = "{repository}"\nref = "v1"\n')
    answer = home.outlast("run")
    assert answer.returncode == 0, answer.stderr
    assert "version one" in answer.stdout
    assert home.workspace.request(home.only_run()).code.commit == first


@pytest.mark.full
def test_setup_runs_before_the_command_and_its_failure_is_reported(home: Home) -> None:
    home.write("outlast.toml", 'command = "cat made"\nsetup = "echo prepared > made"\n')
    answer = home.outlast("run")
    assert answer.returncode == 0, answer.stderr
    assert "prepared" in answer.stdout
    home.write("outlast.toml", 'command = "echo never"\nsetup = "exit 9"\n[limits]\ncrashes = 1\n')
    answer = home.outlast("run")
    assert answer.returncode == 9
    assert "never" not in answer.stdout


def test_cancel_deletes_the_machine_and_ends_the_run(home: Home) -> None:
    home.write("count.py", COUNTER)
    process = home.start("run", "--", "python3", "count.py", "1000", "0.05")
    home.until_counted(3)
    assert home.outlast("cancel", "last").returncode == 0
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 7, output
    assert home.state().ending == "cancelled"
    assert home.machines() == []
    again = home.outlast("cancel", "last")
    assert again.returncode == 0
    assert "already ended" in again.stderr
    home.until(lambda: not processes_mentioning(str(home.root)), "end of all processes")


def test_plan_shows_and_reap_deletes_machines_without_an_owner(home: Home) -> None:
    from outlast.clouds.cloud import Boot, Requirements

    offer = home.cloud.offers(Requirements())[0]
    labels = {"outlast-workspace": home.workspace.id, "outlast-run": "ghost-1", "outlast-attempt": "1"}
    home.cloud.launch(offer, "ghost-1-a1", boot=Boot(script="sleep 1000"), labels=labels)
    home.cloud.launch(offer, "hands-off", boot=Boot(script="sleep 1000"), labels={"outlast-workspace": "other"})
    assert "ghost-1-a1" in home.outlast("plan").stdout
    assert "ghost-1-a1" in home.outlast("reap", "--dry-run").stdout
    assert len(home.machines()) == 2
    assert home.outlast("reap").returncode == 0
    assert [m.name for m in home.machines()] == ["hands-off"]
    assert "nothing to do" in home.outlast("plan").stdout


def test_a_supervisor_that_is_starting_is_reported_and_a_dead_one_is_not(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.run("true")
    for name, value in home.environment.items():
        monkeypatch.setenv(name, value)
    pid = start_supervisor(home.workspace)
    os.kill(pid, signal.SIGSTOP)  # before it can take its lease
    try:
        assert f"supervisor: starting (process {pid} of this computer)" in home.outlast("ps").stdout
        assert f"a supervisor is starting (process {pid}" in home.outlast("doctor").stdout
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert "supervisor: none" in home.outlast("ps").stdout


def test_every_listing_has_json(home: Home) -> None:
    assert home.outlast("run", "--name", "quick", "--", "echo", "hi").returncode == 0
    (row,) = json.loads(home.outlast("ps", "--all", "--json").stdout)
    assert (row["run"], row["state"]) == ("quick-1", "finished")
    result = json.loads(home.outlast("show", "quick", "--json").stdout)
    assert result["events"][0]["event"] == "submitted"
    assert json.loads(home.outlast("plan", "--json").stdout) == []
    assert json.loads(home.outlast("reap", "--json").stdout) == []
    assert home.outlast("logs", "q").stdout == "hi\n"


def test_a_closed_pipe_is_not_an_error(home: Home) -> None:
    home.write("loud.py", "for i in range(20000): print('line', i)\n")
    assert home.outlast("run", "--quiet", "--", "python3", "loud.py").returncode == 0
    pipe = subprocess.run(
        "outlast logs last | head -1",
        shell=True,
        cwd=home.project,
        env={**home.environment, "PATH": f"{Path(sys.executable).parent}:{home.environment['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert pipe.stdout == "line 0\n"
    assert "Traceback" not in pipe.stderr
    assert "rror" not in pipe.stderr
