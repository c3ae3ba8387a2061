"""`outlast cluster up`: checks the spec, writes the record, launches the head and waits until it is ready.

All detectable problems are reported together before any launch. Repeating `up` adopts the cluster: a live head stays,
a lost one is replaced, and live workers join the new head.
"""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import msgspec

from outlast.agent import container, oci
from outlast.clouds.cloud import Boot, Cloud, InteractiveCloud, Machine, why_missing
from outlast.cluster import broker
from outlast.cluster.boot import boot, volume_mounts
from outlast.cluster.down import delete_machine, take_down
from outlast.cluster.raystart import node_resources
from outlast.cluster.record import LABEL_ID, LABEL_NAME, LEASE_S, Cluster, ClusterMount, Clusters, NodeState
from outlast.code.bundle import git_record, pack, store
from outlast.code.environment import EnvironmentRecord
from outlast.code.record import CodeRecord
from outlast.environments.host import host_environment
from outlast.environments.project import project_environment
from outlast.errors import CloudError, Exists, NotFound, OutlastError, SpecError, UsageError
from outlast.machines import sshfiles
from outlast.machines.create import MachineRequest, Report, create_machine
from outlast.records.resources import ResourceRecords
from outlast.runs.data import local_path
from outlast.spec.cluster import ClusterSpec, NodeKind
from outlast.store.access import needs_key
from outlast.store.blobs import put_blob
from outlast.store.shared import check_references
from outlast.volumes.mounts import check_volumes, zones_for
from outlast.workspace import Workspace

_SECRET_MAX = 60_000


class ClusterOptions(msgspec.Struct, kw_only=True):
    """The arguments of one `up`: the spec, and the location of its files."""

    spec: ClusterSpec
    source: str
    # `host:path` of the cluster file; empty without one.
    file: str = ""
    folder: str = "."
    who: str = ""


def check(options: ClusterOptions, cloud: InteractiveCloud, workspace_url: str) -> dict[str, dict[str, float]]:
    """Return the resources that Ray assumes per kind of node. Raises SpecError with all problems."""
    spec, problems = options.spec, []
    if why := why_missing(cloud, "network"):
        problems.append(f"cloud: {why}, which Ray needs")
    if cloud.traits.remote and local_path(workspace_url):
        url = cloud.traits.store_url
        problems.append(f"workspace: machines of {cloud.name} cannot reach a folder of this computer; use {url}")
    elif needs_key(workspace_url, cloud.name, os.environ):
        problems.append(
            f"workspace: machines of {cloud.name} need an object store of {cloud.name}, not {workspace_url}"
        )
    if _images(spec) and (why := why_missing(cloud, "containers")):
        problems.append(f"container: {why}")
    elif cloud.traits.shares_host_files:
        problems += [wrong for image in _images(spec) if (wrong := _why_no_container(image))]
    for there, here in spec.files.items():
        if not os.path.exists(_source_path(options, here)):
            problems.append(f"files {there}: `{here}` does not exist on this computer")
    resources: dict[str, dict[str, float]] = {}
    for kind in (spec.head, *spec.workers):
        try:
            offers = cloud.offers(kind.needs())
        except CloudError as problem:
            problems.append(f"{kind.name}: {problem.message}" + (f" ({problem.hint})" if problem.hint else ""))
            continue
        if not offers:
            problems.append(f"{kind.name}: no machine type of {cloud.name} matches")
        resources[kind.name] = node_resources(kind, offers[0] if offers else None)
    if problems:
        raise SpecError(problems, source=options.source, hint="nothing was launched")
    # By default the head runs drivers but no tasks: a task that exhausts its memory would end every job.
    if "CPU" not in spec.head.resources:
        resources[spec.head.name]["CPU"] = 0.0
    return resources


def _images(spec: ClusterSpec, *kinds: NodeKind) -> list[str]:
    """Return the distinct container images of the kinds; of all kinds by default."""
    containers = [kind.container for kind in kinds or (spec.head, *spec.workers)]
    return list(dict.fromkeys(found.image for found in containers if found is not None))


