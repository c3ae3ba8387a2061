"""Screenshots of every page of the dashboard for docs/pictures, with Chromium and a workspace of real runs.

Run by `make pictures`. With names (`make pictures PICTURES="cost sweep"`) only those. With KEEP=folder the workspace is
created there, kept, and reused the next time.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.dashboard.lived import Life, Names  # noqa: E402
from tests.support.cluster import Bench  # noqa: E402
from tests.support.dashboard import Browser, Lived, Served, Visit, chromium  # noqa: E402

from outlast.clouds.local.probe import why_not  # noqa: E402
from outlast.code.record import CodeRecord  # noqa: E402
from outlast.runs import events as ev  # noqa: E402
from outlast.spec.parse import parse  # noqa: E402

INTO = ROOT / "docs" / "pictures"
BYTES_MAX = 150_000
WAITING = "patient-1"
WIDE, PHONE = (1280, 800), (390, 844)


def shots(names: Names) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Return picture name → path of the page, the text to wait for, and the view."""
    sweep, run = f"/sweeps/{names.sweep}", f"/run/{names.drill}"
    return {
        "overview": ("/", f"text={names.running}", {"size": (1280, 1100)}),
        "overview-dark": ("/", f"text={names.running}", {"size": (1280, 1100), "dark": True}),
        "overview-phone": ("/", f"text={names.running}", {"size": PHONE}),
        "run": (f"/run/{names.demo}", "text=finished", {}),
        "run-failed": (f"/run/{names.failed}", ".ol-failure .ol-pre", {"size": (1280, 640)}),
        "run-failed-phone": (f"/run/{names.failed}", ".ol-failure .ol-pre", {"size": PHONE}),
        "run-waiting": (f"/run/{WAITING}", "text=What would help", {"size": (1280, 720)}),
        "run-waiting-dark": (f"/run/{WAITING}", "text=What would help", {"size": (1280, 720), "dark": True}),
        "run-metrics": (f"{run}?tab=metrics&with={names.undisturbed}", "text=accuracy", {"size": (1280, 640)}),
        "run-log": (f"{run}?tab=log", ".ol-line", {}),
        "run-outputs": (f"{run}?tab=outputs", "text=scores.csv", {}),
        "run-spec": (f"{run}?tab=spec", "text=as recorded", {}),
        "run-phone": (f"/run/{names.demo}", "text=finished", {"size": PHONE}),
        "sweeps": ("/sweeps", f"text={names.sweep}", {}),
        "sweep": (sweep, ".ol-picture-importance .main-svg", {"size": (1280, 1400)}),
        "sweep-dark": (sweep, ".ol-picture-importance .main-svg", {"size": (1280, 1400), "dark": True}),
        "clusters": ("/clusters", f"text={names.cluster}", {}),
        "cluster-gone": (f"/clusters/{names.cluster}", "text=Ray does not answer", {}),
        "images": ("/images", f"text={names.image}", {}),
        "image": (f"/images/local/{names.image}", "text=Build output", {}),
        "resources": ("/resources", f"text={names.volume}", {}),
        "cost": ("/cost", "text=By cause", {"size": (1280, 1100)}),
        "cost-phone": ("/cost", "text=By cause", {"size": PHONE}),
        "drills": ("/drills", f"text={names.drill}", {}),
        "drill": (f"/drills/{names.drill}", "text=Handovers", {"size": (1280, 1200)}),
    }


def let_a_run_wait(home: Lived) -> None:
    """Submit a run that all zones have refused for an hour. Supervisors leave these zones alone."""
    if home.workspace.story(WAITING).refresh().alive:
        return
    spec = parse({"name": "patient", "command": "python train.py"})
    run = home.workspace.reserve(spec, CodeRecord(), who="ada", version="0", run=WAITING).run
    now, offers = home.workspace.clock(), home.cloud.offers(spec.machine.needs(spot=True))
    cheapest = {one.zone: one for one in sorted(offers, key=lambda one: -one.price_usd_per_hour)}
    events: list[ev.Event] = [ev.Submitted(who="ada", at=now)]
    for number, offer in enumerate(cheapest.values(), 1):
        keys = tuple(one.key for one in offers if one.zone == offer.zone)
        place = {
            name: getattr(offer, name) for name in ("cloud", "region", "zone", "type", "spot", "price_usd_per_hour")
        }
        events.append(ev.Placed(attempt=number, at=now, **place))
        why = f"no spot capacity for {offer.type} in {offer.zone}"
        events.append(ev.LaunchRefused(attempt=number, why=why, until=now + 3600.0, offers=keys, at=now))
    for event in events:
        home.workspace.story(run).append_or_raise(event, nonce=home.workspace.ids())
    home.workspace.wake(run)


