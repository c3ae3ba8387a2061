"""One build on one machine of its own: launched, furnished, scrubbed, stopped, made an image of, deleted.

The record of the machine is written before it is launched, and an image appears in one step or not at all: whoever dies
in between leaves a machine that the reaper finds. A build that fails leaves none.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from outlast.clouds.cloud import LABEL_MACHINE, LABEL_WORKSPACE, Boot, Image, InteractiveCloud, Machine
from outlast.errors import BadRequest, CloudError, NoCapacity, NotFound, OutlastError, OverQuota, StoreUnreachable
from outlast.images import scrub, steps
from outlast.images.recipe import Recipe
from outlast.images.records import BuildFailure, BuildLog, BuildResult, ImageRecords
from outlast.images.remote import Remote, StepFailed, paths
from outlast.machines import sshfiles
from outlast.machines.billing import close
from outlast.records.machines import MachineRecord, MachineRecords
from outlast.spec.quantity import describe_s
from outlast.store.lease import Lease
from outlast.workspace import Workspace

LABEL_RECIPE = "outlast-recipe"
LABEL_IMAGE = "outlast-image"
PURPOSE = "image"
# Who builds says so this often, to those who wait and to the reaper.
_BEAT_S = 5.0
_LOG_S = 0.5
# Beyond the recipe's timeout: to boot, to scrub, to be stopped and copied. Then the cloud itself ends the machine.
_MARGIN_S = 1800.0


class BuildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What whoever builds wants besides the recipe."""

    keep: tuple[str, ...] = ()
    keep_on_failure_s: float = 0.0
    # Build even if there is such an image.
    again: bool = False


def find_built(cloud: InteractiveCloud, recipe: Recipe) -> Image | None:
    """The image of this recipe, if the cloud has it: what a record says of one that was deleted does not count."""
    for image in cloud.images():
        if image.name == recipe.image and image.labels.get(LABEL_RECIPE) == recipe.digest:
            return image
    return None