def _why_no_container(image: str) -> str:
    """Return why machines on this computer cannot run this image; empty if they can."""
    if not image.startswith(container.OCI):
        if shutil.which("podman"):
            return ""
        how = "`docker export CONTAINER | tar -x -C FOLDER`, and use `oci:FOLDER` as the image"
        return f"container {image}: machines of the local cloud have no docker; unpack the image: {how}"
    try:
        if image.startswith(f"{container.OCI}~"):
            raise UsageError("give the full path")
        container.find_engine(image)
        oci.root_of(container.oci_path(image), UsageError)
    except OutlastError as problem:
        why = problem.message.removeprefix("[machine] container: ")
        return f"container {image}: {why}" + (f" ({problem.hint})" if problem.hint else "")
    return ""


def _source_path(options: ClusterOptions, path: str) -> str:
    return os.path.join(options.folder, os.path.expanduser(path))


def _with_zones(workspace: Workspace, cloud: Cloud, spec: ClusterSpec, *, source: str) -> ClusterSpec:
    """Return the spec with zones limited to those that reach all volumes. Raises SpecError before any launch."""
    if not spec.volumes:
        return spec
    records = ResourceRecords(workspace, "volume")
    kinds = [[kind.needs()] for kind in (spec.head, *spec.workers)]
    problems = check_volumes(records, spec.volumes, cloud=cloud, where=spec.cloud, kinds=kinds)
    if problems:
        raise SpecError(problems, source=source)

    def narrowed(kind: NodeKind) -> NodeKind:
        zones = zones_for(records, cloud, spec.volumes, [kind.needs()])
        return kind if zones is None else msgspec.structs.replace(kind, zones=zones)

    return msgspec.structs.replace(spec, head=narrowed(spec.head), workers=tuple(map(narrowed, spec.workers)))


