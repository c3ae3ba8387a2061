"""The drill on scripts in the style of PyTorch's tutorials, without outlast."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.home import Home

pytest.importorskip("torch", reason="torch is not installed: make frameworks")

SCRIPT = """
import os, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(256, 20)
trainloader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=32, shuffle=True)
net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
PATH, start = "checkpoints/model.pt", 0
if os.path.exists(PATH):
    checkpoint = torch.load(PATH)
    net.load_state_dict(checkpoint["model_state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
    torch.set_rng_state(checkpoint["rng_state"])
    start = checkpoint["epoch"]
os.makedirs("checkpoints", exist_ok=True)
for epoch in range(start, 25):
    running_loss = 0.0
    for inputs, labels in trainloader:
        optimizer.zero_grad()
        loss = criterion(net(inputs), labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        time.sleep(0.01)
    print(f"[{epoch + 1}, {len(trainloader):5d}] loss: {running_loss / len(trainloader):.6f}", flush=True)
    torch.save({"epoch": epoch + 1, "model_state_dict": net.state_dict(), "rng_state": torch.get_rng_state(),
                "optimizer_state_dict": optimizer.state_dict()}, PATH)
print("Finished Training")
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    home.environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), home.environment["PATH"]])
    home.write("outlast.toml", '[checkpoint]\npath = "checkpoints"\n')
    yield home
    home.clean()


def verdicts(home: Home, script: str) -> tuple[int, dict[str, Any]]:
    home.write("train.py", script)
    answer = home.outlast(
        "drill", "--json", "--compare", "--preemptions", "1", "--", "python", "train.py", timeout_s=300.0
    )
    assert answer.stdout, answer.stderr
    return answer.returncode, {found["question"]: found["verdict"] for found in json.loads(answer.stdout)["findings"]}


@pytest.mark.parametrize(
    ("forgets", "code"),
    [
        ("nothing", 0),
        ('    optimizer.load_state_dict(checkpoint["optimizer_state_dict"])\n', 8),
        ('    torch.set_rng_state(checkpoint["rng_state"])\n', 8),
    ],
    ids=["forgets nothing", "forgets its optimizer", "forgets its shuffling order"],
)
def test_a_tutorial_is_judged_by_the_state_that_it_does_not_save(home: Home, forgets: str, code: int) -> None:
    answer, found = verdicts(home, SCRIPT.replace(forgets, ""))
    assert found["resumes"] == found["from the right step"] == "pass", found
    assert (found["same result as undisturbed"] == "pass", answer) == (code == 0, code)


def test_a_tutorial_without_checkpoints_fails(home: Home) -> None:
    answer, found = verdicts(
        home, SCRIPT.replace("    torch.save(", "    dict(").replace("state_dict()}, PATH)", "state_dict()})")
    )
    assert (answer, found["resumes"]) == (8, "fail")
