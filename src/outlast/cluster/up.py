"""Brings a cluster up: checks everything, writes the record, launches the head, waits for its word.

Whatever can be known to be wrong is told, all of it, before anything is launched.

Repeating it adopts: a head that lives is left alone, one that is lost is replaced, and workers that still live join it.
"""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import msgspec

from outlast.agent import container, oci
from outlast.clouds.cloud import InteractiveCloud, Machine
from outlast.clouds.local.cloud import LocalCloud
from outlast.cluster import broker, volume_checks
from outlast.cluster.boot import boot
from outlast.cluster.down import delete_machine, take_down
from outlast.cluster.raystart import resources
from outlast.cluster.record import LABEL_ID, LABEL_NAME, LEASE_S, Cluster, ClusterMount, Clusters, NodeState
from outlast.code.bundle import git_record, pack, store
from outlast.code.record import CodeRecord
from outlast.errors import CloudError, Exists, NotFound, OutlastError, SpecError, UsageError
from outlast.machines import sshfiles
from outlast.machines.create import MachineRequest, create_machine
from outlast.records.machines import MachineRecords
from outlast.runs.data import local_path
from outlast.spec.cluster import ClusterSpec, NodeKind
from outlast.store.access import needs_key
from outlast.store.blobs import put_blob

Report = Callable[[str], None]
# As long as the guard of a head tries, three times two minutes on a busy computer, and a little.
_WAIT_S = {"local": 420.0}
_WAIT_ELSEWHERE_S = 900.0
_SECRET_MAX = 60_000
_MODES = ("root", "userns")


class ClusterOptions(msgspec.Struct, kw_only=True):
    """One `up`: what is asked for, and where its files are."""

    spec: ClusterSpec
    source: str
    # `host:path`; empty if there is no file.
    file: str = ""
    folder: str = "."
    who: str = ""


def check(order: ClusterOptions, cloud: InteractiveCloud, workspace_url: str) -> dict[str, dict[str, float]]:
    """What Ray will believe that each kind of node has. Raises SpecError with everything that is wrong."""
    spec, problems = order.spec, []
    if isinstance(cloud, LocalCloud) and cloud.mode not in _MODES:
        problems.append(
            f"cloud: machines of the local cloud in mode `{cloud.mode}` have no network of their own, which Ray needs"
        )
    if cloud.name != "local" and local_path(workspace_url):
        own = "s3" if cloud.name == "aws" else "gs"
        problems.append(f"workspace: machines of a real cloud cannot see a folder of this computer; use {own}://…")
    elif needs_key(workspace_url, cloud.name, os.environ):
        problems.append(f"workspace: machines of {cloud.name} need a store of their own cloud, and not {workspace_url}")
    if isinstance(cloud, LocalCloud) and cloud.mode != "root" and _images(spec):
        problems.append("container: machines of the local cloud have containers in mode `root` alone, which needs root")
    elif isinstance(cloud, LocalCloud):
        problems += [wrong for image in _images(spec) if (wrong := _no_container(image))]
    for there, here in spec.files.items():
        if not os.path.exists(_here(order, here)):
            problems.append(f"files {there}: there is no `{here}` here")
    has: dict[str, dict[str, float]] = {}
    for kind in (spec.head, *spec.workers):
        try:
            offers = cloud.offers(kind.needs())
        except CloudError as problem:
            problems.append(f"{kind.name}: {problem.message}" + (f" ({problem.hint})" if problem.hint else ""))
            continue
        if not offers:
            problems.append(f"{kind.name}: no machine of {cloud.name} is like that")
        has[kind.name] = resources(kind, offers[0] if offers else None)
    if problems:
        raise SpecError(problems, source=order.source, hint="nothing was launched")
    # Without a word of the file the head carries drivers and no tasks: a task that eats its memory ends every job.
    if "CPU" not in spec.head.resources:
        has[spec.head.name]["CPU"] = 0.0
    return has