class Up:
    """One execution of `outlast cluster up`."""

    def __init__(self, clusters: Clusters, cloud: InteractiveCloud, options: ClusterOptions, *, report: Report) -> None:
        self.clusters = clusters
        self.cloud = cloud
        self.options = options
        self.report = report

    def run(self) -> Cluster:
        """Return the ready cluster. An error leaves nothing behind; after a kill, the reaper cleans up."""
        resources = check(self.options, self.cloud, self.clusters.workspace.url)
        found = self.clusters.find(self.options.spec.name)
        if found is not None:
            return self._adopt(found, resources)
        # Launch only in zones that reach all volumes.
        spec = _with_zones(self.clusters.workspace, self.cloud, self.options.spec, source=self.options.source)
        self.options = msgspec.structs.replace(self.options, spec=spec)
        cluster = self._claim(resources)
        with ExitStack() as undo:
            undo.callback(lambda: self._undo(cluster))
            cluster = self._prepare(cluster)
            ready = self._bring_up(cluster)
            undo.pop_all()
            return ready

    def _undo(self, cluster: Cluster) -> None:
        self.report("deleting the incomplete cluster")
        take_down(self.clusters, {self.cloud.name: self.cloud}, cluster, report=self.report)

    def _claim(self, resources: Mapping[str, Mapping[str, float]]) -> Cluster:
        spec = self.options.spec
        cluster_id = secrets.token_hex(4)
        cluster = Cluster(
            name=spec.name,
            id=cluster_id,
            cloud=self.cloud.name,
            spec=spec,
            who=self.options.who,
            file=self.options.file,
            asked_at=time.time(),
            head=_head_name(spec.name, cluster_id),
            secrets=f"outlast-{self.clusters.workspace.id}-cluster-{cluster_id}",
            resources={kind: dict(amounts) for kind, amounts in resources.items()},
        )
        self.clusters.workspace.remember_cloud(self.cloud.name)
        try:
            return self.clusters.create(cluster)
        except Exists as problem:
            raise UsageError(
                f"another process is creating cluster `{spec.name}`", hint="wait, or choose another name"
            ) from problem

    def _prepare(self, cluster: Cluster) -> Cluster:
        """Store the token, the code and the files, which machines need from their start."""
        values = {"RAY_TOKEN": secrets.token_hex(32)}
        mounts = {
            there: self._mount(_source_path(self.options, here), values) for there, here in cluster.spec.files.items()
        }
        self.cloud.put_secrets(cluster.secrets, values, supervisors=True)
        cluster = msgspec.structs.replace(cluster, mounts=mounts, code=self._code(), environment=self._environment())
        workers = self._boot(cluster, "worker", cluster.spec.workers)
        cluster = self.clusters.write(msgspec.structs.replace(cluster, worker_boot=workers))
        check_references(self.clusters.bucket, cluster.shared_keys)
        return cluster

    def _environment(self) -> EnvironmentRecord | None:
        """Resolve the packages of the project if they include Ray; None: machines use those of their image."""
        spec = self.options.spec
        if _images(spec):
            return None
        code = spec.code
        if code is not None and code.git:
            return None
        return project_environment(
            self.clusters.bucket,
            _source_path(self.options, code.path if code else "."),
            spec.environment,
            base="host" if self.cloud.traits.shares_host_files else "chosen" if spec.head.image else "default",
            report=self.report,
            needs="ray",
        )

    def _boot(self, cluster: Cluster, role: str, kinds: Sequence[NodeKind], broker: str = "") -> Boot:
        path = ""
        if cluster.environment is not None and self.cloud.traits.shares_host_files:
            path = host_environment(self.clusters.bucket, cluster.environment, self.report)
        return boot(
            self.clusters.workspace,
            cluster.name,
            cluster.cloud,
            role=role,
            secrets=cluster.secrets,
            life_s=cluster.spec.life_s,
            broker=broker,
            volumes=volume_mounts(self.clusters.workspace, cluster.spec),
            images=_images(cluster.spec, *kinds),
            environment=path,
        )

    def _code(self) -> CodeRecord | None:
        code = self.options.spec.code
        if code is None:
            return None
        if code.git:
            return git_record(code.git, code.ref)
        bundle = pack(_source_path(self.options, code.path), bytes_max=int(code.size_max_gb * 1e9))
        for skipped in bundle.left_out:
            self.report(f"left out of the bundle: {skipped.path} ({skipped.why})")
        return store(self.clusters.bucket, bundle)

    def _mount(self, path: str, values: dict[str, str]) -> ClusterMount:
        if os.path.isdir(path):
            return ClusterMount(code=store(self.clusters.bucket, pack(path, exclude=self.options.spec.files_exclude)))
        with open(path, "rb") as file:
            body = file.read()
        executable = os.access(path, os.X_OK)
        if b"PRIVATE KEY-----" in body[:200] and len(body) <= _SECRET_MAX:
            # For example a deploy key: store it as a secret, never in the workspace.
            name = f"FILE_{len(values)}"
            values[name] = base64.b64encode(body).decode()
            return ClusterMount(secret=name)
        return ClusterMount(blob=put_blob(self.clusters.bucket, body), executable=executable)

    def _bring_up(self, cluster: Cluster) -> Cluster:
        path = ""
        if not self.cloud.traits.remote:
            broker.start(self.cloud, cluster.id, cluster.head, cluster.secrets)
            path = broker.socket_path(cluster.id)
        head = cluster.spec.head
        own = self._boot(cluster, "head", [head], broker=path)
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
        """Wait until the head is ready. Raises CloudError with the head's message."""
        ends_at = time.monotonic() + self.cloud.traits.cluster_ready_s
        reported, checked_at = "", time.monotonic()
        while True:
            state = self.clusters.get(cluster.name, "state", cluster.head, NodeState)
            head = self.clusters.head(cluster.name)
            if state is not None:
                line = state.phase + (f": {state.why}" if state.why else "")
                if line != reported:
                    self.report(f"{cluster.head}: {line}")
                reported = line
                if state.phase == "failed":
                    raise CloudError(f"the head failed to start: {state.why}")
                if state.phase == "ready" and head is not None and head.machine == cluster.head:
                    return
            if time.monotonic() > ends_at:
                raise CloudError(f"the head was not ready in time; its last state is `{reported or 'booting'}`")
            if time.monotonic() - checked_at > 5.0:
                checked_at = time.monotonic()
                self.clusters.write(cluster)  # the owner's sign of life
                self._check_alive(cluster.head)
            time.sleep(0.2)

    def _check_alive(self, head: str) -> None:
        try:
            machine = self.cloud.machine(head)
        except NotFound as problem:
            raise CloudError(f"the head {head} was deleted before it was ready") from problem
        if machine.status in ("stopped", "broken"):
            tail = "\n".join(self.cloud.serial(head).strip().splitlines()[-10:])
            raise CloudError(f"the head {head} is {machine.status}: {machine.why}\n{tail}")

    def _adopt(self, found: Cluster, resources: Mapping[str, Mapping[str, float]]) -> Cluster:
        """Adopt an existing cluster; replace a lost head."""
        if found.cloud != self.cloud.name:
            raise UsageError(f"`{found.name}` is on {found.cloud}", hint=f"`outlast cluster down {found.name}` first")
        if found.phase == "deleting":
            raise UsageError(f"`{found.name}` is being taken down", hint=f"repeat `outlast cluster down {found.name}`")
        if found.file and self.options.file and found.file != self.options.file:
            raise UsageError(
                f"cluster `{found.name}` already exists, created by {found.who or 'unknown'} from {found.file}",
                hint="choose another name in this file",
            )
        if found.phase == "creating" and not self.clusters.abandoned(found):
            raise UsageError(f"another process is creating cluster `{found.name}`: {found.by}", hint="wait for it")
        if found.spec != self.options.spec:
            self.report("the file has changed; new workers follow it, existing machines stay")
        merged = msgspec.structs.replace(
            found, spec=self.options.spec, resources={kind: dict(amounts) for kind, amounts in resources.items()}
        )
        if self._head_alive(found):
            return self._join(found, merged)
        self.report(f"the head {found.head} and its running jobs are lost; launching a new head")
        delete_machine(self.clusters, self.cloud, found, found.head, why="the head was lost")
        again = msgspec.structs.replace(merged, phase="creating", head=_head_name(found.name, found.id))
        return self._bring_up(self._prepare(self.clusters.write(again)))

    def _head_alive(self, cluster: Cluster) -> bool:
        try:
            machine: Machine = self.cloud.machine(cluster.head)
        except NotFound:
            return False
        state = self.clusters.get(cluster.name, "state", cluster.head, NodeState)
        failed = state is not None and state.phase in ("failed", "leaving")
        return machine.status in ("pending", "running") and not failed

    def _join(self, found: Cluster, wanted: Cluster) -> Cluster:
        """Wait until the live head is ready, and restart its broker if needed."""
        if not self.cloud.traits.remote and not broker.answers(found.id):
            self.report("restarting the broker, which has died")
            broker.start(self.cloud, found.id, found.head, found.secrets)
        self._wait(found)
        machine_record = self.clusters.machine_records.find(found.head)
        if machine_record is not None and machine_record.phase != "ready":
            until = self.clusters.machine_records.now() + LEASE_S
            self.clusters.machine_records.write(msgspec.structs.replace(machine_record, phase="ready", until=until))
        self.report(f"cluster `{found.name}` is already up")
        return self.clusters.write(msgspec.structs.replace(wanted, phase="ready"))


def _head_name(cluster: str, cluster_id: str) -> str:
    return f"{cluster[:30].rstrip('-')}-head-{cluster_id}-{secrets.token_hex(2)}"


def file_name(path: str) -> str:
    return f"{socket.gethostname()}:{os.path.realpath(path)}"
