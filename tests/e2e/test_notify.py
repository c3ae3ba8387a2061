"""Notifications of a real run by real supervisors, one of which is killed while the webhook hangs."""

from __future__ import annotations

import json
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.home import Home


class Hook:
    """A webhook that does not answer before `open` is set."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.waiting = threading.Event()
        self.accepted: list[str] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.waiting.set()
                if not hook.open.is_set():
                    hook.open.wait(60)
                    return  # its sender is dead
                hook.accepted.append(body["event"])
                self.send_response(204)
                self.end_headers()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


@pytest.mark.full
def test_the_message_of_a_killed_supervisor_is_sent_once_by_the_next(home: Home) -> None:
    hook = Hook()
    home.write("outlast.toml", '[notify]\nwebhook = "HOOK"\nevents = ["started", "finished"]\n')
    process = home.start("run", "--no-pull", "--", "bash", "-c", "sleep 5; echo done", HOOK=hook.url)
    home.until(hook.waiting.is_set, "the first message")
    process.send_signal(signal.SIGKILL)
    process.wait()
    hook.open.set()
    successor = home.start("supervise", HOOK=hook.url)
    home.until(lambda: hook.accepted == ["started", "finished"], "both messages", within_s=200)
    assert home.state().ending == "finished"
    home.until(lambda: not home.workspace.bucket.children("notify/"), "the outbox to be closed")
    successor.terminate()
    successor.wait()
    hook.server.shutdown()


def test_the_targets_are_listed_and_tested(home: Home) -> None:
    home.write("outlast.toml", '[notify]\ncommand = "TELL_ME"\n')
    answer = home.outlast("notify")
    assert (answer.returncode, "TELL_ME: not set on this computer" in answer.stderr) == (1, True)
    answer = home.outlast("notify", "--test", "--json", TELL_ME=f"cat > {home.root}/message")
    assert (answer.returncode, json.loads(answer.stdout)) == (0, {"command TELL_ME": ""})
    assert json.loads((home.root / "message").read_text())["event"] == "test"
    home.write("outlast.toml", 'name = "run"\n')
    answer = home.outlast("notify")
    assert (answer.returncode, "has no `[notify]`" in answer.stderr) == (2, True)
