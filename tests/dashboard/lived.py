"""A workspace with history, created by the real commands: runs with all outcomes, a sweep, a drill, an image …"""

from __future__ import annotations

import shutil
import subprocess

import msgspec

from outlast.clouds.local.engines import SERVERS
from outlast.cluster.record import Cluster, ClusterJob, Clusters, JobEnd, PastMachine
from outlast.errors import DrillFailed
from outlast.spec.cluster import parse_cluster
from tests.support.home import OUTLAST, Home

# Markup in texts of users. It sets a variable in the page if the browser interprets it.
ATTACK = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"

# The loss depends on the searched parameters and falls with the steps.
TRAIN = """
import argparse, binascii, json, math, os, struct, time, zlib
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--depth", type=int, default=5)
parser.add_argument("--opt", default="adam")
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--pause", type=float, default=0.05)
given = parser.parse_args()
path = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "step")
step = int(open(path).read()) if os.path.exists(path) else 0
print("ATTACK", flush=True)
floor = 0.05 * (math.log10(given.lr) + 2) ** 2 + 0.004 * (given.depth - 6) ** 2 + 0.08 * (given.opt == "sgd")
while step < given.steps:
    time.sleep(given.pause)
    step += 1
    loss = floor + math.exp(-step / 6) + 0.02 * math.sin(7 * step)
    print(f"step {step}/{given.steps} loss {loss:.6f}", flush=True)
    with open(os.environ["OUTLAST_METRICS_FILE"], "a") as file:
        row = {"step": step, "loss": loss, "accuracy": 1 - loss / 2, "ATTACK": loss}
        file.write(json.dumps(row) + "\\n")
    with open(path + ".tmp", "w") as file:
        file.write(str(step))
    os.replace(path + ".tmp", path)


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", binascii.crc32(kind + body))


rows = b"".join(b"\\0" + bytes((x * y * step) % 256 for x in range(96)) for y in range(64))
picture = b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", struct.pack(">2I5B", 96, 64, 8, 0, 0, 0, 0))
picture += chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
into = os.environ["OUTLAST_OUTPUT_DIR"]
open(os.path.join(into, "weights.png"), "wb").write(picture)
open(os.path.join(into, "scores.csv"), "w").write(f"name,score\\nloss,{loss}\\naccuracy,{1 - loss / 2}\\n")
open(os.path.join(into, "notes.txt"), "w").write("ATTACK\\n")
print(json.dumps({"loss": loss}), flush=True)
""".replace("ATTACK", ATTACK)
SEARCHED = ["--param", "lr=log(1e-4..1e-1)", "--param", "depth=3..10", "--param", "opt=adam,sgd", "--goal", "min:loss"]
IMAGE = 'name = "env"\nscript = "true"\ntest = "echo it works"\n'
CLUSTER = {"cluster": {"head": {"type": "local-1"}, "workers": {"cpu": {"type": "local-1", "max": 3}}}}


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """The names of its contents."""

    demo: str
    running: str
    failed: str
    cancelled: str
    sweep: str
    drill: str
    undisturbed: str
    image: str
    volume: str
    # Empty if no database server is installed.
    database: str
    cluster: str


class Life:
    """The creator of the workspace, which starts all commands in parallel."""

    def __init__(self, home: Home, *, epochs: int, trials: int, steps: int, preemptions: int) -> None:
        self.home = home
        (home.root / "home").mkdir(exist_ok=True)
        home.write("train.py", TRAIN)
        home.write("env.toml", IMAGE)
        train = ["--", "python", "train.py"]
        self.under_way = [
            self._start("demo", "--epochs", str(epochs)),
            self._start("sweep", "--name", "census", *SEARCHED, "--trials", str(trials), "--parallel", "3", *train),
            self._start(
                *["drill", "--name", "spirals", "--compare", "--preemptions", str(preemptions), "--no-notice"],
                *[
                    "--checkpoint",
                    "kept",
                    "--checkpoint-every",
                    "200ms",
                    *train,
                    "--steps",
                    str(steps),
                    "--pause",
                    "0.2",
                ],
            ),
            self._start("image", "build", "env.toml"),
        ]
        self.database = ""
        if not SERVERS["postgres"].missing() and shutil.which("openssl"):
            self.database = "scores"
            self.under_way.append(self._start("db", "create", "scores"))

    def _start(self, *argv: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [OUTLAST, *argv],
            cwd=self.home.project,
            env=self.home.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def _done(self, *argv: str) -> str:
        answer = self.home.outlast(*argv)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout.strip()

    def lead(self) -> Names:
        """Wait until everything has ended but one run."""
        train = ["--", "python", "train.py", "--steps", "100000", "--pause", "0.5"]
        cancelled = self._done("submit", "--name", "unwanted", *train)
        failed = self._done(
            *["submit", "--name", "broken", "--crashes", "1", "--", "python", "-c"],
            "import sys; print('no such column: age', file=sys.stderr); sys.exit(3)",
        )
        self._done("cancel", cancelled)
        running = self._done("submit", "--name", "census", *train)
        self._done("volume", "create", "data", "--size", "10GB")
        self._done("limits", "--cost-usd", "50", "--per", "month", "--max-machines", "20")
        forget_head(self.home)
        for process in self.under_way:
            output, _ = process.communicate(timeout=600)
            # On a busy computer the drill may fail a check; it writes its report anyway.
            fine = (0, DrillFailed.exit_code) if "drill" in process.args else (0,)
            assert process.returncode in fine, f"{process.args}: {process.returncode}: {output}"
        self.home.until(lambda: self.home.state(failed).ending == "failed", "the failure")
        self.home.until(lambda: self.home.state(cancelled).ending == "cancelled", "the cancellation")
        self.home.until(lambda: self.home.state(running).checkpoints, "a checkpoint of the running run")
        return Names(
            demo="demo-1",
            running=running,
            failed=failed,
            cancelled=cancelled,
            sweep="census-s1",
            undisturbed="spirals-undisturbed-1",
            drill="spirals-drill-1",
            image=self._image(),
            volume="data",
            database=self.database,
            cluster="gone",
        )

    def _image(self) -> str:
        return next(image.name for image in self.home.cloud.images() if image.family == "env")


def forget_head(home: Home) -> None:
    """Write the records of a cluster whose head was lost."""
    clusters = Clusters(home.workspace)
    head = "gone-h-000000"
    spec = parse_cluster(CLUSTER, name="gone", source="outlast.toml")
    cluster = Cluster(name="gone", id="feed01", cloud="local", spec=spec, phase="ready", who="ada", head=head)
    clusters.create(cluster)
    for number, command in enumerate(["python tune.py", f"python score.py '{ATTACK}'"], 1):
        job = ClusterJob(id=f"job-{number}", command=command, head=head, who="ada", asked_at=1_790_000_000.0 + number)
        clusters.add(cluster.name, "jobs", job.id, job)
    clusters.add(cluster.name, "ended", "job-1", JobEnd(id="job-1", status="SUCCEEDED", started_at=1.0, ended_at=9.0))
    past = PastMachine(machine="gone-w-1", cost_usd=0.42, ran_s=3600.0, why="preempted")
    clusters.add(cluster.name, "past", past.machine, past)
