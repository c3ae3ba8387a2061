"""Images of the project and of Google: by name, by family, or as `project/name`."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Mapping

from outlast.clouds.cloud import Image
from outlast.clouds.gcp import labels as label
from outlast.clouds.gcp import machines
from outlast.clouds.gcp.client import GcpClient, check_name, last
from outlast.clouds.gcp.errors import Doc, Stale
from outlast.clouds.gcp.offers import CLOUD
from outlast.errors import AlreadyExists, BadRequest, NotFound

# It ships Python 3.11, which the agent needs.
DEFAULT = "debian-cloud/debian-12"
# With a GPU: an image that has the driver.
DEFAULT_GPU = "ubuntu-os-accelerator-images/ubuntu-accelerator-2404-amd64-with-nvidia-580"
# Projects that are searched after the user's own for a name without a project.
PUBLIC = ("debian-cloud", "ubuntu-os-cloud")
_FIELDS = "name,family,creationTimestamp,archiveSizeBytes,labels,description,deprecated,status,sourceDiskId,selfLink"
_FIELDS += ",diskSizeGb"
_ROLE = "roles/compute.imageUser"
_TRIES = 4
# An image that another process deletes or replaces meanwhile is noticed at the launch, or used this much longer.
_RECENT_S = 60.0
_PATH = re.compile(r"(?:https:.*/)?projects/(?P<project>[^/]+)/global/images/(?P<family>family/)?(?P<name>[^/]+)")


class GcpImages:
    """The images that one project can use."""

    def __init__(self, client: GcpClient, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._monotonic = monotonic
        # Name → description, and when it was read: each round of a supervisor asks for the images of all runs.
        self._found: dict[str, tuple[Doc, float]] = {}

    def list_all(self) -> list[Image]:
        """Return the project's images, and the newest ones of Google's public families."""
        found = [self._image(doc) for doc in self._listed(self._client.project) if doc.get("status") == "READY"]
        for project in PUBLIC:
            docs = [doc for doc in self._listed(project) if doc.get("family") and "deprecated" not in doc]
            found += [self._image(doc) for doc in docs]
        return found

    def _listed(self, project: str) -> list[Doc]:
        query = {"fields": f"items({_FIELDS}),nextPageToken"}
        pages = self._client.pages("global/images", query=query, project=project)
        return [doc for page in pages for doc in page.doc.get("items", [])]

    def find(self, name: str) -> Doc:
        """Find an image by name, then by family, in each project; `project/name` names one. Raises NotFound.

        Google's own form, `projects/P/global/images/F` or `…/images/family/F`, names one, too.
        """
        kinds: tuple[str, ...] = ("", "family/")
        if path := _PATH.fullmatch(name):
            project, short = path["project"], path["name"]
            kinds = ("family/",) if path["family"] else ("",)
        else:
            project, _, short = name.strip("/").rpartition("/")
        check_name(short, "image")
        projects = [project] if project else [self._client.project, *PUBLIC]
        for owner in projects:
            for kind in kinds:
                with contextlib.suppress(NotFound):
                    image = f"projects/{owner}/global/images/{kind}{short}"
                    doc = self._client.call("compute", "GET", image, query={"fields": _FIELDS}).doc
                    if doc.get("status", "READY") == "READY":
                        return doc
        raise NotFound(
            f"no image `{name}` in the Google Cloud projects {', '.join(projects)}",
            hint="name an image of another project as PROJECT/NAME",
        )

    def source(self, name: str, *, gpu: bool = False) -> tuple[str, float]:
        """Return the link of an image for a new disk, and the least size of that disk in GB. Raises NotFound."""
        if not gpu and (not name or name == DEFAULT):
            project, _, family = DEFAULT.partition("/")
            return f"projects/{project}/global/images/family/{family}", 0.0
        doc = self._find_recent(name or DEFAULT_GPU)
        link = str(doc["selfLink"])
        return link[link.index("projects/") :], float(doc.get("diskSizeGb", 0))

    def _find_recent(self, name: str) -> Doc:
        doc, read_at = self._found.get(name, ({}, -math.inf))
        if self._monotonic() - read_at > _RECENT_S:
            doc = self.find(name)
            self._found[name] = (doc, self._monotonic())
        return doc

    def image(self, name: str) -> Image:
        return self._image(self.find(name))

    def _image(self, doc: Doc) -> Image:
        return Image(
            name=str(doc["name"]),
            cloud=CLOUD,
            family=str(doc.get("family", "")),
            created_at=machines.when(doc.get("creationTimestamp")),
            bytes=int(doc.get("archiveSizeBytes", 0)),
            labels=label.decode_all(doc.get("labels", {})),
            description=str(doc.get("description", "")),
            retired=doc.get("deprecated", {}).get("state", "ACTIVE") != "ACTIVE",
        )

    def _own(self, name: str) -> Doc:
        query = {"fields": _FIELDS}
        return self._client.compute("GET", f"global/images/{check_name(name, 'image')}", query=query).doc

    def create(
        self, instance: Doc, image: str, *, family: str = "", labels: Mapping[str, str] | None = None, note: str = ""
    ) -> Image:
        """Create an image of a stopped instance's boot disk. May be repeated. Raises BadRequest for a taken name."""
        check_name(image, "image")
        self._found.clear()
        disk = next(disk for disk in instance["disks"] if disk.get("boot", True))
        source = str(disk["source"])
        source = source[source.index("projects/") :]
        below = source.partition(f"projects/{self._client.project}/")[2]
        disk_id = str(self._client.compute("GET", below, query={"fields": "id"}).doc["id"])
        body: Doc = {"name": image, "sourceDisk": source, "labels": label.encode_all(labels or {}), "description": note}
        if family:
            body["family"] = check_name(family, "family")
        key = f"image/{image}/{disk_id}/{instance.get('lastStopTimestamp', '')}"
        try:
            self._client.change("POST", "global/images", key=key, body=body)
            found = self._own(image)
        except AlreadyExists:
            found = self._own(image)
        except NotFound:
            # The server remembers this request, but the image was deleted since.
            self._client.change("POST", "global/images", key=f"{key}/again", body=body)
            found = self._own(image)
        if str(found.get("sourceDiskId")) != disk_id:
            raise BadRequest(f"image `{image}` exists already, from another disk", hint="choose another name")
        return self._image(found)

    def retire(self, name: str, *, retired: bool) -> None:
        self._found.clear()
        found = self._own(name)
        state = "DEPRECATED" if retired else "ACTIVE"
        if (found.get("deprecated", {}).get("state", "ACTIVE") != "ACTIVE") != retired:
            self._client.change("POST", f"global/images/{name}/deprecate", body={"state": state})

    def share(self, name: str, who: str) -> None:
        """Let an account boot from it: an e-mail address, `group:…` or `domain:…`. May be repeated."""
        member = _member(who)
        self._own(name)
        for _ in range(_TRIES):
            policy = self._client.compute("GET", f"global/images/{name}/getIamPolicy").doc
            bindings = [dict(one) for one in policy.get("bindings", [])]
            if any(one.get("role") == _ROLE and member in one.get("members", []) for one in bindings):
                return
            bindings.append({"role": _ROLE, "members": [member]})
            body = {"policy": {"bindings": bindings, "etag": policy.get("etag", "")}}
            try:
                self._client.compute("POST", f"global/images/{name}/setIamPolicy", body=body)
                return
            except Stale:
                continue

    def delete(self, name: str) -> None:
        self._found.clear()
        with contextlib.suppress(NotFound):
            found = self._own(name)
            key = f"delete/{last(found['selfLink'])}/{found.get('creationTimestamp', '')}"
            self._client.change("DELETE", f"global/images/{name}", key=key)


def _member(who: str) -> str:
    kind, _, name = who.partition(":")
    if kind in ("user", "group", "domain", "serviceAccount") and name:
        return who
    if who.endswith(".gserviceaccount.com"):
        return f"serviceAccount:{who}"
    if "@" in who:
        return f"user:{who}"
    if who in ("allAuthenticatedUsers",):
        return who
    raise BadRequest(
        f"cannot share an image with `{who}`",
        hint="use the e-mail address of a person or a service account, `group:…` or `domain:…`",
    )
