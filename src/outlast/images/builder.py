"""One build of an image on a temporary machine: launch, run the steps, scrub, stop, snapshot, delete.

The machine's record is written before the launch, and an image appears atomically. A killed build leaves a machine that
the reaper finds; a failed build leaves none.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import msgspec

from outlast.clouds.cloud import LABEL_MACHINE, LABEL_WORKSPACE, Boot, Image, InteractiveCloud, Machine
from outlast.errors import BadRequest, CloudError, NoCapacity, NotFound, OutlastError, OverQuota, StoreUnreachable
from outlast.images import scrub, steps
from outlast.images.recipe import Recipe
from outlast.images.records import BuildFailure, BuildLog, BuildResult
from outlast.images.remote import Remote, StepFailed, paths
from outlast.kit.libraries import uv_archive
from outlast.machines import sshfiles
from outlast.machines.billing import close
from outlast.records.machines import MachineRecord, MachineRecords
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.images.build import BuildRequest

LABEL_RECIPE = "outlast-recipe"
LABEL_IMAGE = "outlast-image"
PURPOSE = "image"
# Interval of the sign of life for waiting processes and for the reaper.
_HEARTBEAT_S = 5.0
_LOG_S = 0.5
# Time beyond the recipe's timeout to boot, scrub, stop and copy. After that, the cloud itself ends the machine.
_MARGIN_S = 1800.0


class BuildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one build that do not change the image's digest."""

    keep: tuple[str, ...] = ()
    keep_on_failure_s: float = 0.0
    # Build even if the image exists.
    again: bool = False


def find_built(cloud: InteractiveCloud, recipe: Recipe) -> Image | None:
    """Return the image of this recipe, if the cloud has it."""
    for image in cloud.images():
        if image.name == recipe.image and image.labels.get(LABEL_RECIPE) == recipe.digest:
            return image
    return None


