"""The footprint of outlast: installed size, memory, idle CPU, and the commit of a checkpoint."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from measure import OUTLAST, PYTHON, Home, Row, Table, home, interleaved, once, row, until

from outlast.agent.attempt import AttemptWriter
from outlast.agent.checkpoint.checkpointer import Checkpointer
from outlast.agent.checkpoint.snapshot import take_snapshot
from outlast.agent.paths import paths_for
from outlast.code.record import CodeRecord
from outlast.runs import events as ev
from outlast.spec.spec import CheckpointSpec, Spec
from outlast.submit.run import submit
from outlast.supervisor.observe import Observer

_MB = 1e6
_CHECKPOINT_BYTES = 200_000_000


def size() -> Table:
    """Install the wheel and its dependencies into an empty folder, without pip."""
    source = str(Path(__file__).resolve().parent.parent)
    pip = [PYTHON, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as folder:
        target = os.path.join(folder, "installed")
        try:
            subprocess.run([*pip, "wheel", "--no-deps", "-w", folder, source], check=True, capture_output=True)
            wheel = next(str(path) for path in Path(folder).glob("*.whl"))
            subprocess.run([*pip, "install", "--target", target, wheel], check=True, capture_output=True)
        except subprocess.CalledProcessError as problem:
            why = problem.stderr.decode(errors="replace").strip().splitlines()[-1:]
            return Table("Installed size", [], f"Not measured: {' '.join(why)}")
        each = {name: _bytes_below(os.path.join(target, name)) for name in os.listdir(target)}
    largest = sorted(each, key=lambda name: -each[name])[:4]
    total = sum(each.values())
    rows = [once("core with its dependencies", total / _MB, "MB", goal="< 60 MB", met=total < 60 * _MB)]
    rows += [once(f"... {name}", each[name] / _MB, "MB") for name in largest]
    note = "Peer: SkyPilot 0.14.1 is 459 MB without clouds and 802 MB with gcp and aws."
    return Table("Installed size", rows, note)


def _bytes_below(path: str) -> int:
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(where, name)) for where, _, names in os.walk(path) for name in names)


def start_runs(where: Home, count: int) -> subprocess.Popen[bytes]:
    """Start runs that only sleep, and their supervisor."""
    for _ in range(count):
        spec = Spec(name="sleeper", command=("sleep", "3600"))
        submit(where.workspace, {"local": where.cloud}, spec, environment=where.environment)
    quiet = subprocess.DEVNULL
    supervisor = where.start([OUTLAST, "supervise"], stdout=quiet, stderr=quiet)
    runs = where.workspace.runs()
    until(lambda: all(any(a.started_at for a in where.workspace.story(r).refresh().attempts) for r in runs), "started")
    return supervisor


def end_runs(supervisor: subprocess.Popen[bytes]) -> None:
    supervisor.terminate()
    supervisor.wait(30)


def process_of(where: Home, module: str) -> int:
    """Return the process of this home that runs a module of ours, also on machines with a separate root."""
    signs = [where.root, *(f"OUTLAST_MACHINE={machine.name}." for machine in where.cloud.machines())]
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                argv = Path(f"/proc/{entry}/cmdline").read_bytes()
                variables = Path(f"/proc/{entry}/environ").read_bytes()
            except OSError:
                continue
            if f"-m\0{module}".encode() in argv and any(sign.encode() in variables + argv for sign in signs):
                return int(entry)
    raise LookupError(module)


def _memory_mb(pid: int) -> tuple[float, float]:
    """Return the resident and the proportional set size."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:] if ":" in line
    )
    return tuple(int(fields[name].split()[0]) * 1024 / _MB for name in ("Rss", "Pss"))  # type: ignore[return-value]


