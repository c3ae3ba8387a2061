"""Clusters in the browser: one without its head; with the marker `cluster` a working one with real Ray."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.dashboard.lived import ATTACK
from tests.support.cluster import Bench
from tests.support.cluster import bench as bench
from tests.support.dashboard import Lived, Served, Visit
from tests.support.home import Home


def test_a_cluster_without_head_is_shown_from_its_records(visit: Visit, lived: Lived) -> None:
    page = visit.open("/clusters")
    row = page.get_by_role("row").filter(has_text=lived.names.cluster)
    row.get_by_text("the head is gone").wait_for()
    row.get_by_text("lost", exact=True).wait_for()
    row.get_by_role("link", name=lived.names.cluster).click()
    page.get_by_text("Ray does not answer").wait_for()
    jobs = page.get_by_role("table")
    done = jobs.get_by_role("row").filter(has_text="job-1")
    assert "succeeded" in done.inner_text()
    lost = jobs.get_by_role("row").filter(has_text="job-2")
    assert "lost" in lost.inner_text()
    assert ATTACK in lost.inner_text(), "a command is shown unchanged"
    # The cost includes lost machines.
    assert "$0.42" in page.inner_text("#main")
    lost.get_by_role("link", name="job-2").click()
    page.get_by_text("The output is on the head.").wait_for()
    assert "job=job-2" in page.url


@pytest.mark.full
def test_a_cluster_whose_record_is_damaged_is_shown(
    empty: Home, serve: Callable[..., Served], visits: Callable[[str], Visit]
) -> None:
    empty.workspace.bucket.put("clusters/torn.json", b"{")
    row = visits(serve(empty).link).open("/clusters").get_by_role("row").filter(has_text="torn")
    row.get_by_text("damaged", exact=True).wait_for()
    row.get_by_text("clusters/torn.json cannot be read").wait_for()


def test_an_unknown_cluster_is_reported(visit: Visit) -> None:
    visit.open("/clusters/nothing").get_by_text("cluster nothing does not exist").wait_for()


JOB = """
import os, ray
ray.init()
print("hello from the head", flush=True)
print(sum(ray.get([ray.remote(lambda x: x * x).remote(n) for n in range(4)])))
"""


@pytest.mark.cluster
def test_nodes_resources_jobs_and_output_of_a_working_cluster(
    bench: Bench, serve: Callable[..., Served], visits: Callable[[str], Visit]
) -> None:
    (bench.project / "job.py").write_text(JOB)
    bench.good("cluster", "up")
    visit = visits(serve(bench).link)
    page = visit.open("/clusters/small")
    head = page.get_by_role("region").filter(has_text="on demand").last
    head.wait_for(timeout=240_000)
    page.get_by_text("object store memory").first.wait_for(timeout=240_000)
    page.get_by_text("No jobs yet.").wait_for()
    bench.good("cluster", "submit", "small", "--", "python", "job.py")
    row = page.get_by_role("row").filter(has_text="job.py")
    # The autoscaler adds a worker for the job.
    page.get_by_text("CPU", exact=True).first.wait_for(timeout=240_000)
    row.get_by_text("succeeded").wait_for(timeout=240_000)
    row.get_by_role("link").first.click()
    page.get_by_text("hello from the head").wait_for(timeout=240_000)
    listed = visit.open("/clusters")
    listed.get_by_role("row").filter(has_text="small").get_by_text("ready").wait_for()
    bench.good("cluster", "down", "small", "--yes")
    listed.get_by_text("No clusters.").wait_for(timeout=240_000)