def take(visit: Visit, path: str, seen: str, *, size: tuple[int, int] = WIDE, dark: bool = False) -> bytes:
    page = visit.open(path, width=size[0], height=size[1], dark=dark)
    page.wait_for_selector(seen, timeout=300_000)
    # A canvas has no element to wait for: the page is complete when two screenshots are equal.
    before, now = b"", page.screenshot(animations="disabled", caret="hide")
    for _ in range(20):
        page.wait_for_timeout(400)
        before, now = now, page.screenshot(animations="disabled", caret="hide")
        if before == now:
            break
    page.close()
    picture: bytes = now
    return picture


def small(picture: bytes) -> bytes:
    """Save the image, with fewer colours if it exceeds 150 kB."""
    from PIL import Image

    whole = Image.open(io.BytesIO(picture)).convert("RGB")
    into = io.BytesIO()
    whole.save(into, "PNG", optimize=True)
    for colours in (256, 128, 64, 32):
        if into.tell() <= BYTES_MAX:
            break
        into = io.BytesIO()
        fewer = whole.quantize(colours, Image.Quantize.MEDIANCUT, kmeans=4, dither=Image.Dither.NONE)
        fewer.save(into, "PNG", optimize=True)
    return into.getvalue()


JOB = """
import ray, time
ray.init()

@ray.remote(num_cpus=0.5)
def score(part):
    time.sleep(20)
    return part * part

print("scoring 4 parts", flush=True)
for part, found in enumerate(ray.get([score.remote(part) for part in range(4)])):
    print(f"part {part}: {found}", flush=True)
time.sleep(600)
"""


def of_a_cluster(browser: Browser) -> bytes:
    """Bring up a real Ray cluster with a head, a worker and a job. Takes minutes."""
    root = Path(tempfile.mkdtemp(prefix="outlast-cluster-"))
    mode = next((mode for mode in ("root", "userns") if not why_not(mode, root=str(root))), "")
    if not mode:
        raise SystemExit("cluster: machines have no network of their own here")
    (root / "home").mkdir()
    os.environ["HOME"] = str(root / "home")
    bench = Bench(root, mode)
    bench.environment["LOGNAME"] = "ada"
    (bench.project / "score.py").write_text(JOB)
    try:
        bench.good("cluster", "up")
        job = bench.good("cluster", "submit", "small", "--", "python", "score.py").split()[0]
        served = Served(bench)
        try:
            # Wait for a worker in Ray and for the job's output.
            seen = ".ol-pile:has-text('scoring 4 parts') .ol-node:nth-child(2) .ol-gauge"
            return take(Visit(browser, served.link), f"/clusters/small?job={job}", seen)
        finally:
            served.end()
    finally:
        bench.clean()
        shutil.rmtree(root, ignore_errors=True)


def lived(root: Path) -> Lived:
    home = Lived(root)
    kept = root / "names.json"
    if kept.exists():
        home.names = msgspec.json.decode(kept.read_bytes(), type=Names)
    else:
        home.names = Life(home, epochs=40, trials=24, steps=40, preemptions=3).lead()
        kept.write_bytes(msgspec.json.encode(home.names))
    return home


def write(name: str, picture: bytes) -> None:
    body = small(picture)
    (INTO / f"{name}.png").write_bytes(body)
    print(f"{name}.png  {len(body) / 1000:.0f} kB", flush=True)


def main(wanted: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    keep = os.environ.get("KEEP", "")
    root = Path(keep or tempfile.mkdtemp(prefix="outlast-pictures-")).absolute()
    INTO.mkdir(exist_ok=True)
    home = lived(root)
    let_a_run_wait(home)
    served = Served(home)
    try:
        with sync_playwright() as driver, chromium(driver) as browser:
            visit = Visit(browser, served.link)
            for name, (path, seen, how) in shots(home.names).items():
                if wanted and name not in wanted:
                    continue
                write(name, take(visit, path, seen, **how))
            assert not visit.errors, visit.errors
            assert not visit.strangers, visit.strangers
            if not wanted or "cluster" in wanted:
                write("cluster", of_a_cluster(browser))
    finally:
        served.end()
        if not keep:
            home.clean()
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
