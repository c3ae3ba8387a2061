"""Late, duplicate and misinformed supervisors do not harm a healthy run."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from outlast.clouds.cloud import Boot, Machine, Offer
from outlast.clouds.local.catalog import ZONES
from outlast.clouds.local.cloud import LocalCloud
from outlast.runs.story import event_key
from outlast.supervisor.loop import Supervisor
from outlast.supervisor.world import MarkLost
from tests.support.home import COUNTER, Home


class Watch:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def supervisor_of(home: Home, who: str = "me:1", watch: Watch | None = None) -> Supervisor:
    return Supervisor(home.workspace, {"local": home.cloud}, who=who, monotonic=watch or Watch())


@pytest.mark.full
def test_a_damaged_story_does_not_stop_the_supervision_of_other_runs(home: Home) -> None:
    home.write("wait.py", "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    damaged = home.run("python3", "wait.py")
    home.start("supervise")
    home.until(lambda: home.state(damaged).current, "start")
    home.workspace.bucket.put(event_key(damaged, home.state(damaged).length + 1), b'{"event": "pla')
    home.workspace.wake(damaged)
    home.write("count.py", COUNTER)
    healthy = home.run("python3", "count.py", "3", "0.05")
    home.until(lambda: home.state(healthy).closed, "the end of the healthy run")
    # It is unknown whether the damaged run is alive, so its machine is kept.
    assert [m.labels["outlast-run"] for m in home.machines()] == [damaged]
    [row] = [row for row in home.ps() if row["run"] == damaged]
    assert row["state"] == "damaged"


def test_a_machine_of_another_supervisor_is_never_treated_as_an_orphan(home: Home) -> None:
    home.write("wait.py", "import time\ntime.sleep(600)\n")
    run = home.run("python3", "wait.py")
    late, quick = supervisor_of(home, "late:1"), supervisor_of(home, "quick:2")
    home.until(lambda: late.round() == () and home.state(run).current, "attempt 1")
    home.cloud.delete(home.machines()[0].name)
    # The machine is replaced without the knowledge of the late supervisor.
    home.until(lambda: quick.round() == () and len(home.machines()) == 1, "the machine of attempt 2")
    late.round()
    late.round()
    assert [m.labels["outlast-attempt"] for m in home.machines()] == ["2"]


def test_reap_keeps_the_machine_of_a_run_without_a_heartbeat(home: Home) -> None:
    home.write("wait.py", "import time\ntime.sleep(600)\n")
    run = home.run("python3", "wait.py")
    supervisor = supervisor_of(home)
    home.until(lambda: supervisor.round() == () and home.state(run).current, "start")
    home.workspace.bucket.delete(f"heartbeats/{run}")
    answer = home.outlast("reap")
    assert answer.returncode == 0, answer.stderr
    assert len(home.machines()) == 1


def test_a_machine_has_time_to_boot_after_a_long_wait_for_capacity(home: Home) -> None:
    home.write("wait.py", "import time\ntime.sleep(600)\n")
    run = home.run("python3", "wait.py")
    for zone in ZONES:
        home.cloud.set_zone(zone, capacity=0)
    watch = Watch()
    now = [1e9]
    supervisor = Supervisor(home.workspace, {"local": home.cloud}, monotonic=watch, clock=lambda: now[0])
    home.until(lambda: supervisor.round() == () and home.state(run).waiting, "hold")
    watch.now += 3600
    now[0] += 3600
    for zone in ZONES:
        home.cloud.set_zone(zone, capacity=None)
    home.until(lambda: supervisor.round() and home.machines(), "launch")
    assert not [step for step in supervisor.round() if isinstance(step, MarkLost)]


def test_a_live_run_whose_heartbeat_was_lost_gets_a_new_one(home: Home) -> None:
    run = home.run("true")
    for zone in ZONES:
        home.cloud.set_zone(zone, capacity=0)
    supervisor = supervisor_of(home)
    home.until(lambda: supervisor.round() == () and home.state(run).waiting, "hold")
    home.workspace.bucket.delete(f"heartbeats/{run}")
    supervisor.round()
    assert run in home.workspace.heartbeats()


class Unbootable(LocalCloud):
    """A cloud whose machines stop before an agent starts on them."""

    def launch(self, offer: Offer, name: str, *, boot: Boot, labels: Mapping[str, str]) -> Machine:
        script = "#!/bin/sh\necho no room for outlast\nshutdown -h now\n"
        return super().launch(offer, name, boot=msgspec.structs.replace(boot, script=script), labels=labels)


@pytest.mark.full
def test_the_reason_is_reported_when_machines_end_before_the_command_starts(home: Home) -> None:
    home.cloud = Unbootable(str(home.root / "cloud"))
    run = home.run("true")
    supervisor = supervisor_of(home)
    home.until(lambda: supervisor.round() == () and home.state(run).ending, "the end")
    assert "never started in 8 attempts" in home.state(run).why
    assert "no room for outlast" in home.state(run).why
    assert home.machines() == []


@pytest.mark.full
def test_findings_before_the_start_of_the_command_are_in_the_log(home: Home) -> None:
    save = "import os, time\nopen(os.environ['OUTLAST_CHECKPOINT_DIR'] + '/one', 'w').write('1')\ntime.sleep(600)\n"
    home.write("save.py", save)
    run = home.outlast("submit", "--secret", "TOKEN", "--", "python3", "save.py", TOKEN="hunter2").stdout.strip()
    home.until(lambda: home.state(run).checkpoints, "a checkpoint")
    for entry in list(home.workspace.bucket.list(f"runs/{run}/parts/")):
        home.workspace.bucket.put(entry.key, b"damaged")
    home.cloud.drop_secrets(home.workspace.secrets_name(run))
    assert home.outlast("preempt", run, "--no-notice").returncode == 0
    home.until(lambda: home.state(run).ending, "the end")
    assert "secrets" in home.state(run).why
    log = [line for line in home.log(run).splitlines() if line.startswith("outlast: ")]
    assert log, home.log(run)
    followed = home.outlast("logs", "-f", run)
    assert log[0] in followed.stdout
