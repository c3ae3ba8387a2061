"""Notifications: which events are reported, and one delivery of each, with real HTTP servers on the loopback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from outlast.code.record import CodeRecord
from outlast.errors import SpecError
from outlast.notify.messages import messages_of, sample_message
from outlast.notify.outbox import Outbox, open_outbox, send_now
from outlast.runs import events as ev
from outlast.runs.state import fold
from outlast.spec.parse import parse
from outlast.spec.spec import NotifySpec, NotifyTarget, Spec
from outlast.store.folder import FolderBucket
from outlast.workspace import Workspace, open_workspace

HOOK = NotifyTarget(kind="webhook", reference="HOOK")
ALL = NotifySpec(events=("started", "preempted", "resumed", "finished", "waiting"), targets=(HOOK,))


class Receiver:
    """A webhook. It refuses `refuse` calls, and keeps the bodies that it accepted."""

    def __init__(self) -> None:
        self.accepted: list[dict[str, object]] = []
        self.refuse = 0
        self.calls = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.calls += 1
                if receiver.refuse:
                    receiver.refuse -= 1
                    if receiver.refuse % 2:
                        self.connection.close()  # without an answer
                        return
                    self.send_error(503)
                    return
                assert self.headers["Idempotency-Key"] == body["id"]
                receiver.accepted.append(body)
                self.send_response(200)
                self.end_headers()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def events(self) -> list[object]:
        return [body["event"] for body in self.accepted]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(str(tmp_path / "workspace"))


def placed(attempt: int) -> ev.Placed:
    return ev.Placed(
        attempt=attempt, cloud="local", region="r", zone="z", type="t", spot=True, price_usd_per_hour=1.0, machine="m"
    )


def preempted_once() -> list[ev.Event]:
    return [
        ev.Submitted(who="ada"),
        placed(1),
        ev.Started(attempt=1),
        ev.Noticed(attempt=1, why="the cloud takes it", grace_s=30),
        ev.Lost(attempt=1, why="gone", preempted=True),
        ev.Released(attempt=1, cost_usd=1.0),
        placed(2),
        ev.Started(attempt=2, resumed_from="0001-00001"),
        ev.Finished(attempt=2),
        ev.Released(attempt=2, cost_usd=1.0),
    ]


EVENTS = ["started", "preempted", "resumed", "finished"]


def submit(workspace: Workspace, events: list[ev.Event], rule: NotifySpec = ALL) -> str:
    spec = msgspec.structs.replace(Spec(name="run", command="train"), notify=rule)
    run = workspace.reserve(spec, CodeRecord(), who="ada", version="").run
    open_outbox(workspace, run)
    for number, event in enumerate(events):
        workspace.story(run).append_or_raise(event, nonce=f"{run} {number}")
    return run


def outbox(workspace: Workspace, url: str, *, clock: list[float] | None = None, claim_s: float = 45.0) -> Outbox:
    fresh = Workspace(FolderBucket(workspace.url))
    now = clock if clock is not None else [0.0]
    return Outbox(fresh, monotonic=lambda: now[0], environment={"HOOK": url}, claim_s=claim_s)


def test_each_event_is_sent_once_in_order_and_the_outbox_is_closed(workspace: Workspace, receiver: Receiver) -> None:
    run = submit(workspace, preempted_once())
    sender = outbox(workspace, receiver.url)
    assert sender.deliver() == 0
    assert receiver.events == EVENTS
    assert {body["run"] for body in receiver.accepted} == {run}
    assert receiver.accepted[0]["text"] == receiver.accepted[0]["content"] == f"{run} started"
    assert list(workspace.bucket.list("notify/")) == []
    assert sender.deliver() == 0
    assert len(receiver.accepted) == 4


def test_two_supervisors_and_a_flapping_webhook_send_each_event_once(workspace: Workspace, receiver: Receiver) -> None:
    runs = [submit(workspace, preempted_once()) for _ in range(4)]
    receiver.refuse = 9
    clock = [0.0]
    senders = [outbox(workspace, receiver.url, clock=clock) for _ in range(2)]

    def work(sender: Outbox) -> None:
        while sender.deliver():
            clock[0] += 60.0  # beyond the pause after a failure

    threads = [threading.Thread(target=work, args=(sender,)) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run in runs:
        assert [body["event"] for body in receiver.accepted if body["run"] == run] == EVENTS
    assert receiver.calls == 9 + 4 * len(EVENTS)
    assert list(workspace.bucket.list("notify/")) == []


def test_a_message_claimed_by_a_dead_supervisor_is_sent_after_the_claim_expires(
    workspace: Workspace, receiver: Receiver
) -> None:
    run = submit(workspace, preempted_once()[:3])
    workspace.bucket.create(f"notify/{run}/00000003-started.0.claim-1", b"")
    assert outbox(workspace, receiver.url).deliver() == 1
    assert receiver.events == []
    assert outbox(workspace, receiver.url, claim_s=0.0).deliver() == 0
    assert receiver.events == ["started"]


def test_a_supervisor_with_an_old_view_repeats_nothing(workspace: Workspace, receiver: Receiver) -> None:
    run = submit(workspace, preempted_once())
    slow = outbox(workspace, receiver.url, claim_s=0.0)
    listed = {entry.key: entry for entry in workspace.bucket.list(f"notify/{run}/")}
    outbox(workspace, receiver.url).deliver()

    class Stale(FolderBucket):
        def list(self, prefix: str, *, after: str = "", limit: int = 0):  # type: ignore[no-untyped-def]
            if prefix == f"notify/{run}/" and not after:
                return iter(listed.values())
            return super().list(prefix, after=after, limit=limit)

    slow.bucket = Stale(workspace.url)
    slow._deliver_run(run)
    assert len(receiver.accepted) == 4


def test_a_supervisor_without_the_value_leaves_the_message_to_another(workspace: Workspace, receiver: Receiver) -> None:
    submit(workspace, preempted_once())
    other = Outbox(workspace, monotonic=time.monotonic, environment={})
    assert other.deliver() == 0
    assert receiver.calls == 0
    outbox(workspace, receiver.url).deliver()
    assert receiver.events == EVENTS


def test_a_dead_target_is_reported_once_and_blocks_no_other(workspace: Workspace, receiver: Receiver) -> None:
    dead = NotifyTarget(kind="webhook", reference="DEAD")
    submit(workspace, preempted_once(), msgspec.structs.replace(ALL, targets=(dead, HOOK)))
    reports: list[str] = []
    clock = [0.0]
    sender = Outbox(
        workspace,
        monotonic=lambda: clock[0],
        report=reports.append,
        environment={"HOOK": receiver.url, "DEAD": "http://127.0.0.1:9/hook"},
    )
    for _ in range(3):
        assert sender.deliver() > 0
        clock[0] += 1000.0
    assert receiver.events == EVENTS
    assert len(reports) == 1
    assert "webhook DEAD" in reports[0]
    assert "127.0.0.1" not in reports[0].partition("webhook DEAD")[2].partition(":")[0]


def test_a_command_gets_the_message_on_its_input(workspace: Workspace, tmp_path: Path) -> None:
    target = NotifyTarget(kind="command", reference="RUN_THIS")
    submit(workspace, preempted_once(), msgspec.structs.replace(ALL, targets=(target,)))
    path = tmp_path / "seen"
    command = f'cat >> {path}; echo " $OUTLAST_EVENT" >> {path}'
    Outbox(workspace, monotonic=time.monotonic, environment={"RUN_THIS": command}).deliver()
    lines = path.read_text().splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == EVENTS
    assert [json.loads(line.rpartition(" ")[0])["event"] for line in lines] == EVENTS


def test_a_test_message_reports_each_target(workspace: Workspace, receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "url").write_text(receiver.url + "\n")
    targets = (
        NotifyTarget(kind="webhook", reference=f"file:{tmp_path / 'url'}"),
        NotifyTarget(kind="command", reference="FAILS"),
        NotifyTarget(kind="webhook", reference="UNSET"),
        NotifyTarget(kind="webhook", reference="NO_URL"),
    )
    found = send_now(
        NotifySpec(targets=targets),
        sample_message(),
        workspace=workspace,
        environment={"FAILS": "echo broken >&2; exit 3", "NO_URL": "hello"},
    )
    assert list(found.values()) == [
        "",
        "command FAILS: exit code 3: broken",
        "webhook UNSET: not set on this computer",
        "webhook NO_URL: expected a URL that starts with https",
    ]
    assert receiver.events == ["test"]


def described(events: list[ev.Event], rule: NotifySpec, now: float = 0.0) -> list[tuple[int, str]]:
    found = messages_of("run-1", events, fold(events), rule, now=now)
    return [(message.number, message.event) for message in found]


def test_only_the_wanted_events_are_reported() -> None:
    assert described(preempted_once(), NotifySpec(events=("finished",))) == [(9, "finished")]
    without_notice = [event for event in preempted_once() if not isinstance(event, ev.Noticed)]
    assert described(without_notice, NotifySpec(events=("preempted",))) == [(4, "preempted")]
    limits = [
        ev.Submitted(),
        ev.LimitNear(limit="cost_usd", why="near"),
        ev.LimitReached(limit="cost_usd", why="reached"),
    ]
    every = NotifySpec(events=("limit_near", "limit", "budget"))
    assert described(list(limits), every) == [(2, "limit_near"), (3, "limit")]
    budget: list[ev.Event] = [ev.Submitted(), ev.LimitReached(limit="workspace cost_usd", why="reached")]
    assert described(budget, every) == [(2, "budget")]


def test_a_long_wait_is_reported_once_and_belongs_to_its_first_event() -> None:
    rule = NotifySpec(events=("waiting",), waiting_after_s=100.0)
    events: list[ev.Event] = [ev.Submitted(at=0.0), ev.Waiting(why="no capacity", at=10.0)]
    assert described(events, rule, now=50.0) == []
    assert described(events, rule, now=120.0) == [(2, "waiting")]
    events.append(ev.Waiting(why="no quota", at=115.0))
    assert described(events, rule, now=300.0) == [(2, "waiting")]
    assert described(events, NotifySpec(events=("failed",), waiting_after_s=100.0), now=300.0) == []


@pytest.mark.parametrize("end", [ev.Cancelled(why="", at=120.0), placed(1)])
def test_a_run_that_waits_no_longer_is_not_reported(end: ev.Event) -> None:
    rule = NotifySpec(events=("waiting",), waiting_after_s=100.0)
    events = [ev.Submitted(at=0.0), ev.Waiting(why="no capacity", at=10.0), end]
    assert described(events, rule, now=300.0) == []


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"events": ["exploded"], "webhook": "HOOK"}, "[notify] events: unknown event 'exploded'"),
        ({"events": ["failed"]}, "[notify] webhook: missing: set a target"),
        ({"webhook": "HOOK", "waiting_after": "soon"}, "[notify] waiting_after:"),
        ({"webhok": "HOOK", "webhook": "HOOK"}, "[notify] webhok: unknown field; did you mean `webhook`"),
    ],
)
def test_errors_of_the_table_name_the_field(table: dict[str, object], problem: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse({"command": "true", "notify": table})
    assert problem in raised.value.message


def test_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(SpecError) as raised:
        parse({"command": "true", "notify": {"webhook": "https://hooks.slack.com/services/SECRET"}})
    assert "SECRET" not in raised.value.message
    assert "expected the name of an environment variable" in raised.value.message
