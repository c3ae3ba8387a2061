"""Images: our own and Google's, by name, by family, or as `project/name`. Boots nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from outlast.clouds.cloud import Image
from outlast.clouds.gcp import labels as label
from outlast.clouds.gcp import machines
from outlast.clouds.gcp.client import GcpClient, check_name, last
from outlast.clouds.gcp.errors import AlreadyExists, Doc, Stale
from outlast.clouds.gcp.offers import CLOUD
from outlast.errors import BadRequest, NotFound

# Python 3.11, which the agent needs, is its own.
DEFAULT = "debian-cloud/debian-12"
# Where an image is looked for whose name says nothing of it, after the own project.
PUBLIC = ("debian-cloud", "ubuntu-os-cloud")
_FIELDS = "name,family,creationTimestamp,archiveSizeBytes,labels,description,deprecated,status,sourceDiskId,selfLink"
_ROLE = "roles/compute.imageUser"
_TRIES = 4


class GcpImages:
    def __init__(self, client: GcpClient) -> None:
        self._client = client

    def list_all(self) -> list[Image]:
        """Those of the project, and the families of Google's own that every project has."""
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
        """By name, then by family, here and at Google's; `project/name` looks there alone. Raises NotFound."""
        project, _, short = name.strip("/").rpartition("/")
        check_name(short, "image")
        places = [project] if project else [self._client.project, *PUBLIC]
        for place in places:
            for path in (short, f"family/{short}"):
                with contextlib.suppress(NotFound):
                    path = f"projects/{place}/global/images/{path}"
                    doc = self._client.call("compute", "GET", path, query={"fields": _FIELDS}).doc
                    if doc.get("status", "READY") == "READY":
                        return doc
        raise NotFound(
            f"Google Cloud has no image `{name}` in {', '.join(places)}",
            hint="an image of another project: PROJECT/NAME",
        )

    def link(self, name: str) -> str:
        """What a new disk is made from. Raises NotFound."""
        if not name or name == DEFAULT:
            project, _, family = DEFAULT.partition("/")
            return f"projects/{project}/global/images/family/{family}"
        link = str(self.find(name)["selfLink"])
        return link[link.index("projects/") :]

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

    def make(
        self, instance: Doc, image: str, *, family: str = "", labels: Mapping[str, str] | None = None, note: str = ""
    ) -> Image:
        """An image of the boot disk of a stopped instance, or the one that is there if it is of the same disk."""
        check_name(image, "image")
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
            # The server remembers that it made this image, which was deleted since.
            self._client.change("POST", "global/images", key=f"{key}/again", body=body)
            found = self._own(image)
        if str(found.get("sourceDiskId")) != disk_id:
            raise BadRequest(f"there is an image `{image}` already, and it was made from another disk")
        return self._image(found)

    def retire(self, name: str, *, retired: bool) -> None:
        found = self._own(name)
        state = "DEPRECATED" if retired else "ACTIVE"
        if (found.get("deprecated", {}).get("state", "ACTIVE") != "ACTIVE") != retired:
            self._client.change("POST", f"global/images/{name}/deprecate", body={"state": state})

    def share(self, name: str, who: str) -> None:
        """Let an account boot from it: an e-mail address, or `group:…`, `domain:…`. Repeating is fine."""
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
        with contextlib.suppress(NotFound):
            found = self._own(name)
            self._client.change(
                "DELETE", f"global/images/{name}", key=f"delete/{last(found['selfLink'])}/{_born(found)}"
            )


def _born(doc: Doc) -> str:
    return str(doc.get("creationTimestamp", ""))


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
        f"`{who}` is nobody that an image can be shared with",
        hint="an e-mail address of a person or a service account, `group:…` or `domain:…`",
    )
