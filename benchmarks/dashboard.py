"""The dashboard of a workspace with many runs, in a real browser: load time, latency of updates, memory per viewer.

    python benchmarks/dashboard.py [--quick] [--json] [--runs 1000] [--log-mb 200]

A tenth of the runs is alive. For comparison, in turns: the same rows as a static table served by the standard library,
the lower limit, and a NiceGUI page with one word, the cost of the library. `live` is the time from the append to the
story (or the log) until the browser shows it. Needs the Debian package chromium-headless-shell, and Playwright.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ledger import story
from measure import OUTLAST, PYTHON, Home, Row, Table, home, interleaved, once, print_tables, row

from outlast.code.record import CodeRecord
from outlast.runs import events as ev
from outlast.runs.logs import PIECE_BYTES, write_piece
from outlast.runs.story import event_key
from outlast.spec.parse import parse
from outlast.workspace import Heartbeat, RunRequest

_CHROMIUM = next(filter(os.path.exists, ("/usr/bin/chromium-headless-shell", "/usr/bin/chromium")), "")
_SWITCHES = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
_TIMES, _EVENTS, _VIEWERS = 5, 12, 10
_BARE = """
import sys, uvicorn
from fastapi import FastAPI
from nicegui import ui
@ui.page("/")
def page():
    ui.label("here").classes("seen")
app = FastAPI()
ui.run_with(app, tailwind=False, show_welcome_message=False)
print("up", flush=True)
uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
"""


def fill(bench: Home, count: int) -> list[str]:
    """Fill the workspace and return the names of live runs."""
    bucket, now, spec = bench.workspace.bucket, time.time(), parse({"name": "run", "command": "true"})
    alive = []
    for number in range(1, count + 1):
        run, lives = f"run-{number}", number % 10 == 0
        begin = now - 3600 if lives else now - 86400.0 * 30 * number / count
        events = story(run, begin)[:-2] if lives else story(run, begin)
        for at, event in enumerate(events, 1):
            bucket.create(event_key(run, at), ev.encode(event), durable=False)
        bench.workspace.write_request(RunRequest(run=run, spec=spec, code=CodeRecord(), who="ann", submitted_at=begin))
        if lives:
            alive.append(run)
            bench.workspace.write_heartbeat(run, Heartbeat(attempt=2, phase="running", step=number, length=len(events)))
    return alive


@contextmanager
def _process(bench: Home, argv: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    process = bench.start(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().decode().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


@contextmanager
def _static(bench: Home, runs: list[str]) -> Iterator[str]:
    """Serve the same rows as a static table."""
    cells = "".join(f"<tr><td>{run}<td>finished<td>2<td>local1-a<td>$0.027<td>33m</tr>" for run in runs)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "index.html"), "w") as file:
            file.write(f"<!doctype html><table class=seen>{cells}</table>")
        handler = functools.partial(_Quiet, directory=folder)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def _seen_s(browser: Any, link: str, sign: str) -> tuple[float, float]:
    """Return the time to the first paint and to the expected content, in a new browser."""
    context = browser.new_context()
    try:
        page = context.new_page()
        if "token" in link:  # do not measure the exchange of the link for a cookie
            page.goto(link)
            page.wait_for_selector(".ol-header")
            link = link.partition("?")[0]
            page.goto("about:blank")
        began = time.perf_counter()
        page.goto(link, wait_until="commit")
        page.wait_for_selector(sign)
        took = time.perf_counter() - began
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
        return float(paint) / 1000, took
    finally:
        context.close()


def _rss_mb(pid: int) -> float:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("Pss:"))


def _viewer_mb(browser: Any, pid: int, link: str, sign: str) -> float:
    """Return the server's memory per viewer."""
    contexts = [browser.new_context() for _ in range(_VIEWERS + 1)]
    try:
        for number, context in enumerate(contexts):
            page = context.new_page()
            page.goto(link)
            page.wait_for_selector(sign)
            if not number:
                time.sleep(2)
                before = _rss_mb(pid)
        time.sleep(2)
        return (_rss_mb(pid) - before) / _VIEWERS
    finally:
        for context in contexts:
            context.close()


def _live_s(page: Any, happen: Callable[[int], str]) -> list[float]:
    """Return the times from an event until the browser shows it; `happen` causes the event and returns its text."""
    took = []
    for number in range(_EVENTS):
        time.sleep(0.137 * (number % 5))  # vary the moment within the reader's polling interval
        began = time.perf_counter()
        sign = happen(number)
        page.wait_for_function(sign, polling="raf")
        took.append(time.perf_counter() - began)
    return took


def _runs_live(bench: Home, page: Any, alive: list[str]) -> list[float]:
    page.get_by_label("Filter runs").fill(alive[0])
    page.wait_for_selector(".ag-row")
    story_of = bench.workspace.story(alive[0])

    def happen(number: int) -> str:
        why = f"reason {number}"
        story_of.append_or_raise(ev.Waiting(why=why, at=time.time()), nonce=why)
        return f"document.querySelector('.ag-row [col-id=why]')?.textContent === '{why}'"

    return _live_s(page, happen)