class Builder:
    """One build, under a lease that is held."""

    def __init__(
        self,
        workspace: Workspace,
        cloud: InteractiveCloud,
        recipe: Recipe,
        *,
        lease: Lease,
        who: str,
        report: Callable[[str], None],
        show: Callable[[str], None],
        wishes: BuildOptions,
    ) -> None:
        self.workspace = workspace
        self.cloud = cloud
        self.recipe = recipe
        self.lease = lease
        self.who = who
        self.report = report
        self.show = show
        self.wishes = wishes
        self.records = ImageRecords(workspace)
        self.machine_records = MachineRecords(workspace)
        self.log = BuildLog(self.records, recipe.digest)

    def build(self) -> Image:
        """The image, new. Raises StepFailed for what the recipe does, CloudError."""
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
            last.push(functools.partial(self._clear_up, machine_record))
            last.enter_context(self._beating(machine_record))
            # The record goes first: a machine launched before it would be unknown to the reaper, and paid for.
            self.machine_records.create(machine_record)
            machine = self._launch(machine_record)
            scrubbed = self._furnish(machine)
            image = self._freeze(machine_record)
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
    def _beating(self, machine_record: MachineRecord) -> Iterator[None]:
        """Say again and again that we are at it, to those who wait and to the reaper."""
        over = threading.Event()

        def beat() -> None:
            beaten_at = 0.0
            while not over.wait(_LOG_S):
                try:
                    self.log.flush()
                    if time.monotonic() - beaten_at > _BEAT_S:
                        beaten_at = time.monotonic()
                        if self.lease.renew() and self.machine_records.find(machine_record.name) is not None:
                            self.machine_records.write(machine_record)
                except StoreUnreachable:
                    continue  # passing; if it is not, the build itself will say so

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
                f"no machine of {self.cloud.name} fits what `[image]` asks of the builder", hint="ask for less"
            )
        boot = Boot(
            image=self.recipe.base,
            disk_gb=spec.disk_gb,
            ssh_keys=(sshfiles.public_key(),),
            life_max_s=self.recipe.spec.timeout_s + self.wishes.keep_on_failure_s + _MARGIN_S,
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
            self.report(f"builder {machine_record.name}: {offer.type} in {offer.zone}, from `{self.recipe.base}`")
            return machine
        assert refusal is not None
        raise refusal

    def _furnish(self, machine: Machine) -> tuple[str, ...]:
        """Everything that is done on the builder; what was scrubbed."""
        deadline = time.monotonic() + self.recipe.spec.timeout_s
        remote = Remote(self.cloud, machine.name, deadline=deadline, write=self._output)
        try:
            remote.wait()
            todo = steps.steps(self.recipe, shares_software=remote.shares_software)
            remote.send(steps.texts(self.recipe, todo))
            for place, source in self.recipe.spec.files.items():
                self._begin(f"{source} → {place}")
                remote.copy(os.path.join(self.recipe.folder, os.path.expanduser(source)), place)
            for step in todo:
                self._begin(step.title)
                began = time.monotonic()
                remote.run(step)
                self._progress(f"{step.title}: done in {describe_s(time.monotonic() - began)}")
            return self._scrub(remote)
        finally:
            remote.close()
            sshfiles.forget_machine(machine.name)

    def _scrub(self, remote: Remote) -> tuple[str, ...]:
        own_root = not remote.shares_software
        keep = (*self.recipe.spec.keep, *self.wishes.keep)
        home = remote.home()
        found = scrub.parse_listing(remote.ask(scrub.listing(own_root=own_root, build_folder=steps.BUILD_FOLDER)))
        mounts = scrub.parse_mounts(remote.ask("cat /proc/self/mountinfo").decode("utf-8", "surrogateescape"))
        doomed = scrub.doomed(found, keep=keep, home=home, mounts=mounts)
        self._begin(f"scrub: {len(doomed)} removed before the snapshot")
        for line in scrub.told(doomed, home=home):
            self._output(line)
        for find in found:
            if scrub.kept(find.path, keep=keep, home=home):
                self._output(f"  kept: {scrub.shown(find.path, home)}  ({find.why})")
        # Before the keys go: nobody may be let in after them.
        remote.ask(scrub.opening(list(self.recipe.spec.files), own_root=own_root, place=steps.SYSTEM_PLACE))
        remote.ask(scrub.removal(), input=paths([find.path for find in doomed]))
        return tuple(find.path for find in doomed)

    def _freeze(self, machine_record: MachineRecord) -> Image:
        if not self.lease.renew():
            raise OutlastError(
                "somebody else builds the same image meanwhile: this computer was silent for too long",
                hint="build again: it waits for the other build, or finds its image",
            )
        self._begin("stop and snapshot")
        self.cloud.stop(machine_record.name)
        spec = self.recipe.spec
        labels = {LABEL_WORKSPACE: self.workspace.id, LABEL_RECIPE: self.recipe.digest, "outlast-who": _label(self.who)}
        note = f"built by {self.who} from {self.recipe.base}"
        try:
            image = self.cloud.snapshot(
                machine_record.name, self.recipe.image, family=spec.name, labels=labels, note=note
            )
        except BadRequest:
            # The same recipe in another workspace, at the same time: its image is as good as ours.
            image_ = find_built(self.cloud, self.recipe)
            if image_ is None:
                raise
            image = image_
        self._progress(f"`{image.name}` is the newest of `{spec.name}`")
        return image

    def _cost(self, machine: Machine) -> float:
        try:
            return self.cloud.machine(machine.name).cost_usd
        except NotFound:
            return 0.0

    # Leaving

    def _clear_up(
        self, machine_record: MachineRecord, _kind: object, problem: BaseException | None, _trace: object
    ) -> None:
        """A build that did not work: remember why, delete the builder, or keep it and say so."""
        if problem is None:
            return
        said = problem.message if isinstance(problem, OutlastError) else type(problem).__name__
        self._note_failure(said, problem)
        if self.wishes.keep_on_failure_s and isinstance(problem, StepFailed):
            until = self.machine_records.now() + self.wishes.keep_on_failure_s
            self.machine_records.write(msgspec.structs.replace(machine_record, phase="ready", until=until))
            name, kept = machine_record.name, describe_s(self.wishes.keep_on_failure_s)
            self.report(f"the builder keeps running, and billing, for {kept}: `outlast machine ssh {name}`")
            self.report(f"to stop it earlier: `outlast machine delete {name}`")
            return
        try:
            self._delete(machine_record)
        except OutlastError as another:
            name = machine_record.name
            self.report(f"could not delete the builder {name}: {another.message}; `outlast reap` deletes it later")

    def _note_failure(self, said: str, problem: BaseException) -> None:
        hint = problem.hint if isinstance(problem, OutlastError) else ""
        step = problem.step if isinstance(problem, StepFailed) else ""
        failure = BuildFailure(
            why=said, hint=hint, step=step, epoch=self.lease.epoch, who=self.who, at=self.workspace.clock()
        )
        try:
            self.log.write(f"outlast: failed: {said}")
            self.log.flush()
            self.records.write_failure(self.recipe.digest, failure)
        except StoreUnreachable as another:
            self.report(f"the failure could not be recorded: {another.message}")

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
    """As a label of any cloud: lower-case letters, digits, `-` and `_`."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in text.lower())[:63]
