"""Requests for images: an existing image is found, a running build is joined, or a build starts here.

A lease avoids duplicate builds; correctness does not depend on it. Each build has a separate machine, named by the
digest and the lease's epoch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from outlast.clouds.cloud import Image, InteractiveCloud, Machine
from outlast.errors import SpecError
from outlast.images.builder import PURPOSE, Builder, BuildOptions, find_built
from outlast.images.recipe import Recipe
from outlast.images.records import ImageRecords, RecipeRecord
from outlast.images.remote import StepFailed
from outlast.kit.uv import find_uv
from outlast.machines.billing import close
from outlast.records.machines import MachineRecords
from outlast.store.lease import Lease, process_name
from outlast.workspace import Workspace

# A builder whose lease is this old counts as dead, and another process may start.
_TTL_S = 30.0


def check_cloud(cloud: InteractiveCloud, recipe: Recipe) -> None:
    """Check that this cloud and this computer can build this recipe. Raises SpecError, OutlastError."""
    problems: list[str] = []
    mode = str(getattr(cloud, "mode", ""))
    if mode in ("pidns", "plain"):
        why = f"machines of mode `{mode}` share the software of this computer"
        if recipe.spec.packages:
            problems.append(f"[image] packages: {why}: apt would change the computer itself")
        problems += [
            f"[image] files: `{place}`: {why}; give a path in the home folder, as in `data/{os.path.basename(place)}`"
            for place in recipe.spec.files
            if place.startswith("/")
        ]
    if problems:
        raise SpecError(problems, source=recipe.source, hint="use mode `root` or `userns`: see `outlast doctor`")
    if recipe.lock or recipe.requirements or recipe.spec.pip:
        find_uv()


class BuildRequest:
    """A request for one image."""

    def __init__(
        self,
        workspace: Workspace,
        cloud: InteractiveCloud,
        recipe: Recipe,
        *,
        who: str,
        report: Callable[[str], None],
        show: Callable[[str], None],
        options: BuildOptions = BuildOptions(),  # noqa: B008 - frozen
    ) -> None:
        """`report` receives progress, `show` the output of the steps."""
        self.workspace = workspace
        self.cloud = cloud
        self.recipe = recipe
        self.who = who
        self.report = report
        self.show = show
        self.options = options
        self.records = ImageRecords(workspace)
        self.lease = Lease(workspace.bucket, f"image-{recipe.digest}", who=process_name(), ttl_s=_TTL_S)
        self.pause_s = 3.0 if workspace.store.remote else 0.2

    def ensure(self) -> Image:
        """Find the image, wait for it, or build it. Raises SpecError, StepFailed, CloudError."""
        found = None if self.options.again else find_built(self.cloud, self.recipe)
        if found is not None:
            return found
        check_cloud(self.cloud, self.recipe)
        self._record_recipe()
        while not self.lease.hold():
            image = self._wait_for_other()
            if image is not None:
                return image
        try:
            # The previous holder may have built it.
            found = find_built(self.cloud, self.recipe)
            if found is not None and not self.options.again:
                return found
            if found is not None:
                self.cloud.delete_image(found.name)
            self._delete_stale_builders()
            return Builder(self).build()
        finally:
            self.lease.release()

    def _record_recipe(self) -> None:
        recipe = self.recipe
        self.records.write_recipe(
            RecipeRecord(
                digest=recipe.digest,
                image=recipe.image,
                cloud=self.cloud.name,
                base=recipe.base,
                spec=recipe.spec,
                script=recipe.script,
                requirements=recipe.requirements,
                lock=recipe.lock,
                source=os.path.basename(recipe.source),
                who=self.who,
                asked_at=self.workspace.clock(),
            )
        )

    def _wait_for_other(self) -> Image | None:
        """Wait for another process's build. Return None if that build left no image; raise its StepFailed."""
        holder = self.lease.holder()
        if holder is None:
            return None
        self.report(f"`{self.recipe.image}` is being built by {holder.who}; waiting for it")
        shown = 0
        while True:
            now = self.lease.holder()
            text = self.records.log(self.recipe.digest)
            for line in text[shown:].splitlines():
                self.show(line)
            shown = len(text)
            if now is None or now.epoch != holder.epoch:
                break
            time.sleep(self.pause_s)
        image = find_built(self.cloud, self.recipe)
        if image is not None:
            return image
        failure = self.records.failure(self.recipe.digest)
        if failure is not None and failure.epoch == holder.epoch:
            raise StepFailed(f"the build by {failure.who} failed: {failure.why}", step=failure.step, hint=failure.hint)
        return None

    def _delete_stale_builders(self) -> None:
        """Delete the builders and records that killed builds left."""
        machine_records = MachineRecords(self.workspace)
        for machine_record in machine_records.all():
            if machine_record.purpose != PURPOSE or machine_record.cloud != self.cloud.name:
                continue
            view = machine_records.view(machine_record.name)
            # We hold the lease, so any other builder of this digest has lost it.
            ours = (
                machine_record.name.startswith(f"image-{self.recipe.digest[:12]}-") and machine_record.phase != "ready"
            )
            if ours or view is None or view.abandoned:
                close(self.cloud, machine_records, machine_record)
                self.cloud.delete(machine_record.name)
                machine_records.remove(machine_record.name)


def built_from(cloud: InteractiveCloud, images: Sequence[Image]) -> dict[str, list[Machine]]:
    """Return image name → machines created from it."""
    names = {image.name for image in images}
    found: dict[str, list[Machine]] = {}
    for machine in cloud.machines():
        if machine.image in names:
            found.setdefault(machine.image, []).append(machine)
    return found