class Builder:
    """One build, while the caller holds the lease."""

    def __init__(self, request: BuildRequest) -> None:
        self.workspace, self.cloud, self.recipe = request.workspace, request.cloud, request.recipe
        self.who, self.options, self.lease = request.who, request.options, request.lease
        self.report, self.show = request.report, request.show
        self.records = request.records
        self.machine_records = MachineRecords(self.workspace)
        self.log = BuildLog(self.records, self.recipe.digest)

    def build(self) -> Image:
        """Build and return the image. Raises StepFailed for errors of the recipe, CloudError."""
        began = time.monotonic()
        machine_record = MachineRecord(
            name=f"image-{self.recipe.digest[:12]}-e{self.lease.epoch}-{self.workspace.id[:6]}",
            id=self.workspace.ids(),
            cloud=self.cloud.name,
            who=self.who,
            purpose=PURPOSE,
            asked_at=self.workspace.clock(),
            image=self.recipe.base,
        )
        with ExitStack() as last:
            last.push(functools.partial(self._on_exit, machine_record))
            last.enter_context(self._heartbeat(machine_record))
            # Write the record first: a machine launched before it would be unknown to the reaper, and billed.
            self.machine_records.create(machine_record)
            machine = self._launch(machine_record)
            scrubbed = self._run_steps(machine)
            image = self._create_image(machine_record)
        cost = self._cost(machine)
        self.records.write_result(
            self.recipe.digest,
            BuildResult(
                image=image.name,
                who=self.who,
                built_at=self.workspace.clock(),
                seconds=time.monotonic() - began,
                cost_usd=cost,
                bytes=image.bytes,
                scrubbed=scrubbed,
            ),
        )
        self._delete(machine_record)
        return image

    @contextmanager
    def _heartbeat(self, machine_record: MachineRecord) -> Iterator[None]:
        """Renew the lease, the machine's record and the stored log in a thread."""
        over = threading.Event()

        def beat() -> None:
            beat_at = 0.0
            while not over.wait(_LOG_S):
                try:
                    self.log.flush()
                    if time.monotonic() - beat_at > _HEARTBEAT_S:
                        beat_at = time.monotonic()
                        if self.lease.renew() and self.machine_records.find(machine_record.name) is not None:
                            self.machine_records.write(machine_record)
                except StoreUnreachable:
                    continue  # temporary; otherwise the build itself fails

        thread = threading.Thread(target=beat, name="image-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _launch(self, machine_record: MachineRecord) -> Machine:
        spec = self.recipe.spec.machine
        needs = msgspec.structs.replace(spec.needs(spot=spec.spot), image=self.recipe.base)
        offers = self.cloud.offers(needs)
        if not offers:
            raise BadRequest(
                f"no machine type of {self.cloud.name} matches `[image]`", hint="reduce `cpus`, `memory` or `gpu`"
            )
        boot = Boot(
            image=self.recipe.base,
            disk_gb=spec.disk_gb,
            ssh_keys=(sshfiles.public_key(),),
            life_max_s=self.recipe.spec.timeout_s + self.options.keep_on_failure_s + _MARGIN_S,
        )
        labels = {
            LABEL_WORKSPACE: self.workspace.id,
            LABEL_MACHINE: machine_record.id,
            LABEL_IMAGE: self.recipe.image,
            LABEL_RECIPE: self.recipe.digest,
        }
        refusal: CloudError | None = None
        for offer in offers:
            try:
                machine = self.cloud.launch(offer, machine_record.name, boot=boot, labels=labels)
            except (NoCapacity, OverQuota) as problem:
                refusal = problem
                continue
            self.report(f"builder {machine_record.name}: {offer.type} in {offer.zone}, from `{self.recipe.made_from}`")
            return machine
        assert refusal is not None
        raise refusal

    def _run_steps(self, machine: Machine) -> tuple[str, ...]:
        """Copy the files, run the steps and scrub. Return the removed paths."""
        deadline = time.monotonic() + self.recipe.spec.timeout_s
        remote = Remote(self.cloud, machine.name, deadline=deadline, write=self._output)
        try:
            remote.wait()
            todo = steps.steps(self.recipe, shares_software=remote.shares_software)
            remote.send({**steps.texts(self.recipe, todo), **self._uv(remote, todo)})
            for target, source in self.recipe.spec.files.items():
                self._begin(f"{source} → {target}")
                remote.copy(os.path.join(self.recipe.folder, os.path.expanduser(source)), target)
            for step in todo:
                self._begin(step.title)
                began = time.monotonic()
                remote.run(step)
                self._progress(f"{step.title}: done in {describe_s(time.monotonic() - began)}")
            return self._scrub(remote)
        finally:
            remote.close()
            sshfiles.forget_machine(machine.name)

    def _uv(self, remote: Remote, todo: Sequence[steps.Step]) -> dict[str, bytes]:
        """Return the kit's `uv` for the builder's processor, if the recipe has Python packages."""
        if not any(step.name == "pip" for step in todo):
            return {}
        return {steps.UV_ARCHIVE: uv_archive(architecture=remote.output_of("uname -m").decode().strip())}

    def _scrub(self, remote: Remote) -> tuple[str, ...]:
        own_root = not remote.shares_software
        keep = (*self.recipe.spec.keep, *self.options.keep)
        home = remote.home()
        found = scrub.parse_listing(remote.output_of(scrub.listing(own_root=own_root, build_folder=steps.BUILD_FOLDER)))
        mounts = scrub.parse_mounts(remote.output_of("cat /proc/self/mountinfo").decode("utf-8", "surrogateescape"))
        removed = scrub.to_remove(found, keep=keep, home=home, mounts=mounts)
        private = [item for item in removed if item.why != scrub.OF_THE_BUILD]
        if private:
            self._begin(f"scrub: {len(private)} removed before the snapshot")
        for line in scrub.summary(private, home=home):
            self._output(line)
        kept = [item for item in found if scrub.kept(item.path, keep=keep, home=home)]
        for item in kept:
            self._output(f"  kept: {scrub.shown(item.path, home)}  ({item.why})")
        opened = scrub.to_open(list(self.recipe.spec.files), own_root=own_root, home=home, mounts=mounts)
        # A kept private key must stay private: ssh refuses one that others can read.
        skip = [*(item.path for item in kept), *scrub.foreign_mounts(mounts, home=home)]
        # Before the removal, which also deletes the ssh keys.
        shared = [home, steps.SYSTEM_ENV] if own_root else [home]
        remote.output_of(scrub.opening(opened, shared=shared, skip=skip))
        remote.output_of(scrub.removal(), input=paths([item.path for item in removed]))
        return tuple(item.path for item in private)

    def _create_image(self, machine_record: MachineRecord) -> Image:
        if not self.lease.renew():
            raise OutlastError(
                "lost the lease: another process now builds the same image, because this computer was silent too long",
                hint="build again: it waits for the other build, or finds its image",
            )
        self._begin("stop and snapshot")
        self.cloud.stop(machine_record.name)
        spec = self.recipe.spec
        labels = {LABEL_WORKSPACE: self.workspace.id, LABEL_RECIPE: self.recipe.digest, "outlast-who": _label(self.who)}
        note = f"built by {self.who} from {self.recipe.made_from}"
        try:
            image = self.cloud.snapshot(
                machine_record.name, self.recipe.image, family=spec.name, labels=labels, note=note
            )
        except BadRequest:
            # Another workspace built the same recipe at the same time: use its image.
            image_ = find_built(self.cloud, self.recipe)
            if image_ is None:
                raise
            image = image_
        self._progress(f"`{image.name}` is the newest image of `{spec.name}`")
        return image

    def _cost(self, machine: Machine) -> float:
        try:
            return self.cloud.machine(machine.name).cost_usd
        except NotFound:
            return 0.0

    def _on_exit(
        self, machine_record: MachineRecord, _kind: object, problem: BaseException | None, _trace: object
    ) -> None:
        """After a failure, record the reason and delete the builder, or keep it if requested."""
        if problem is None:
            return
        why = problem.message if isinstance(problem, OutlastError) else type(problem).__name__
        self._record_failure(why, problem)
        if self.options.keep_on_failure_s and isinstance(problem, StepFailed):
            until = self.machine_records.now() + self.options.keep_on_failure_s
            self.machine_records.write(msgspec.structs.replace(machine_record, phase="ready", until=until))
            name, kept = machine_record.name, describe_s(self.options.keep_on_failure_s)
            self.report(f"the builder keeps running and is billed for {kept}: `outlast machine ssh {name}`")
            self.report(f"to delete it earlier: `outlast machine delete {name}`")
            return
        try:
            self._delete(machine_record)
        except OutlastError as another:
            name = machine_record.name
            self.report(f"could not delete the builder {name}: {another.message}; `outlast reap` deletes it later")

    def _record_failure(self, why: str, problem: BaseException) -> None:
        hint = problem.hint if isinstance(problem, OutlastError) else ""
        step = problem.step if isinstance(problem, StepFailed) else ""
        failure = BuildFailure(
            why=why, hint=hint, step=step, epoch=self.lease.epoch, who=self.who, at=self.workspace.clock()
        )
        try:
            self.log.write(f"outlast: failed: {why}")
            self.log.flush()
            self.records.write_failure(self.recipe.digest, failure)
        except StoreUnreachable as another:
            self.report(f"could not record the failure: {another.message}")

    def _delete(self, machine_record: MachineRecord) -> None:
        close(self.cloud, self.machine_records, machine_record)
        self.cloud.delete(machine_record.name)
        self.machine_records.remove(machine_record.name)
        self.log.flush()

    def _begin(self, title: str) -> None:
        self._progress(f"── {title}")

    def _progress(self, text: str) -> None:
        self.report(text)
        self.log.write(text)

    def _output(self, line: str) -> None:
        self.show(line)
        self.log.write(line)


def _label(text: str) -> str:
    """Return the text as a label that every cloud accepts: lower-case letters, digits, `-` and `_`."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in text.lower())[:63]
