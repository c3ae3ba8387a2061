"""Deletion of old runs: what goes, what stays, and what the next submission finds."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.support.waiting import eventually

import outlast
from outlast.billing.ledger import total
from outlast.billing.ledger_store import LedgerStore
from outlast.code.record import CodeRecord, code_key
from outlast.errors import BeingCollected, Missing, NoSuchRun, SpecError, UsageError
from outlast.retention.collect import Collector
from outlast.retention.delete import RunDeleter
from outlast.retention.prune import Pruner, apply_rules, delete_runs, prune
from outlast.retention.select import due, name_of
from outlast.retention.usage import added_up, disk_use
from outlast.runs import events as ev
from outlast.runs.ended import EndedRun, EndedRuns, record_of
from outlast.runs.group import Groups, Seat
from outlast.runs.state import fold
from outlast.spec.parse import parse
from outlast.spec.spec import RetentionSpec, Spec
from outlast.store.bucket import Entry
from outlast.store.shared import check_references, marks_of, store_shared
from outlast.submit.prepare import PreparedRun
from outlast.submit.write import write_run
from outlast.supervisor.upkeep import Upkeep
from outlast.workspace import Heartbeat, Workspace, open_workspace

ANY_AGE = RetentionSpec(older_than_s=1e-9)


@pytest.fixture(params=["folder", "memory"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    found = open_workspace("memory://" if request.param == "memory" else str(tmp_path / "workspace"))
    EndedRuns(found).rebuild()
    return found


def story(number: int, *, ending: str = "finished", cost_usd: float = 1.0) -> list[ev.Event]:
    at = 1000.0 * number
    return [
        ev.Submitted(who="ada", at=at),
        ev.Placed(
            attempt=1, cloud="local", region="r", zone="z", type="t", spot=True, price_usd_per_hour=1.0,
            machine=f"m{number}", at=at,
        ),
        ev.Started(attempt=1, at=at + 1),
        ev.Finished(attempt=1, at=at + 2) if ending == "finished" else ev.Failed(why="bug", at=at + 2),
        ev.Released(attempt=1, cost_usd=cost_usd, seconds=3600.0, at=at + 3),
    ]  # fmt: skip


def submit(workspace: Workspace, body: bytes, *, retention: RetentionSpec | None = None) -> str:
    name = store_shared(workspace.bucket, code_key, f"{body.hex():0>64}", body)
    spec = parse({"name": "run", "command": "train"})
    if retention is not None:
        import msgspec

        spec = msgspec.structs.replace(spec, retention=retention)
    code = CodeRecord(kind="bundle", sha256=name)
    prepared = PreparedRun(spec=spec, code=code, who="ada", path="", secrets={}, store_keys={})
    return write_run(workspace, {}, prepared).run


def end(workspace: Workspace, run: str, *, ending: str = "finished", retention: RetentionSpec | None = None) -> None:
    events = story(int(run.rpartition("-")[2]), ending=ending)
    for number, event in enumerate(events[1:], 1):
        workspace.story(run).append_or_raise(event, nonce=f"{run} {number}")
    for entry in list(workspace.bucket.list(f"wakeups/{run}/")):
        workspace.bucket.delete(entry.key)
    state = workspace.story(run).refresh()
    spec = Spec(name="x", command="true", retention=retention)
    EndedRuns(workspace).add(record_of(run, state, spec=spec))


def ended(workspace: Workspace, body: bytes = b"code", *, ending: str = "finished") -> str:
    run = submit(workspace, body)
    workspace.bucket.create(f"runs/{run}/outputs/1/model", b"x" * 1000)
    workspace.bucket.create(f"runs/{run}/parts/1/aa", b"x" * 5000)
    end(workspace, run, ending=ending)
    return run


def test_a_deleted_run_is_gone_and_its_cost_stays(workspace: Workspace) -> None:
    first, second = ended(workspace), ended(workspace)
    spent = total(line for page in LedgerStore(workspace).runs(0.0) for line in page.lines)
    result = delete_runs(workspace, [first])
    assert result.runs == (first,)
    assert result.bytes > 6000
    assert list(workspace.bucket.list(f"runs/{first}/")) == []
    assert [record.run for record in EndedRuns(workspace).newest()[0]] == [second]
    with pytest.raises(NoSuchRun):
        workspace.find(first)
    pages = LedgerStore(workspace).runs(0.0)
    assert {page.name for page in pages} == {first, second}
    assert total(line for page in pages for line in page.lines).cost_usd == spent.cost_usd == 2.0


def test_a_number_is_never_used_again(workspace: Workspace) -> None:
    runs = [ended(workspace) for _ in range(3)]
    delete_runs(workspace, runs)
    assert submit(workspace, b"code") == "run-4"
    workspace.bucket.delete("numbers/run")
    assert submit(workspace, b"code") == "run-5"


def test_code_goes_with_the_last_run_that_uses_it(workspace: Workspace) -> None:
    first, second = ended(workspace), ended(workspace)
    key = workspace.request(first).code.shared_keys[0]
    pruner = Pruner(workspace, min_age_s=0.0)
    pruner.delete([first], keep_outputs=False, dry_run=False)
    assert workspace.bucket.get(key) == b"code"
    found = pruner.delete([second], keep_outputs=False, dry_run=False)
    assert found.shared_bytes == 4
    with pytest.raises(Missing):
        workspace.bucket.head(key)
    assert list(workspace.bucket.list("collecting/")) == []


def test_young_code_stays_for_a_submission_that_is_about_to_refer_to_it(workspace: Workspace) -> None:
    run = ended(workspace)
    key = workspace.request(run).code.shared_keys[0]
    delete_runs(workspace, [run])
    workspace.bucket.head(key)


@pytest.mark.parametrize("folder", ["sweeps/run-s1/sweep.json", "clusters/ray.json", "images/i/recipe.json"])
def test_any_record_that_contains_the_name_keeps_the_code(workspace: Workspace, folder: str) -> None:
    run = ended(workspace)
    (key,) = workspace.request(run).code.shared_keys
    workspace.bucket.create(folder, b'{"x": "' + workspace.request(run).code.sha256.encode() + b'"}')
    collector = Collector(workspace, min_age_s=0.0)
    workspace.bucket.delete(f"runs/{run}/spec.json")
    assert collector.collect() == []
    workspace.bucket.head(key)


def test_a_submission_beside_a_collection_is_refused_and_the_next_one_uses_another_copy(workspace: Workspace) -> None:
    run = submit(workspace, b"code")
    (key,) = workspace.request(run).code.shared_keys
    workspace.bucket.create(marks_of(key) + "dead-collector", b"")
    with pytest.raises(BeingCollected):
        check_references(workspace.bucket, [key])
    other = submit(workspace, b"code")
    (copy,) = workspace.request(other).code.shared_keys
    assert copy == key.replace(".tar", ".1.tar")
    assert workspace.bucket.get(copy) == b"code"


def test_a_mark_is_removed_only_when_its_collector_has_been_dead_for_a_week(tmp_path: Path) -> None:
    workspace = open_workspace(str(tmp_path / "workspace"))
    workspace.bucket.create("collecting/code/fresh/a", b"")
    workspace.bucket.create("collecting/code/stale/a", b"")
    week_ago = time.time() - 7 * 86400 - 60
    os.utime(f"{workspace.url}/collecting/code/stale/a", (week_ago, week_ago))
    Collector(workspace).collect()
    assert [entry.key for entry in workspace.bucket.list("collecting/")] == ["collecting/code/fresh/a"]


def test_calls_of_closed_and_of_dead_executors_go_and_those_of_a_sleeping_one_stay(tmp_path: Path) -> None:
    workspace = open_workspace(str(tmp_path / "workspace"))
    ages = {"open": 60, "asleep": 6 * 86400, "dead": 8 * 86400, "closed": 7200, "closing": 60}
    for pool, age_s in ages.items():
        names = ["pool.json", "alive", "calls/1", *(["closed"] if "clos" in pool else [])]
        for name in names:
            workspace.bucket.create(f"pools/{pool}/{name}", b"x")
            at = time.time() - age_s
            os.utime(f"{workspace.url}/pools/{pool}/{name}", (at, at))
    found = prune(workspace, RetentionSpec(older_than_s=1.0))
    assert sorted(workspace.bucket.children("pools/")) == ["asleep", "closing", "open"]
    assert (found.shared_objects, found.shared_bytes) == (7, 7)


def test_a_program_deletes_prunes_and_measures(workspace: Workspace) -> None:
    space = outlast.Space(workspace)
    run = ended(workspace)
    assert space.prune("30d", dry_run=True).runs == ()
    assert [row.run for row in space.disk_use().runs] == [run]
    for wrong in ({"older_than": "soon"}, {"older_than": 1, "keep_best": 2}, {"older_than": 1, "outputs": "some"}):
        with pytest.raises(UsageError):
            space.prune(**wrong)  # type: ignore[arg-type]
    assert space.delete(space.run(run)).runs == (run,)
    assert space.runs() == []


def test_kept_outputs_stay_listed_with_the_story(workspace: Workspace) -> None:
    run = ended(workspace)
    result = delete_runs(workspace, [run], keep_outputs=True)
    assert result.bytes == 5000
    assert workspace.find(run) == run
    assert workspace.bucket.get(f"runs/{run}/outputs/1/model") == b"x" * 1000
    assert delete_runs(workspace, [run], keep_outputs=True).runs == ()


def test_live_runs_are_refused_and_nothing_is_deleted(workspace: Workspace) -> None:
    old, live = ended(workspace), submit(workspace, b"code")
    with pytest.raises(UsageError, match=f"{live} is still live"):
        delete_runs(workspace, [old, live])
    assert workspace.find(old) == old
    with pytest.raises(NoSuchRun):
        delete_runs(workspace, ["run-99"])


def test_members_of_a_live_group_stay_and_an_ended_group_goes_as_a_whole(workspace: Workspace) -> None:
    groups = Groups(workspace)
    group = groups.reserve("evolve", who="ada", tasks=("a", "b"))
    records = []
    for task in ("a", "b"):
        run = f"{group}-{task}"
        groups.claim(group, Seat(run=run, task=task))
        for number, event in enumerate(story(1)):
            workspace.story(run).append_or_raise(event, nonce=str(number))
        records.append(record_of(run, workspace.story(run).refresh()))
        EndedRuns(workspace).add(records[-1])
    workspace.write_heartbeat(f"{group}-b", Heartbeat())
    found = RunDeleter(workspace).delete(records)
    assert (found.runs, set(found.kept)) == ((), {f"{group}-a", f"{group}-b"})
    workspace.bucket.delete(f"heartbeats/{group}-b")
    assert len(RunDeleter(workspace).delete(records).runs) == 2
    assert groups.all() == []
    assert groups.reserve("evolve", who="ada", tasks=()) == "evolve-2"


def test_an_interrupted_deletion_is_completed_by_the_next_prune(workspace: Workspace) -> None:
    first, second = ended(workspace), ended(workspace)
    deleter = RunDeleter(workspace)
    deleter.deleted.add([deleter.record(first)])
    result = prune(workspace, RetentionSpec(older_than_s=1e9))
    assert result.runs == ()
    assert list(workspace.bucket.list(f"runs/{first}/")) == []
    assert [record.run for record in EndedRuns(workspace).newest()[0]] == [second]


def test_a_submission_that_was_given_up_is_deleted_after_a_while_and_its_name_stays_taken(tmp_path: Path) -> None:
    workspace = open_workspace(str(tmp_path / "workspace"))
    EndedRuns(workspace).rebuild()
    run = workspace.reserve(Spec(name="run", command="train"), CodeRecord(), who="ada", version="").run
    prune(workspace, RetentionSpec(older_than_s=1e9))
    files = [path for path in Path(workspace.url, "runs", run).rglob("*") if path.is_file()]
    assert files, "a fresh request was deleted"
    for path in files:
        os.utime(path, (1e9, 1e9))
    prune(workspace, RetentionSpec(older_than_s=1e9))
    assert list(workspace.bucket.list(f"runs/{run}/")) == []
    assert workspace.reserve(Spec(name="run", command="train"), CodeRecord(), who="ada", version="").run != run


def test_pages_of_the_index_lose_only_the_deleted_runs(workspace: Workspace) -> None:
    index = EndedRuns(workspace)
    records = [record_of(f"run-{n}", fold(story(n))) for n in range(250)]
    index.write_page(records[:125])
    index.write_page(records[125:])
    reader = EndedRuns(workspace)
    assert len(reader.newest()[0]) == 250
    index.remove([record.run for record in records[::2]])
    assert {record.run for record in reader.newest()[0]} == {record.run for record in records[1::2]}
    index.remove([record.run for record in records])
    assert reader.newest()[0] == []


def record(number: int, *, ending: str = "finished") -> EndedRun:
    return record_of(f"run-{number}", fold(story(number, ending=ending)))


def test_only_runs_that_the_rule_names_are_due() -> None:
    records = [record(1), record(2, ending="failed"), record(3)]
    assert [one.run for one in due(records, ANY_AGE, now=1e6)] == ["run-1", "run-2", "run-3"]
    assert [one.run for one in due(records, RetentionSpec(older_than_s=1000.0), now=3500.0)] == ["run-1", "run-2"]
    failed = RetentionSpec(older_than_s=1.0, failed=True)
    assert [one.run for one in due(records, failed, now=1e6)] == ["run-2"]
    best = RetentionSpec(older_than_s=1.0, keep_best=1, metric="min:loss")
    assert [one.run for one in due(records, best, now=1e6, values={"run-1": 2.0, "run-3": 1.0})] == ["run-1", "run-2"]
    best = RetentionSpec(older_than_s=1.0, keep_best=1, metric="max:acc")
    assert [one.run for one in due(records, best, now=1e6, values={"run-1": 2.0, "run-3": 1.0})] == ["run-2", "run-3"]
    unreleased = record_of("run-9", fold(story(9)[:-1]))
    assert due([unreleased], ANY_AGE, now=1e9) == []


@pytest.mark.parametrize(
    ("run", "name"), [("census-7", "census"), ("a-1-b-2", "a-1-b"), ("census-s2-t14", "census-s2")]
)
def test_runs_of_one_name_compete(run: str, name: str) -> None:
    assert name_of(run) == name


def test_the_supervisor_applies_the_rules_of_the_runs_themselves(workspace: Workspace) -> None:
    kept = ended(workspace)
    run = submit(workspace, b"code", retention=ANY_AGE)
    end(workspace, run, retention=ANY_AGE)
    reports: list[str] = []
    upkeep = Upkeep(workspace, report=reports.append, first_s=0.0)
    upkeep.begin_if_due()
    eventually(lambda: reports)
    assert run in reports[0]
    assert [one.run for one in EndedRuns(workspace).newest()[0]] == [kept]
    upkeep.begin_if_due()  # not due before an hour has passed
    assert apply_rules(workspace).runs == ()


def test_usage_is_added_up_by_run_and_kind(workspace: Workspace) -> None:
    run = ended(workspace)
    found = disk_use(workspace)
    assert found.bytes == sum(entry.bytes for entry in workspace.bucket.list(""))
    assert (found.runs[0].run, found.runs[0].kinds["checkpoints"], found.runs[0].kinds["outputs"]) == (run, 5000, 1000)
    assert found.shared.kinds["code"] == 4
    assert found.usd_per_month == 0
    priced = added_up([Entry("runs/a-1/parts/1/x", 10**12, 0.0)], url="gs://bucket/x")
    assert priced.usd_per_month == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"keep_best": 3}, "[retention] older_than: missing"),
        ({"older_than": "soon"}, "[retention] older_than:"),
        ({"older_than": "30d", "keep_best": 0}, "[retention] keep_best: expected a whole number of at least 1"),
        ({"older_than": "30d", "keep_best": 3}, "[retention] keep_best: needs `metric`"),
        ({"older_than": "30d", "keep_best": 3, "metric": "loss"}, "[retention] metric: invalid metric 'loss'"),
        ({"older_than": "30d", "outputs": "some"}, "[retention] outputs: invalid value 'some'"),
        (
            {"older_then": "30d", "older_than": "30d"},
            "[retention] older_then: unknown field; did you mean `older_than`",
        ),
    ],
)
def test_errors_of_the_table_name_the_field(table: dict[str, object], problem: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse({"command": "true", "retention": table})
    assert problem in raised.value.message
