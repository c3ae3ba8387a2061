"""An image is built once, whoever asks: it is found, or a build that is under way is joined, or it is built here.

A lease keeps two from doing the same work; nothing's safety rests on it. Each build has a machine of its own, named by
the digest and the lease's epoch.
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
from outlast.machines.billing import close
from outlast.records.machines import MachineRecords
from outlast.store.lease import Lease, process_name
from outlast.workspace import Workspace

# After this long without a word from whoever builds, somebody else may begin.
_TTL_S = 30.0


def check_cloud(cloud: InteractiveCloud, recipe: Recipe) -> None:
    """What this cloud cannot do for this recipe, said before anything is launched. Raises SpecError."""
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


class BuildRequest:
    """The wish for one image."""

    def __init__(
        self,
        workspace: Workspace,
        cloud: InteractiveCloud,
        recipe: Recipe,
        *,
        who: str,
        report: Callable[[str], None],
        show: Callable[[str], None],
        wishes: BuildOptions = BuildOptions(),  # noqa: B008 - frozen
    ) -> None:
        """`say` is for progress, `show` for the output of the steps."""
        self.workspace = workspace
        self.cloud = cloud
        self.recipe = recipe
        self.who = who
        self.report = report
        self.show = show
        self.wishes = wishes
        self.records = ImageRecords(workspace)
        self.lease = Lease(workspace.bucket, f"image-{recipe.digest}", who=process_name(), ttl_s=_TTL_S)
        self.pause_s = 0.2 if "://" not in workspace.url else 3.0

    def ensure(self) -> Image:
        """The image: found, waited for, or built. Raises SpecError, StepFailed, CloudError."""
        found = None if self.wishes.again else find_built(self.cloud, self.recipe)
        if found is not None:
            return found
        check_cloud(self.cloud, self.recipe)
        self._record_recipe()
        while not self.lease.hold():
            image = self._join()
            if image is not None:
                return image
        try:
            # Whoever held it before may have built it while we waited.
            found = find_built(self.cloud, self.recipe)
            if found is not None and not self.wishes.again:
                return found
            if found is not None:
                self.cloud.delete_image(found.name)
            self._tidy()
            return Builder(
                self.workspace,
                self.cloud,
                self.recipe,
                lease=self.lease,
                who=self.who,
                report=self.report,
                show=self.show,
                wishes=self.wishes,
            ).build()
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

    # Somebody else builds it

    def _join(self) -> Image | None:
        """Wait for the build of another; None when it is our turn. Raises what that build failed of."""
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

    def _tidy(self) -> None:
        """Delete what killed builds have left: builders of this recipe, and records of those that are gone."""
        machine_records = MachineRecords(self.workspace)
        for machine_record in machine_records.all():
            if machine_record.purpose != PURPOSE or machine_record.cloud != self.cloud.name:
                continue
            view = machine_records.view(machine_record.name)
            # We hold the lease: whoever else made a builder for this digest has lost it.
            ours = (
                machine_record.name.startswith(f"image-{self.recipe.digest[:12]}-") and machine_record.phase != "ready"
            )
            if ours or view is None or view.abandoned:
                close(self.cloud, machine_records, machine_record)
                self.cloud.delete(machine_record.name)
                machine_records.remove(machine_record.name)


def built_from(cloud: InteractiveCloud, images: Sequence[Image]) -> dict[str, list[Machine]]:
    """Machines by the image that they were made from."""
    names = {image.name for image in images}
    found: dict[str, list[Machine]] = {}
    for machine in cloud.machines():
        if machine.image in names:
            found.setdefault(machine.image, []).append(machine)
    return found
