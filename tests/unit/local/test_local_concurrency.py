"""Many processes use one cloud at the same time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.processes import marked

# Every process makes random calls on the same few machines; only typed errors are allowed.
_USER = """
import random, sys, time
from outlast.clouds.cloud import Boot, Requirements
from outlast.clouds.local.cloud import LocalCloud
from outlast.errors import BadRequest, NotFound
cloud, rng = LocalCloud(sys.argv[1], mode=sys.argv[2]), random.Random(int(sys.argv[3]))
offer, end = cloud.offers(Requirements())[0], time.monotonic() + 1.5
deeds = [
    lambda name: cloud.launch(offer, name, boot=Boot(script="setsid sleep 1000 & sleep 1000"), labels={}),
    lambda name: cloud.launch(offer, name, boot=Boot(script="sleep 1000"), labels={}),
    lambda name: cloud.delete(name),
    lambda name: cloud.stop(name),
    lambda name: cloud.start(name),
    lambda name: cloud.preempt(name, notice=False),
    lambda name: cloud.set_metadata(name, {"mood": str(rng.random())}),
    lambda name: [machine.status for machine in cloud.machines()],
]
while time.monotonic() < end:
    try:
        rng.choice(deeds)(f"m{rng.randrange(2)}")
    except (NotFound, BadRequest):
        pass
"""


@pytest.mark.full
def test_a_crowd_leaves_a_sound_cloud_and_no_process_behind(cloud: LocalCloud, mode: str) -> None:
    command = [sys.executable, "-c", _USER, cloud.root, mode]
    users = [subprocess.Popen([*command, str(seed)]) for seed in range(4)]
    assert [user.wait(timeout=600) for user in users] == [0] * 4
    left = cloud.machines()
    assert {machine.status for machine in left} <= {"pending", "running", "stopping", "stopped"}
    markers = [f"{machine.name}.{(cloud._folder(machine.name).facts() or {})['id']}" for machine in left]
    for machine in left:
        cloud.delete(machine.name)
    assert cloud.machines() == []
    assert os.listdir(f"{cloud.root}/trash") == []
    assert [pid for marker in markers for pid in marked(marker)] == []
