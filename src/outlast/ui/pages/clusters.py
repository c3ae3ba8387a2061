"""Clusters: the list, and one with its nodes, what they have and use, its jobs, and the output of a job."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from nicegui import background_tasks, ui

from outlast.cluster.listing import ClusterRow
from outlast.errors import OutlastError
from outlast.ui.format import describe_s, moment, money
from outlast.ui.layout import PageView, empty, fact, heading, panel, pill
from outlast.ui.pages.components import Column, Listing, Table, TablePlace, bar, code, href, not_there, trouble, warning
from outlast.ui.topics import TopicUpdate, follow
from outlast.ui.views.clusters import ClusterReader, ClusterSight, JobRow, NodeRow, OneCluster, phase_tone

_LOG_EVERY_S = 1.0
_COLUMNS = (
    Column("name", "Cluster", "link"),
    Column("phase", "State", "pill"),
    Column("machines", "Machines", right=True),
    Column("jobs", "Jobs", right=True),
    Column("price", "An hour", "told", right=True),
    Column("cost", "Cost", "told", right=True),
    Column("who", "User"),
    Column("asked", "Made", "told"),
    Column("cloud", "Cloud"),
    Column("problem", "Remarks"),
)
_JOBS = (
    Column("id", "Job", "link"),
    Column("status", "Status", "pill"),
    Column("took", "Took"),
    Column("point", "Point"),
    Column("command", "Command", "mono"),
    Column("who", "User"),
    Column("remark", "Remarks"),
)


def build(view: PageView) -> None:
    with panel("Clusters", note="of Ray, with spot workers"):
        none, command = "No cluster is up.", "outlast cluster up"
        listing = Listing(view, "Clusters", _COLUMNS, key="name", none=none, command=command)

    def tell(told: TopicUpdate[tuple[ClusterRow, ...]]) -> None:
        listing.tell(told, (_cells(row) for row in told.value or ()))

    follow(view, "clusters", lambda: ClusterReader(view.workspace), tell, every_s=1.0, far_s=15.0)


def _cells(row: ClusterRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "name_href": href("clusters", row.name),
        "phase": row.phase,
        "phase_tone": phase_tone(row.phase, row.problem),
        "machines": row.machines,
        "jobs": row.jobs,
        "price": row.usd_per_hour,
        "price_text": money(row.usd_per_hour),
        "cost": row.cost_usd,
        "cost_text": money(row.cost_usd),
        "who": row.who,
        "asked": row.asked_at,
        "asked_text": moment(row.asked_at),
        "cloud": row.cloud,
        "problem": row.problem,
    }


def build_one(view: PageView) -> None:
    name = view.params["name"]
    with ui.element("div").classes("ol-pile"):
        place = TablePlace("asking the cluster's head")
        none = ui.element("div")
        with ui.element("div").classes("ol-pile") as there:
            head = ui.element("div")
            with panel("Nodes"):
                nodes = ui.element("div").classes("ol-nodes")
            with panel("Jobs"):
                table = Table("Jobs", _JOBS, key="id", rows_shown=15)
                with ui.element("div") as no_jobs:
                    empty("No job yet.", f"outlast cluster submit {name} -- python job.py")
            log = _Log(view)
    there.set_visibility(False)
    none.set_visibility(False)
    shown: list[ClusterSight] = []

    def tell(told: TopicUpdate[ClusterSight]) -> None:
        none.clear()
        none.set_visibility(told.value is None)
        if told.value is None:
            place.told(TopicUpdate(at=told.at))
            with none:
                not_there(told, "cluster", "/clusters")
            return
        place.told(told)
        there.set_visibility(True)
        sight = told.value
        no_jobs.set_visibility(not sight.jobs)
        table.fill(_job(sight.name, job) for job in sight.jobs)
        if shown and shown[0] == sight:
            return
        shown[:] = [sight]
        head.clear()
        with head:
            _head(sight)
        nodes.clear()
        with nodes:
            for node in sight.nodes:
                _node(node)
            if not sight.nodes:
                empty("No machine is there.")
        log.tell(sight)

    follow(view, ("cluster", name), lambda: OneCluster(view.workspace, name), tell, every_s=1.0, far_s=5.0)


def _head(sight: ClusterSight) -> None:
    with ui.element("section").classes("ol-panel").props('aria-label="Cluster"'):
        with ui.element("div").classes("ol-row"):
            heading(sight.name, 1)
            pill("does not answer" if sight.unreachable and sight.phase == "ready" else sight.phase, sight.tone)
            if sight.goes_in_s >= 0:
                ui.label(f"idle; goes down in {describe_s(sight.goes_in_s)}").classes("ol-dim")
        if sight.unreachable:
            warning(f"Ray cannot be asked: {sight.unreachable}. What you see is what the workspace and the cloud know.")
        with ui.element("div").classes("ol-facts ol-below"):
            fact("Machines", str(len(sight.nodes)))
            fact("An hour", money(sight.usd_per_hour))
            fact("Cost so far", money(sight.cost_usd))
            fact("Cloud", sight.cloud)
            fact("Head", sight.head or "none", note=f"made by {sight.who}" if sight.who else "")
        for resource in sight.resources:
            bar(resource.name, resource.part, resource.text)
        if sight.demands or sight.notes:
            with ui.element("div").classes("ol-row ol-below"):
                for demand in sight.demands:
                    pill(f"waits for {demand}", "busy")
                for note in sight.notes:
                    ui.label(note).classes("ol-dim")


def _node(node: NodeRow) -> None:
    with ui.element("section").classes("ol-node") as section:
        section.props["aria-label"] = node.machine
        with ui.element("div").classes("ol-row"):
            ui.label(node.machine).classes("ol-h3")
            pill(node.status, node.tone)
        argv = [node.role if node.role == "head" else node.kind, node.where, node.ray, f"{money(node.usd_per_hour)}/h"]
        ui.label(" · ".join(word for word in argv if word)).classes("ol-dim")
        for resource in node.resources:
            bar(resource.name, resource.part, resource.text)
        if node.why:
            ui.label(node.why).classes("ol-dim")


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
    """The end of the output of the job that the address names; read again when the cluster has changed."""

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
                ui.label("asking the head …").classes("ol-dim")

    def tell(self, sight: ClusterSight) -> None:
        if not self.job:
            return
        known = next((job for job in sight.jobs if job.id == self.job), None)
        self.live = known is not None and known.status == "RUNNING"
        if self.busy:
            return
        if known is None:
            self._say("", f"The cluster has no job `{self.job}`.", "")
        elif sight.unreachable:
            self._say("", f"The output is on the head. {sight.unreachable}", "")
        else:
            self.busy = True
            background_tasks.create(self._read(sight.name), name="job log")

    async def _read(self, cluster: str) -> None:
        reader = OneCluster(self.view.workspace, cluster)
        try:
            while not self.view.client.is_deleted:
                last = not self.live
                text = await self.view.read(reader.log, self.job)
                self._say(text, "" if text else "It has said nothing yet.", "")
                if last:
                    return
                await asyncio.sleep(_LOG_EVERY_S)
        except OutlastError as problem:
            self._say("", problem.message, problem.hint)
        finally:
            self.busy = False

    def _say(self, text: str, problem: str, hint: str) -> None:
        if text and text == self.text:
            return
        self.text = text
        self.place.clear()
        with self.place:
            if text:
                code(text, label=f"Output of {self.job}")
            else:
                trouble(problem, hint)