def _log(bench: Home, browser: Any, link: str, run: str, mb: int) -> tuple[list[float], dict[str, float]]:
    """Measure a long log: opening its end, showing a new line, and searching all of it."""
    line = b"%09d a line of output that a program prints all day long, and that no user ever reads\n"
    count = PIECE_BYTES // len(line % 0)
    pieces = mb * 1_000_000 // (count * len(line % 0))
    for number in range(pieces):
        body = b"".join(line % (number * count + at) for at in range(count))
        write_piece(bench.workspace.bucket, run, 2, number + 1, body)
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(link)
        page.wait_for_selector(".ol-header")
        began = time.perf_counter()
        page.goto(f"{link.partition('?')[0]}run/{run}?tab=log")
        page.wait_for_function(f"document.querySelector('#ol-lines')?.textContent.includes('{pieces * count - 1:09d}')")
        opened = time.perf_counter() - began

        def happen(number: int) -> str:
            write_piece(bench.workspace.bucket, run, 2, pieces + 1 + number, f"new line {number}!\n".encode())
            return f"document.querySelector('#ol-lines').textContent.includes('new line {number}!')"

        live = _live_s(page, happen)
        began = time.perf_counter()
        page.get_by_label("Search the log").fill(f"new line {_EVENTS - 1}!")
        page.wait_for_function("document.querySelector('#ol-hits')?.textContent.startsWith('1 lines')", timeout=120_000)
        return live, {"opened": opened, "searched": time.perf_counter() - began}
    finally:
        context.close()


def measure(count: int, mb: int) -> tuple[list[Table], dict[str, Any]]:
    from playwright.sync_api import sync_playwright

    with home() as bench, sync_playwright() as driver:
        alive = fill(bench, count)
        browser = driver.chromium.launch(executable_path=_CHROMIUM, args=_SWITCHES)
        bare_port = str(20_000 + os.getpid() % 10_000)
        with (
            _process(bench, [OUTLAST, "ui", "--port", "0", "--no-open"]) as (ours, link),
            _process(bench, [PYTHON, "-c", _BARE, bare_port]) as (bare, _),
            _static(bench, [f"run-{number}" for number in range(count)]) as table,
        ):
            bare_link = f"http://127.0.0.1:{bare_port}/"
            paints: dict[str, list[float]] = {}

            def case(name: str, address: str, sign: str) -> Callable[[], float]:
                def measured() -> float:
                    paint, seen = _seen_s(browser, address, sign)
                    paints.setdefault(name, []).append(paint)
                    return seen

                return measured

            found = interleaved(
                {
                    "static": case("static", table, ".seen tr"),
                    "bare": case("bare", bare_link, ".seen"),
                    "page": case("page", link, ".ag-row"),
                },
                times=_TIMES,
            )
            memory = {
                "page": _viewer_mb(browser, ours.pid, link, ".ag-row"),
                "bare": _viewer_mb(browser, bare.pid, bare_link, ".seen"),
            }
            context = browser.new_context()
            page = context.new_page()
            page.goto(link)
            page.wait_for_selector(".ag-row")
            live = _runs_live(bench, page, alive)
            context.close()
            log_live, log = _log(bench, browser, link, alive[1], mb)
            server_mb = _rss_mb(ours.pid)
        browser.close()
    data = {"seen": found, "paint": paints, "memory": memory, "live": live, "log_live": log_live, "log": log}
    return _tables(count, mb, {**data, "server_mb": server_mb}), data


def _tables(count: int, mb: int, data: dict[str, Any]) -> list[Table]:
    seen, paint = data["seen"], data["paint"]

    def median(samples: list[float]) -> float:
        return sorted(samples)[len(samples) // 2]

    names = {"static": "a static table", "bare": "NiceGUI, one word", "page": "the overview"}
    rows: list[Row] = []
    for name, title in names.items():
        for what, samples in (("first paint", paint[name]), ("content there", seen[name])):
            base = (paint if what == "first paint" else seen)["bare"]
            ratio = f"{median(samples) / max(median(base), 1e-9):.2f}x NiceGUI alone"
            rows.append(row(f"{title}: {what}", [1000 * s for s in samples], "ms", against=ratio))
    goal = {"goal": "< 2 s"}
    lives = [
        row("event in a story until shown", data["live"], "s", **goal, met=max(data["live"]) < 2),
        row(f"line of a log of {mb} MB until shown", data["log_live"], "s", **goal, met=max(data["log_live"]) < 2),
        once(f"the end of a log of {mb} MB, opened", data["log"]["opened"], "s"),
        once(
            f"a log of {mb} MB, searched",
            data["log"]["searched"],
            "s",
            against=f"{mb / data['log']['searched']:,.0f} MB/s",
        ),
    ]
    memory = data["memory"]
    viewers = [
        once(
            "one more viewer",
            memory["page"],
            "MB",
            against=f"{memory['page'] / max(memory['bare'], 0.01):.1f}x NiceGUI alone",
        ),
        once("the server, with all runs read", data["server_mb"], "MB"),
    ]
    return [
        Table(
            title=f"The dashboard with {count:,} runs ({_TIMES} times each, interleaved, a new browser each time)",
            rows=rows,
        ),
        Table(title=f"Live updates with {count:,} runs ({_EVENTS} events each)", rows=lives),
        Table(title=f"Memory of the server (proportional set size, {_VIEWERS} viewers)", rows=viewers),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--log-mb", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.runs, options.log_mb = 200, 20
    if not _CHROMIUM:
        print("not measured: needs the Debian package chromium-headless-shell")
        return 0
    tables, data = measure(options.runs, options.log_mb)
    if options.json:
        print(json.dumps(data))
    else:
        print_tables(*tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