def _images(spec: ClusterSpec, *kinds: NodeKind) -> list[str]:
    """Of containers, each once."""
    boxes = [kind.container for kind in kinds or (spec.head, *spec.workers)]
    return list(dict.fromkeys(box.image for box in boxes if box is not None))


def _no_container(image: str) -> str:
    """Why machines of this computer cannot have a container with this image; empty if they can."""
    if not image.startswith(container.OCI):
        if shutil.which("podman"):
            return ""
        how = "`docker export CONTAINER | tar -x -C FOLDER`, and `oci:FOLDER` as the image"
        return f"container {image}: machines of the local cloud have no docker; unpack it: {how}"
    try:
        if image.startswith(f"{container.OCI}~"):
            raise UsageError("give the full path")
        container.find_engine(image)
        oci.root_of(container.oci_path(image), UsageError)
    except OutlastError as problem:
        why = problem.message.removeprefix("[machine] container: ")
        return f"container {image}: {why}" + (f" ({problem.hint})" if problem.hint else "")
    return ""


def _here(order: ClusterOptions, path: str) -> str:
    return os.path.join(order.folder, os.path.expanduser(path))


class Up:
    """One run of `up`."""

    def __init__(self, clusters: Clusters, cloud: InteractiveCloud, order: ClusterOptions, *, report: Report) -> None:
        self.clusters = clusters
        self.cloud = cloud
        self.order = order
        self.report = report

    def run(self) -> Cluster:
        """The cluster, ready. Raises with nothing left behind; whoever is killed on the way leaves it to the reaper."""
        has = check(self.order, self.cloud, self.clusters.workspace.url)
        found = self.clusters.find(self.order.spec.name)
        if found is not None:
            return self._adopt(found, has)
        # Where a volume cannot be reached from some zones, its machines are born in the others.
        spec = volume_checks.checked(self.clusters.workspace, self.cloud, self.order.spec, source=self.order.source)
        self.order = msgspec.structs.replace(self.order, spec=spec)
        cluster = self._claim(has)
        with ExitStack() as undo:
            undo.callback(lambda: self._undo(cluster))
            cluster = self._prepare(cluster)
            ready = self._bring_up(cluster)
            undo.pop_all()
            return ready

    def _undo(self, cluster: Cluster) -> None:
        self.report("taking down what there is of it")
        take_down(self.clusters, {self.cloud.name: self.cloud}, cluster, report=self.report)

    def _claim(self, has: Mapping[str, Mapping[str, float]]) -> Cluster:
        spec = self.order.spec
        cluster_id = secrets.token_hex(4)
        cluster = Cluster(
            name=spec.name,
            id=cluster_id,
            cloud=self.cloud.name,
            spec=spec,
            who=self.order.who,
            file=self.order.file,
            asked_at=time.time(),
            head=_head_name(spec.name, cluster_id),
            secrets=f"outlast-{self.clusters.workspace.id}-cluster-{cluster_id}",
            has={kind: dict(amounts) for kind, amounts in has.items()},
        )
        if self.cloud.name != "local":
            self.clusters.workspace.remember_cloud(self.cloud.name)
        try:
            return self.clusters.create(cluster)
        except Exists as problem:
            raise UsageError(
                f"somebody brings `{spec.name}` up just now", hint="wait, or take another name"
            ) from problem

    def _prepare(self, cluster: Cluster) -> Cluster:
        """Its token, its code, its files; from here on machines can be born."""
        values = {"RAY_TOKEN": secrets.token_hex(32)}
        mounts = {there: self._mount(_here(self.order, here), values) for there, here in cluster.spec.files.items()}
        self.cloud.put_secrets(cluster.secrets, values, supervisors=True)
        workers = boot(
            self.clusters.workspace,
            cluster.name,
            cluster.cloud,
            role="worker",
            secrets=cluster.secrets,
            life_s=cluster.spec.life_s,
            volumes=volume_checks.mounts(self.clusters.workspace, cluster.spec),
            images=_images(cluster.spec, *cluster.spec.workers),
        )
        return self.clusters.write(
            msgspec.structs.replace(cluster, mounts=mounts, code=self._code(), worker_boot=workers)
        )

    def _code(self) -> CodeRecord | None:
        code = self.order.spec.code
        if code is None:
            return None
        if code.git:
            return git_record(code.git, code.ref)
        bundle = pack(_here(self.order, code.path), bytes_max=int(code.size_max_gb * 1e9))
        for left in bundle.left_out:
            self.report(f"left out of the bundle: {left.path} ({left.why})")
        return store(self.clusters.bucket, bundle)

    def _mount(self, path: str, values: dict[str, str]) -> ClusterMount:
        if os.path.isdir(path):
            return ClusterMount(code=store(self.clusters.bucket, pack(path, exclude=self.order.spec.files_exclude)))
        with open(path, "rb") as file:
            body = file.read()
        executable = os.access(path, os.X_OK)
        if b"PRIVATE KEY-----" in body[:200] and len(body) <= _SECRET_MAX:
            # A deploy key, say: it goes the way of the token, and never into the workspace.
            name = f"FILE_{len(values)}"
            values[name] = base64.b64encode(body).decode()
            return ClusterMount(secret=name)
        return ClusterMount(blob=put_blob(self.clusters.bucket, body), executable=executable)

    def _bring_up(self, cluster: Cluster) -> Cluster:
        path = ""
        if isinstance(self.cloud, LocalCloud):
            broker.start(self.cloud, cluster.id, cluster.head, cluster.secrets)
            path = broker.socket_path(cluster.id)
        head = cluster.spec.head
        own = boot(
            self.clusters.workspace,
            cluster.name,
            cluster.cloud,
            role="head",
            secrets=cluster.secrets,
            life_s=cluster.spec.life_s,
            broker=path,
            volumes=volume_checks.mounts(self.clusters.workspace, cluster.spec),
            images=_images(cluster.spec, cluster.spec.head),
        )
        request = MachineRequest(
            name=cluster.head,
            needs=head.needs(),
            boot=msgspec.structs.replace(
                own,
                image=head.image,
                disk_gb=head.disk_gb,
                metadata={**head.metadata, **own.metadata, "outlast-machine": cluster.head},
                ssh_keys=(sshfiles.public_key(),),
            ),
            labels={LABEL_NAME: cluster.name, LABEL_ID: cluster.id},
            purpose=cluster.purpose,
        )
        self.report(f"launching the head {cluster.head} on {cluster.cloud}")
        _, machine_record = create_machine(self.cloud, self.clusters.machine_records, request, report=self.report)
        self._wait(cluster)
        machine_records = self.clusters.machine_records
        machine_records.write(
            msgspec.structs.replace(machine_record, phase="ready", until=machine_records.now() + LEASE_S)
        )
        return self.clusters.write(msgspec.structs.replace(cluster, phase="ready"))

    def _wait(self, cluster: Cluster) -> None:
        """Until the head says that it is ready. Raises CloudError with its own words."""
        ends_at = time.monotonic() + _WAIT_S.get(cluster.cloud, _WAIT_ELSEWHERE_S)
        told, looked_at = "", time.monotonic()
        while True:
            state = self.clusters.get(cluster.name, "state", cluster.head, NodeState)
            place = self.clusters.head(cluster.name)
            if state is not None:
                line = state.phase + (f": {state.why}" if state.why else "")
                if line != told:
                    self.report(f"{cluster.head}: {line}")
                told = line
                if state.phase == "failed":
                    raise CloudError(f"the head did not come up: {state.why}")
                if state.phase == "ready" and place is not None and place.machine == cluster.head:
                    return
            if time.monotonic() > ends_at:
                raise CloudError(f"the head did not come up in time; it was last {told or 'booting'}")
            if time.monotonic() - looked_at > 5.0:
                looked_at = time.monotonic()
                self.clusters.write(cluster)  # says that we are still at it
                self._check_lives(cluster.head)
            time.sleep(0.2)

    def _check_lives(self, head: str) -> None:
        try:
            machine = self.cloud.machine(head)
        except NotFound as problem:
            raise CloudError(f"the head {head} is gone before it was ready") from problem
        if machine.status in ("stopped", "broken"):
            tail = "\n".join(self.cloud.serial(head).strip().splitlines()[-10:])
            raise CloudError(f"the head {head} is {machine.status}: {machine.why}\n{tail}")

    # Again

    def _adopt(self, found: Cluster, has: Mapping[str, Mapping[str, float]]) -> Cluster:
        """What is there of it goes on; a head that is lost is replaced."""
        if found.cloud != self.cloud.name:
            raise UsageError(f"`{found.name}` is on {found.cloud}", hint=f"`outlast cluster down {found.name}` first")
        if found.phase == "deleting":
            raise UsageError(f"`{found.name}` is being taken down", hint=f"repeat `outlast cluster down {found.name}`")
        if found.file and self.order.file and found.file != self.order.file:
            raise UsageError(
                f"there is a cluster `{found.name}` already, made by {found.who or 'somebody'} from {found.file}",
                hint="take another name in this file",
            )
        if found.phase == "creating" and _somebody_is_at_it(self.clusters.machine_records, found):
            raise UsageError(f"somebody brings `{found.name}` up just now: {found.by}", hint="wait for it")
        if found.spec != self.order.spec:
            self.report(
                "the file has changed; kinds and counts of workers hold from now on, machines that are there stay"
            )
        merged = msgspec.structs.replace(
            found, spec=self.order.spec, has={kind: dict(amounts) for kind, amounts in has.items()}
        )
        if self._head_lives(found):
            return self._join(found, merged)
        self.report(f"the head {found.head} is lost, and every job that ran is lost with it; launching another")
        delete_machine(self.clusters, self.cloud, found, found.head, why="the head was lost")
        again = msgspec.structs.replace(merged, phase="creating", head=_head_name(found.name, found.id))
        return self._bring_up(self._prepare(self.clusters.write(again)))

    def _head_lives(self, cluster: Cluster) -> bool:
        try:
            machine: Machine = self.cloud.machine(cluster.head)
        except NotFound:
            return False
        state = self.clusters.get(cluster.name, "state", cluster.head, NodeState)
        failed = state is not None and state.phase in ("failed", "leaving")
        return machine.status in ("pending", "running") and not failed

    def _join(self, found: Cluster, wanted: Cluster) -> Cluster:
        """The head is there: see that it is ready, and that it can launch machines."""
        if isinstance(self.cloud, LocalCloud) and not broker.answers(found.id):
            self.report("its broker is gone; starting it again")
            broker.start(self.cloud, found.id, found.head, found.secrets)
        self._wait(found)
        machine_record = self.clusters.machine_records.find(found.head)
        if machine_record is not None and machine_record.phase != "ready":
            until = self.clusters.machine_records.now() + LEASE_S
            self.clusters.machine_records.write(msgspec.structs.replace(machine_record, phase="ready", until=until))
        self.report(f"`{found.name}` is up already")
        return self.clusters.write(msgspec.structs.replace(wanted, phase="ready"))


def _head_name(cluster: str, cluster_id: str) -> str:
    return f"{cluster[:30].rstrip('-')}-head-{cluster_id}-{secrets.token_hex(2)}"


def _somebody_is_at_it(machine_records: MachineRecords, cluster: Cluster) -> bool:
    return not machine_records.without_cluster(cluster.name)


def file_name(path: str) -> str:
    return f"{socket.gethostname()}:{os.path.realpath(path)}"