def memory(times: int) -> Table:
    with home() as where:
        supervisor = start_runs(where, 1)
        time.sleep(2)
        pids = {
            "supervisor": supervisor.pid,
            "agent": process_of(where, "outlast.agent"),
            "shim of a local machine": process_of(where, "outlast.clouds.local.shim"),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in pids}
        for _ in range(times):
            for name, pid in pids.items():
                found[name].append(_memory_mb(pid))
            time.sleep(0.5)
        end_runs(supervisor)
    rows: list[Row] = []
    for name, samples in found.items():
        for at, kind in enumerate(("RSS", "PSS")):
            values = [sample[at] for sample in samples]
            goal = {"goal": "< 60 MB", "met": max(values) < 60} if name == "agent" else {}
            rows.append(row(f"{name}, {kind}", values, "MB", **goal))
    note = (
        "Peer: SkyPilot's server 0.9-1.8 GB, 12 controller processes 1.5 GB for one managed job, 945 MB on the machine."
    )
    return Table("Memory while a run is under way", rows, note)


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _share(pid: int) -> Callable[[], float]:
    before, began = _processor_s(pid), time.monotonic()
    return lambda: 100 * (_processor_s(pid) - before) / (time.monotonic() - began)


def quiet(runs: int, for_s: float) -> Table:
    """Measure idle CPU usage, in percent of one core."""
    with home() as where:
        supervisor = start_runs(where, runs)
        time.sleep(3)
        shares = {
            "supervisor": _share(supervisor.pid),
            "one agent": _share(process_of(where, "outlast.agent")),
            "one shim": _share(process_of(where, "outlast.clouds.local.shim")),
        }
        time.sleep(for_s)
        rows = [once(f"{name}, share of a core", share(), "%") for name, share in shares.items()]
        observer = Observer(where.workspace, {"local": where.cloud}, monotonic=time.monotonic, read_only=True)
        observer.observe(time.time())
        rounds = interleaved({"observe": lambda: _timed(lambda: observer.observe(time.time()))}, times=50)
        end_runs(supervisor)
    rows.append(row("one observe round", [1e3 * sample for sample in rounds["observe"]], "ms"))
    return Table(f"Idle, {runs} running" + (" run" if runs == 1 else " runs") + f", for {for_s:g} s", rows)


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def checkpoint(times: int) -> Table:
    """Commit one large file with the agent's checkpointer; each time with other content."""
    with home() as where:
        workspace = where.workspace
        run = workspace.reserve(Spec(name="saver", command=("true",)), CodeRecord(), who="", version="0").run
        story = workspace.story(run)
        placed = ev.Placed(
            attempt=1, cloud="local", region="here", zone="here-a", type="small", spot=True, price_usd_per_hour=0.01,
            on_demand_usd_per_hour=0.03, machine=workspace.machine_name(run, 1),
        )  # fmt: skip
        for event in (ev.Submitted(), placed, ev.Started(attempt=1)):
            story.append_or_raise(event, nonce=workspace.ids())
        folder = os.path.join(where.root, "checkpoints")
        os.makedirs(folder)
        path, copy = os.path.join(folder, "model.pt"), os.path.join(where.root, "copy.pt")
        attempt = AttemptWriter(workspace, run, 1, clock=time.time, ids=workspace.ids)
        place = msgspec.structs.replace(paths_for(workspace.request(run), where.root, cache=""), checkpoints=folder)
        saver = Checkpointer(attempt, paths=place, rule=CheckpointSpec(keep=2), report=print)

        def committed() -> float:
            with open(path, "wb") as file:
                file.write(os.urandom(1 << 20) * (_CHECKPOINT_BYTES >> 20))
                file.flush()
                os.fsync(file.fileno())
            return _timed(lambda: saver.commit(take_snapshot(folder)))

        def copied() -> float:
            return _timed(lambda: _copy(path, copy))

        found = interleaved({"commit": committed, "cp and fsync": copied}, times=times)
    rows = [row(what, [1e3 * sample for sample in samples], "ms") for what, samples in found.items()]
    return Table(
        "Commit of one checkpoint file of 200 MB", rows, "For information: hashed, copied, synced and recorded."
    )


def _copy(source: str, target: str) -> None:
    shutil.copyfile(source, target)
    with open(target, "rb") as file:
        os.fsync(file.fileno())
    os.unlink(target)
