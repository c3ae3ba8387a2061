"""The list of clusters, and one cluster with its nodes, resources, jobs, and the output of a job."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from nicegui import background_tasks, ui

from outlast.cluster.listing import ClusterRow
from outlast.errors import OutlastError
from outlast.ui.format import describe_s, moment, money
from outlast.ui.layout import PageView, empty, fact, heading, panel, pill, prose
from outlast.ui.pages.components import (
    Column,
    FilteredTable,
    Placeholder,
    Table,
    amount,
    bar,
    code,
    href,
    not_found,
    problem_note,
    warning,
)
from outlast.ui.topics import TopicUpdate, follow
from outlast.ui.views.clusters import ClusterDetail, ClusterDetailReader, ClusterReader, JobRow, NodeRow, phase_tone

_LOG_EVERY_S = 1.0
_COLUMNS = (
    Column("name", "Cluster", "link"),
    Column("phase", "State", "pill"),
    Column("machines", "Machines", right=True),
    Column("jobs", "Jobs", right=True),
    Column("price", "$/hour", "formatted", right=True),
    Column("cost", "Cost", "formatted", right=True),
    Column("who", "Owner"),
    Column("asked", "Created", "formatted"),
    Column("cloud", "Cloud"),
    Column("problem", "Remarks"),
)
_JOBS = (
    Column("id", "Job", "link"),
    Column("status", "Status", "pill"),
    Column("took", "Duration"),
    Column("point", "Parameters"),
    Column("command", "Command", "mono"),
    Column("who", "Owner"),
    Column("remark", "Remarks"),
)


def build(view: PageView) -> None:
    with panel("Clusters", note="Ray clusters with spot workers"):
        none, command = "No clusters.", "outlast cluster up"
        table = FilteredTable(view, "Clusters", _COLUMNS, key="name", none=none, command=command)

    def update(latest: TopicUpdate[tuple[ClusterRow, ...]]) -> None:
        table.update(latest, (_cells(row) for row in latest.value or ()))

    follow(view, "clusters", lambda: ClusterReader(view.workspace), update, every_s=1.0, remote_s=15.0)


def _cells(row: ClusterRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "name_href": href("clusters", row.name),
        "phase": row.phase,
        "phase_tone": phase_tone(row.phase, row.problem),
        "machines": row.machines,
        "jobs": row.jobs,
        **amount("price", row.usd_per_hour),
        **amount("cost", row.cost_usd),
        "who": row.who,
        "asked": row.asked_at,
        "asked_text": moment(row.asked_at),
        "cloud": row.cloud,
        "problem": row.problem,
    }


def build_one(view: PageView) -> None:
    name = view.params["name"]
    with ui.element("div").classes("ol-pile"):
        place = Placeholder("loading the cluster")
        none = ui.element("div")
        with ui.element("div").classes("ol-pile") as content:
            head = ui.element("div")
            with panel("Nodes"):
                nodes = ui.element("div").classes("ol-nodes")
            with panel("Jobs"):
                table = Table("Jobs", _JOBS, key="id", rows_shown=15)
                with ui.element("div") as no_jobs:
                    empty("No jobs yet.", f"outlast cluster submit {name} -- python job.py")
            log = _Log(view)
    content.set_visibility(False)
    none.set_visibility(False)
    shown: list[ClusterDetail] = []

    def update(latest: TopicUpdate[ClusterDetail]) -> None:
        none.clear()
        none.set_visibility(latest.value is None)
        if latest.value is None:
            place.show(TopicUpdate(at=latest.at))
            with none:
                not_found(latest, "cluster", "/clusters")
            return
        place.show(latest)
        content.set_visibility(True)
        detail = latest.value
        no_jobs.set_visibility(not detail.jobs)
        table.fill(_job(detail.name, job) for job in detail.jobs)
        if shown and shown[0] == detail:
            return
        shown[:] = [detail]
        head.clear()
        with head:
            _head(detail)
        nodes.clear()
        with nodes:
            for node in detail.nodes:
                _node(node)
            if not detail.nodes:
                empty("No machines.")
        log.update(detail)

    follow(
        view, ("cluster", name), lambda: ClusterDetailReader(view.workspace, name), update, every_s=1.0, remote_s=5.0
    )


def _head(detail: ClusterDetail) -> None:
    with ui.element("section").classes("ol-panel").props('aria-label="Cluster"'):
        with ui.element("div").classes("ol-row"):
            heading(detail.name, 1)
            pill("unreachable" if detail.unreachable and detail.phase == "ready" else detail.phase, detail.tone)
            if detail.down_in_s >= 0:
                ui.label(f"idle; will be deleted in {describe_s(detail.down_in_s)}").classes("ol-dim")
        if detail.unreachable:
            warning(
                f"Ray does not answer: {detail.unreachable}. The data shown comes from the workspace and the cloud."
            )
        with ui.element("div").classes("ol-facts ol-below"):
            fact("Machines", str(len(detail.nodes)))
            fact("$/hour", money(detail.usd_per_hour), exact=detail.usd_per_hour)
            fact("Cost so far", money(detail.cost_usd), exact=detail.cost_usd)
            fact("Cloud", detail.cloud)
            fact("Head", detail.head or "none", note=f"created by {detail.who}" if detail.who else "")
        for resource in detail.resources:
            bar(resource.name, resource.part, resource.text)
        if detail.demands or detail.notes:
            with ui.element("div").classes("ol-row ol-below"):
                for demand in detail.demands:
                    pill(f"waits for {demand}", "busy")
                for note in detail.notes:
                    prose(note).classes("ol-dim")


def _node(node: NodeRow) -> None:
    with ui.element("section").classes("ol-node") as section:
        section.props["aria-label"] = node.machine
        with ui.element("div").classes("ol-row"):
            ui.label(node.machine).classes("ol-h3")
            pill(node.status, node.tone)
        parts = [node.role if node.role == "head" else node.kind, node.where, node.ray, f"{money(node.usd_per_hour)}/h"]
        ui.label(" · ".join(part for part in parts if part)).classes("ol-dim")
        for resource in node.resources:
            bar(resource.name, resource.part, resource.text)
        if node.why:
            prose(node.why).classes("ol-dim")


def _job(cluster: str, job: JobRow) -> dict[str, Any]:
    return {
        "id": job.id,
        "id_href": f"{href('clusters', cluster)}?job={quote(job.id, safe='')}#log" if job.status != "UNSENT" else "",
        "status": job.status.lower(),
        "status_tone": job.tone,
        "took": job.took,
        "point": job.point,
        "command": job.command,
        "who": job.who,
        "remark": job.remark,
    }


class _Log:
    """The end of the output of the job in the URL; read again when the cluster changes."""

    def __init__(self, view: PageView) -> None:
        self.view = view
        self.job = view.query.get("job", "")
        self.busy = False
        self.live = False
        self.text = ""
        if not self.job:
            return
        with panel("Output of the job", note=self.job) as section:
            section.props("id=log")
            self.place = ui.element("div")
            with self.place:
                ui.label("loading …").classes("ol-dim")

    def update(self, detail: ClusterDetail) -> None:
        if not self.job:
            return
        known = next((job for job in detail.jobs if job.id == self.job), None)
        self.live = known is not None and known.status == "RUNNING"
        if self.busy:
            return
        if known is None:
            self._show("", f"The cluster has no job `{self.job}`.", "")
        elif detail.unreachable:
            self._show("", f"The output is on the head. {detail.unreachable}", "")
        else:
            self.busy = True
            background_tasks.create(self._read(detail.name), name="job log")

    async def _read(self, cluster: str) -> None:
        reader = ClusterDetailReader(self.view.workspace, cluster)
        try:
            while not self.view.client.is_deleted:
                last = not self.live
                text = await self.view.read(reader.log, self.job)
                self._show(text, "" if text else "No output yet.", "")
                if last:
                    return
                await asyncio.sleep(_LOG_EVERY_S)
        except OutlastError as problem:
            self._show("", problem.message, problem.hint)
        finally:
            self.busy = False

    def _show(self, text: str, problem: str, hint: str) -> None:
        if text and text == self.text:
            return
        self.text = text
        self.place.clear()
        with self.place:
            if text:
                code(text, label=f"Output of {self.job}")
            else:
                problem_note(problem, hint)
