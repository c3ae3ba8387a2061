"""The outbox of notifications: each message is sent once, by whichever supervisor claims it first.

    notify/RUN/open                     the run has messages to send; created at submission, deleted after the last one
    notify/RUN/NUMBER-EVENT.T.claim-N   a process sends the message to target T now; create-only
    notify/RUN/NUMBER-EVENT.T.done      it was sent, or given up

A claim expires by the store's clock, so that the message of a process that died is sent by another. Only a process
that dies between the receiver's answer and the next write causes a repetition, with the same `id`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec

from outlast.errors import Exists, Missing, NoSuchRun, OutlastError, WorkspaceError
from outlast.notify.messages import Message, messages_of
from outlast.notify.targets import NotSent, resolve, send
from outlast.spec.spec import NotifySpec, NotifyTarget
from outlast.store.bucket import Entry
from outlast.workspace import Workspace

# Longer than the longest try.
CLAIM_S = 45.0
# The first pause after a failed try; doubled with each.
_RETRY_S, _RETRY_MAX_S = 2.0, 300.0
# A message that could not be sent for this long is given up.
_GIVE_UP_S = 86400.0
_CLOCK = "retention/notify-clock"


class _Pending(msgspec.Struct, frozen=True, kw_only=True):
    message: Message
    number: int
    target: NotifyTarget

    @property
    def key(self) -> str:
        return f"{self.message.key}.{self.number}"


def open_outbox(workspace: Workspace, run: str) -> None:
    """Make supervisors send the messages of a run. May be repeated."""
    try:
        workspace.bucket.create(f"notify/{run}/open", b"")
    except Exists:
        pass


class Outbox:
    """Sends the messages of all runs of a workspace. Several processes may do so at once."""

    def __init__(
        self,
        workspace: Workspace,
        *,
        monotonic: Callable[[], float],
        report: Callable[[str], None] = lambda _: None,
        environment: Mapping[str, str] = os.environ,
        claim_s: float = CLAIM_S,
    ) -> None:
        self.workspace = workspace
        self.bucket = workspace.bucket
        self.monotonic = monotonic
        self.report = report
        self.environment = environment
        self.claim_s = claim_s
        self._rules: dict[str, NotifySpec | None] = {}
        # Message → failed tries, and when the next one is due.
        self._failed: dict[str, tuple[int, float]] = {}

    def deliver(self) -> int:
        """Try to send everything that is due; return the number of messages that this process has yet to send."""
        left = 0
        for run in self.bucket.children("notify/"):
            try:
                left += self._deliver_run(run)
            except NoSuchRun:
                self._close(run)  # it was deleted
            except WorkspaceError as problem:
                self.report(f"notifications of {run}: {problem.message}; trying again")
        return left

    def _deliver_run(self, run: str) -> int:
        rule = self._rule(run)
        story = self.workspace.story(run)
        state = story.refresh()
        if rule is None or not state.exists:
            return 0
        messages = messages_of(run, story.events, state, rule, now=self.workspace.clock())
        entries = {entry.key: entry for entry in self.bucket.list(f"notify/{run}/")}
        pending = [
            _Pending(message=message, number=number, target=target)
            for number, target in enumerate(rule.targets)
            for message in messages
            if f"notify/{run}/{message.key}.{number}.done" not in entries
        ]
        left, blocked, unresolved = 0, set[int](), 0
        for one in pending:
            value = resolve(one.target, self.environment)
            if not value:
                unresolved += 1
            elif one.number in blocked or not self._try(run, one, value, entries):
                # Messages reach a target in order.
                blocked.add(one.number)
                left += 1
        given_up = not left and self._is_old(run, state.length)
        if state.ending and state.closed and not left and (not unresolved or given_up):
            self._close(run)
        return left

    def _rule(self, run: str) -> NotifySpec | None:
        if run not in self._rules:
            self._rules[run] = self.workspace.request(run).spec.notify
        return self._rules[run]

    def _try(self, run: str, one: _Pending, value: str, entries: Mapping[str, Entry]) -> bool:
        """Send one message if no other process does; return whether it is settled."""
        prefix = f"notify/{run}/{one.key}"
        tries, due_at = self._failed.get(prefix, (0, 0.0))
        if self.monotonic() < due_at:
            return False
        claim = self._claim(prefix, entries)
        if not claim:
            return False
        # After the claim, and in this order: another process may have sent it, and then closed the outbox.
        if self._has(f"{prefix}.done") or not self._has(f"notify/{run}/open"):
            self.bucket.delete(claim)
            return True
        identity = f"{self.workspace.id}-{run}-{one.key}"
        try:
            send(one.target, value, one.message, workspace=self.workspace.url, identity=identity)
        except OutlastError as problem:
            if not tries:
                self.report(f"notification of {run} was not sent: {problem.message}; trying again")
            self._failed[prefix] = (tries + 1, self.monotonic() + min(_RETRY_MAX_S, _RETRY_S * 2.0**tries))
            if self._is_old(run, one.message.number):
                self._settle(prefix, b"given up")
                return True
            self.bucket.delete(claim)
            return False
        self._failed.pop(prefix, None)
        self._settle(prefix, b"")
        return True

    def _claim(self, prefix: str, entries: Mapping[str, Entry]) -> str:
        """Create the next claim unless a living process holds one; return its key, or an empty text."""
        claims = {int(key.rpartition("-")[2]): entry for key, entry in entries.items() if f"{prefix}.claim-" in key}
        newest = max(claims, default=0)
        if (
            newest
            and self.bucket.now(f"notify-clock/{self.workspace.ids()[:2]}") - claims[newest].modified_at < self.claim_s
        ):
            return ""
        key = f"{prefix}.claim-{newest + 1}"
        try:
            self.bucket.create(key, b"", durable=False)
        except Exists:
            return ""
        return key

    def _settle(self, prefix: str, body: bytes) -> None:
        try:
            self.bucket.create(f"{prefix}.done", body)
        except Exists:
            pass

    def _is_old(self, run: str, number: int) -> bool:
        """Return whether the event was written so long ago, by the store's clock, that its message is given up."""
        from outlast.runs.story import event_key

        try:
            at = self.bucket.head(event_key(run, max(1, number))).modified_at
        except Missing:
            return True
        return self.bucket.now(_CLOCK) - at > _GIVE_UP_S

    def _close(self, run: str) -> None:
        """Delete the outbox. `open` goes first: a process with an old view checks it last."""
        self.bucket.delete(f"notify/{run}/open")
        self.bucket.delete_many([entry.key for entry in self.bucket.list(f"notify/{run}/")])

    def _has(self, key: str) -> bool:
        try:
            self.bucket.head(key)
        except Missing:
            return False
        return True


def send_now(
    rule: NotifySpec, message: Message, *, workspace: Workspace, environment: Mapping[str, str]
) -> dict[str, str]:
    """Send a message that belongs to no story to all targets; return target → error, empty if it was sent."""
    results: dict[str, str] = {}
    for target in rule.targets:
        name = f"{target.kind} {target.reference}"
        value = resolve(target, environment)
        if not value:
            results[name] = f"{name}: not set on this computer"
            continue
        try:
            send(target, value, message, workspace=workspace.url, identity=f"{workspace.id}-{workspace.ids()}")
            results[name] = ""
        except NotSent as problem:
            results[name] = problem.message
    return results
