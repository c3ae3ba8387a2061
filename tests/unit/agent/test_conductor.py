"""The conductor's order of effects, driven by scripted answers, without machine, store or real clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from outlast.agent.attempt import Verdict, how_it_ended
from outlast.agent.conductor import Conductor
from outlast.agent.effects import (
    AgentEvent,
    AttemptAborted,
    CommandExited,
    CommandHung,
    Effect,
    ExclusiveLost,
    NodeFailed,
    NodesReport,
    NoticeReceived,
    OutputsReport,
    RunOver,
    TurnReport,
)
from outlast.agent.instance import Notice
from outlast.code.record import CodeRecord
from outlast.errors import OutlastError, StoreUnreachable
from outlast.runs.events import Ending
from outlast.runs.nodes import NodeEnd, NodeStart
from outlast.runs.state import Checkpoint
from outlast.spec.spec import LimitSpec, Spec
from outlast.workspace import RunRequest

NOTICE = NoticeReceived(Notice(why="preempted", grace_s=30.0))
OLD = Checkpoint(id="0001-00001", attempt=1, at=0.0, step=1, bytes=1)
NEW = Checkpoint(id="0001-00002", attempt=1, at=0.0, step=2, bytes=1)
REQUEST = RunRequest(
    run="run-1", spec=Spec(name="run", command="true", limits=LimitSpec(keep_on_failure_s=60.0)), code=CodeRecord()
)
USUAL: Mapping[str, object] = {
    "read_request": REQUEST,
    "read_turn": TurnReport(turn="mine"),
    "prepare": "code",
    "predecessor_deadline_passed": False,
    "try_exclusive": True,
    "append_started": "",
    "start_command": "",
    "send_sigterm": True,
    "declared_done": False,
    "commit_last": "",
    "permanent_failure": None,
    "failure_context": "",
    "send_outputs": OutputsReport(sent=1),
}


class Play:
    """Plays one attempt with the given answers, and records the effects. `events` come once the command runs."""

    def __init__(self, *events: AgentEvent | None, rank: int = 0, nodes: int = 1, **answers: object) -> None:
        self.now = 100.0
        self.events = list(events)
        self.answers = {**USUAL, **answers}
        self.effects: list[Effect] = []
        self.conductor = Conductor(number=2, now=lambda: self.now, poll_s=1.0, rank=rank, nodes=nodes)
        script, answer, failure = self.conductor.conduct(), None, None
        while True:
            try:
                effect = script.send(answer) if failure is None else script.throw(failure)
            except StopIteration:
                return
            answer, failure = None, None
            self.effects.append(effect)
            try:
                answer = self._answer(effect)
            except (OutlastError, OSError, AttemptAborted) as problem:
                failure = problem

    def _answer(self, effect: Effect) -> Any:
        if effect.name == "next_event":
            running = any(done.name == "start_command" for done in self.effects)
            return self.events.pop(0) if running or self.answers.get("early") else None
        answer = self.answers.get(effect.name)
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def names(self) -> list[str]:
        return [effect.name for effect in self.effects if effect.name not in ("next_event", "log")]

    def arguments(self, name: str) -> tuple[object, ...]:
        return next(effect.arguments for effect in self.effects if effect.name == name)

    @property
    def end(self) -> tuple[Verdict, int | None, int, float, str]:
        verdict, exit_code, outputs, keep_s, unsaved = self.arguments("append_end")
        return verdict, exit_code, outputs, keep_s, unsaved  # type: ignore[return-value]


def test_an_undisturbed_attempt_performs_its_effects_in_this_order() -> None:
    play = Play(CommandExited(0, 5.0))
    assert play.names == [
        *("read_request", "read_turn", "prepare", "restore", "read_turn", "restore", "read_secrets", "try_exclusive"),
        *("append_started", "restore", "start_command", "stop_following", "declared_done", "commit_last"),
        *("send_outputs", "flush_logs", "append_end"),
    ]
    assert play.end == (Verdict(finished=True, ending="orderly"), 0, 1, 0.0, "")


def test_the_command_starts_from_the_checkpoint_that_was_committed_just_before_started() -> None:
    play = Play(CommandExited(0, 5.0), restore=[OLD, OLD, NEW])
    assert play.arguments("append_started") == (OLD, "code")
    assert play.arguments("start_command") == (NEW,)


def test_a_successor_waits_for_the_last_event_of_its_predecessor() -> None:
    waits = [TurnReport(turn="wait")] * 3 + [TurnReport(turn="mine")]
    play = Play(CommandExited(0, 5.0), read_turn=waits)
    before_start = play.names[: play.names.index("append_started")]
    assert before_start.count("predecessor_deadline_passed") == 2, "the first read of the turn only checks the boot"
    assert before_start.count("restore") == 4, "it fetches new checkpoints while it waits, and once more at its turn"


def test_a_successor_does_not_wait_longer_than_its_predecessors_grace() -> None:
    play = Play(CommandExited(0, 5.0), read_turn=[TurnReport(turn="wait")], predecessor_deadline_passed=[False, True])
    assert play.names.count("predecessor_deadline_passed") == 2
    assert "append_started" in play.names


def test_a_notice_reaches_the_command_before_the_story() -> None:
    play = Play(NOTICE, CommandExited(143, 5.0))
    first = play.names.index("write_notice_file")
    assert play.names[first : first + 4] == ["write_notice_file", "commit_quickly", "send_sigterm", "append_noticed"]
    assert play.arguments("commit_last")[0] == "handled"
    assert (play.end[0].outcome, play.end[1]) == ("preempted", 143)


def test_a_command_that_does_not_exit_within_its_grace_is_killed() -> None:
    play = Play(NOTICE, None, CommandExited(137, 5.0), send_sigterm=False)
    deadlines = [effect.arguments[0] for effect in play.effects if effect.name == "next_event"][-3:]
    assert deadlines == [None, 128.0, None], "two seconds before the power goes"
    assert "kill_command" in play.names
    assert play.arguments("commit_last")[0] == "cut"


def test_a_shutdown_before_the_promised_end_shortens_the_grace_without_a_second_sigterm() -> None:
    long = NoticeReceived(Notice(why="preempted", grace_s=120.0))
    shutdown = NoticeReceived(Notice(why="the machine is shutting down", grace_s=25.0))
    play = Play(long, shutdown, NOTICE, None, CommandExited(137, 5.0), send_sigterm=False)
    deadlines = [effect.arguments[0] for effect in play.effects if effect.name == "next_event"]
    assert deadlines[-5:] == [None, 218.0, 123.0, 123.0, None], "a later end changes nothing"
    assert play.names.count("send_sigterm") == play.names.count("append_noticed") == 1
    assert play.names.count("write_notice_file") == 2, "the program sees how long it really has"


def test_a_notice_before_the_start_ends_the_attempt_at_once() -> None:
    play = Play(NOTICE, early=True)
    assert "append_started" not in play.names
    assert play.names[-4:] == ["append_noticed", "stop_following", "flush_logs", "append_end"]
    assert play.end[0].outcome == "preempted"


def test_an_attempt_that_is_not_needed_appends_nothing() -> None:
    play = Play(read_turn=TurnReport(turn="over", why="the run is cancelled"))
    assert play.names == ["read_request", "read_turn", "stop_following"]


def test_a_machine_that_was_restarted_ends_the_attempt_that_ran_on_it() -> None:
    play = Play(read_turn=TurnReport(turn="over", restarted=True))
    assert play.end[0].outcome == "killed"


def test_an_attempt_that_was_fenced_before_started_runs_no_command() -> None:
    play = Play(append_started="attempt 2 was given up")
    assert "start_command" not in play.names
    assert "append_end" not in play.names


def test_a_run_that_is_over_kills_its_command_and_writes_no_end() -> None:
    play = Play(RunOver("the run is cancelled"), None, CommandExited(137, 5.0))
    assert play.names[-4:] == ["send_sigterm", "kill_command", "stop_following", "flush_logs"]


def test_outputs_that_could_not_be_copied_are_not_a_success() -> None:
    play = Play(CommandExited(0, 5.0), send_outputs=OutputsReport(missing="the store is full"))
    assert play.end[0] == Verdict(finished=False, outcome="broken", why="the store is full", ending="orderly")


def test_a_failed_attempt_reports_the_state_of_its_machine_and_keeps_it() -> None:
    play = Play(CommandExited(1, 5.0), failure_context="; its disk is full", commit_last="it was writing")
    verdict, exit_code, _, keep_s, unsaved = play.end
    assert verdict.why == "the command exited with 1; its disk is full"
    assert (exit_code, keep_s, unsaved) == (1, 60.0, "it was writing")
    assert play.arguments("keep_machine") == (60.0,)


def test_a_hang_and_a_lost_lock_name_their_reason() -> None:
    assert Play(CommandHung("no output for 60 s"), CommandExited(143, 5.0)).end[0].why == "it hung: no output for 60 s"
    lost = Play(ExclusiveLost("`db` was taken over"), CommandExited(137, 5.0)).end[0]
    assert lost == Verdict(finished=False, outcome="preempted", why="`db` was taken over", ending="cut")


@pytest.mark.parametrize("failing", ["prepare", "restore", "read_secrets"])
def test_a_machine_that_cannot_be_prepared_is_broken_with_the_reason(failing: str) -> None:
    play = Play(**{failing: OSError("no space left")})
    assert play.end[0] == Verdict(finished=False, outcome="broken", why="no space left")


def test_a_failure_that_every_machine_would_have_ends_the_run() -> None:
    hopeless = Verdict(finished=False, outcome="broken", why="no such image", hopeless=True)
    assert Play(prepare=AttemptAborted("no such image", hopeless)).end[0] == hopeless


def test_an_unreachable_story_receives_no_last_event() -> None:
    with pytest.raises(StoreUnreachable):
        Play(CommandExited(0, 5.0), append_end=StoreUnreachable("the store is unreachable"))


@pytest.mark.parametrize(
    ("exit_code", "noticed", "handles", "ending"),
    [
        (0, False, False, "orderly"),
        (0, True, False, "orderly"),
        (1, False, True, "cut"),
        (1, True, False, "orderly"),
        (143, True, True, "handled"),
        (143, True, False, "cut"),
        (143, False, True, "cut"),
        (130, True, True, "handled"),
        (137, True, True, "cut"),
        (139, True, True, "cut"),
        (200, True, False, "orderly"),
    ],
)
def test_how_a_command_ended(exit_code: int, noticed: bool, handles: bool, ending: Ending) -> None:
    assert how_it_ended(exit_code, noticed=noticed, handles_sigterm=handles) == ending


def test_a_command_with_measured_saves_works_on_until_its_successor_is_ready() -> None:
    play = Play(NOTICE, None, None, CommandExited(143, 5.0), saving_s=6.0, successor_ready=[False, True])
    passed_on = play.names.index("write_notice_file")
    assert play.names.index("append_noticed") < passed_on, "the successor boots meanwhile"
    assert play.names[passed_on - 2 : passed_on + 3] == [
        *("successor_ready", "successor_ready", "write_notice_file", "commit_quickly", "send_sigterm"),
    ]
    assert play.end[0].outcome == "preempted"


def test_a_command_works_on_no_longer_than_the_time_that_its_save_leaves() -> None:
    class Late(Play):
        def _answer(self, effect: Effect) -> Any:
            if effect.name == "next_event" and self.events and self.events[0] is None:
                # Its save needs 6 s, and 2 s are kept for the last event.
                assert effect.arguments[0] is not None
                self.now = 100.0 + 30.0 - 2.0 - 6.0
            return super()._answer(effect)

    play = Late(NOTICE, None, CommandExited(143, 5.0), saving_s=6.0, successor_ready=False)
    assert "successor_ready" not in play.names
    rest = play.arguments("write_notice_file")[0]
    assert isinstance(rest, Notice)
    assert rest.grace_s == 8.0
    kill_at = [effect.arguments[0] for effect in play.effects if effect.name == "next_event"][-1]
    assert kill_at == 128.0


@pytest.mark.parametrize(
    ("notice", "saving_s"),
    [(NOTICE.notice, None), (NOTICE.notice, 29.0), (Notice(why="budget", grace_s=30.0, limit=True), 6.0)],
)
def test_a_command_saves_at_once_where_working_on_is_impossible(notice: Notice, saving_s: float | None) -> None:
    play = Play(NoticeReceived(notice), CommandExited(143, 5.0), saving_s=saving_s)
    assert play.names.index("send_sigterm") < play.names.index("append_noticed")
    assert "successor_ready" not in play.names


def test_a_command_that_succeeds_while_it_works_on_is_finished_and_one_that_fails_is_preempted() -> None:
    assert Play(NOTICE, CommandExited(0, 5.0), saving_s=6.0).end[0].finished
    assert Play(NOTICE, CommandExited(1, 5.0), saving_s=6.0).end[0].outcome == "preempted"


def test_a_machine_that_shuts_down_early_makes_a_working_command_save_at_once() -> None:
    earlier = NoticeReceived(Notice(why="the machine is shutting down", grace_s=10.0))
    play = Play(NOTICE, earlier, CommandExited(143, 5.0), saving_s=6.0, successor_ready=False)
    assert play.names.count("send_sigterm") == 1
    assert "successor_ready" not in play.names


def test_a_successor_that_waits_reports_once_that_it_is_ready() -> None:
    waits = [TurnReport(turn="wait")] * 4 + [TurnReport(turn="mine")]
    assert Play(CommandExited(0, 5.0), read_turn=waits).names.count("announce_ready") == 1
    assert "announce_ready" not in Play(CommandExited(0, 5.0)).names


PEER_LEFT = NodeFailed(1, NodeEnd(finished=False, outcome="preempted", why="preempted", exit_code=143))


def test_the_leader_commits_what_all_ranks_saved_before_it_received_the_notice_of_another_one() -> None:
    """The noticed rank stops all others after the same step, faster than its notice reaches them."""
    ended = NodesReport(ended=True, responsive=False, seen=True, outputs=0, failed=(PEER_LEFT,))
    play = Play(CommandExited(143, 90.0), nodes=2, all_ready=True, read_nodes=ended)
    assert play.arguments("commit_last")[0] == "handled"
    assert play.end[0].outcome == "preempted"


def test_a_command_that_exited_before_its_signal_has_saved_like_one_that_handles_it() -> None:
    start = NodeStart(checkpoint="", addresses=("a", "b"))
    over = RunOver("the attempt is over")
    play = Play(
        *(NOTICE, CommandExited(143, 90.0), over), rank=1, nodes=2, read_start=start, send_sigterm=None, report_end=None
    )
    assert play.arguments("commit_last")[0] == "handled"
    killed = Play(
        *(NOTICE, CommandExited(143, 90.0), over),
        rank=1,
        nodes=2,
        read_start=start,
        send_sigterm=False,
        report_end=None,
    )
    assert killed.arguments("commit_last")[0] == "cut"
