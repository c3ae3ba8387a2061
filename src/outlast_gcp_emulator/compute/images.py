"""Images and image families: users' images, and Google's public ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from outlast.clouds.local.catalog import BASE_IMAGE
from outlast_gcp_emulator.compute.context import Call
from outlast_gcp_emulator.compute.disk_backing import disk_in_use
from outlast_gcp_emulator.compute.refs import GLOBAL, Doc, Ref, fingerprint, number, ref_of, resource_not_found
from outlast_gcp_emulator.compute.resource import PROJECT_WIDE, RouteEntry, builtin_resource
from outlast_gcp_emulator.compute.snapshots import DiskCopies, is_written, shared_backing
from outlast_gcp_emulator.errors import ApiError, invalid

# Google's projects of public images, with the families that scripts request. All are the software of this computer.
PUBLIC: dict[str, tuple[str, ...]] = {
    "debian-cloud": ("debian-11", "debian-12", "debian-13"),
    "ubuntu-os-cloud": ("ubuntu-2004-lts", "ubuntu-2204-lts", "ubuntu-2404-lts-amd64", "ubuntu-minimal-2204-lts"),
    "ubuntu-os-accelerator-images": ("ubuntu-accelerator-2404-amd64-with-nvidia-580",),
    "deeplearning-platform-release": ("common-cpu", "common-cu128", "pytorch-latest-gpu", "tf-latest-gpu"),
    "ml-images": ("common-cpu", "common-cu128"),
    "rocky-linux-cloud": ("rocky-linux-8", "rocky-linux-9"),
    "centos-cloud": ("centos-stream-9",),
    "cos-cloud": ("cos-stable",),
    "fedora-coreos-cloud": ("fedora-coreos-stable",),
}
# Other beginnings of names that scripts request: `tf2-latest-gpu`, `c2-deeplearning-tf-1-12-cu100-20181120`.
_BEGINNINGS: dict[str, tuple[str, ...]] = {
    "deeplearning-platform-release": ("tf2", "c0", "c1", "c2"),
    "ml-images": ("tf", "tf2", "pytorch", "debian", "c0", "c1", "c2"),
}
# Projects that gcloud reads for every list of images. This computer cannot boot any of their images.
_EMPTY = (
    "opensuse-cloud",
    "oracle-linux-cloud",
    "rhel-cloud",
    "rhel-sap-cloud",
    "rocky-linux-accelerator-cloud",
    "suse-cloud",
    "suse-sap-cloud",
    "ubuntu-os-pro-cloud",
    "windows-cloud",
    "windows-sql-cloud",
)
_CREATED_AT = "2026-11-01T00:00:00.000+00:00"
_PUBLIC_VERSION = "v20261101"
BASE_GB = 10
# Images with drivers and frameworks are larger.
_LARGE_GB = {"deeplearning-platform-release": 50, "ml-images": 50, "ubuntu-os-accelerator-images": 20}


class Images(DiskCopies):
    """Images of users, and Google's public ones, which all stand for the base image of the local cloud."""

    kind = "image"
    size_field = "archiveSizeBytes"

    def routes(self) -> Iterator[RouteEntry]:
        yield "POST", "/global/images", self.insert
        yield "GET", "/global/images/family/{name}", lambda call: self.newest(call.project, call.name)
        yield "PATCH", "/global/images/{name}", self.patch
        yield "POST", "/global/images/{name}/deprecate", self.deprecate
        yield from self.stored_routes(PROJECT_WIDE)
        yield "GET", "/zones/{anywhere}/imageFamilyViews/{name}", self.family_view

    # Lookup

    def lookup(self, ref: Ref) -> Doc:
        """Return the image of that name. Raises ApiError."""
        if ref.project in PUBLIC:
            _check_public(ref, ref.name)
            return _public(ref.project, ref.name)
        return self.context.find(ref)

    def newest(self, project: str, family: str) -> Doc:
        """Return the newest image of a family that is not deprecated. Raises ApiError."""
        ref = Ref(project, GLOBAL, "images", f"family/{family}")
        if project in PUBLIC:
            _check_public(ref, family)
            return {**_public(project, f"{family}-{_PUBLIC_VERSION}"), "family": family}
        members = [
            doc
            for _, doc in self.store.each("images", project)
            if doc.get("family") == family and "deprecated" not in doc and doc["status"] == "READY"
        ]
        if not members:
            raise resource_not_found(ref)
        return max(members, key=lambda doc: (doc["creationTimestamp"], doc["name"]))

    def resolve(self, text: Any, project: str, field: str) -> Doc:
        """Return the image that a request names directly or by its family. Raises ApiError."""
        if isinstance(text, str) and "/imageFamilyViews/" in text:
            ref = self.global_ref(project, text, "imageFamilyViews", field)
            return self.newest(ref.project, ref.name)
        ref = self.global_ref(project, text, "images", field)
        kind, _, family = ref.name.partition("/")
        if kind == "family" and family:
            return self.newest(ref.project, family)
        try:
            return self.lookup(ref)
        except ApiError as problem:
            raise invalid(
                f"Invalid value for field '{field}': '{text}'. The referenced image resource cannot be found."
            ) from problem

    def get(self, call: Call) -> Doc:
        return self.lookup(self.ref(call))

    def family_view(self, call: Call) -> Doc:
        return {"image": self.newest(call.project, call.name)}

    def items(self, project: str, scope: str = "") -> list[tuple[Ref, Doc]]:
        if project in PUBLIC:
            docs = (self.newest(project, family) for family in PUBLIC[project])
            return [(ref_of(doc["selfLink"]), doc) for doc in docs]
        return [] if project in _EMPTY else super().items(project, scope)

    # Creation

    def insert(self, call: Call) -> Doc:
        ref = self.new_ref(call)
        with self.context.names:
            doc = self.new(ref, call.body)
            source, disk = self._source(call)
            doc |= {
                "sourceType": "RAW",
                "status": "PENDING",
                "archiveSizeBytes": "0",
                "architecture": "X86_64",
                "storageLocations": ["us"],
                "labelFingerprint": fingerprint(call.body.get("labels", {})),
                **source,
            }
            doc.pop("rawDisk", None)
            self.store.put(ref, doc)
        return self.context.begin(call, ref, "insert", lambda: self.copy(ref, disk))

    def _source(self, call: Call) -> tuple[Doc, Ref | None]:
        """Return the fields that follow from an image's source, and the disk to copy, if any."""
        body = call.body
        given = [name for name in ("sourceDisk", "sourceImage", "sourceSnapshot") if body.get(name)]
        if len(given) != 1:
            message = "exactly one of sourceDisk, sourceImage and sourceSnapshot is required"
            if body.get("rawDisk"):
                message = "outlast cannot read disks from tar files in buckets"
            raise invalid(f"Invalid value for field 'resource': {message}.")
        name, field = given[0], f"resource.{given[0]}"
        if name == "sourceDisk":
            return self._disk_source(call, field)
        if name == "sourceImage":
            source = self.resolve(body[name], call.project, field)
        else:
            source = self.context.find(self.global_ref(call.project, body[name], "snapshots", field))
        size_gb = max(number(body.get("diskSizeGb", 0), "resource.diskSizeGb"), int(source["diskSizeGb"]))
        return {
            name: source["selfLink"],
            f"{name}Id": source["id"],
            "diskSizeGb": str(size_gb),
            **{backing: source[backing] for backing in ("_local", "_drive") if backing in source},
        }, None

    def _disk_source(self, call: Call, field: str) -> tuple[Doc, Ref | None]:
        disk = self.global_ref(call.project, call.body["sourceDisk"], "disks", field)
        source = self.context.find(disk)
        if not call.flag("forceCreate"):
            for user in map(ref_of, source.get("users", [])):
                if self._backing.is_running(self.store.get(user) or {}):
                    raise disk_in_use(disk, user)
        doc = {"sourceDisk": disk.link, "sourceDiskId": source["id"], "diskSizeGb": source["sizeGb"]}
        return doc | shared_backing(source), disk if is_written(source) else None

    # Changes

    def patch(self, call: Call) -> Doc:
        ref, _ = self.find(call)
        given = {name: call.body[name] or None for name in ("description", "family", "labels") if name in call.body}
        labels = {"labelFingerprint": fingerprint(given["labels"] or {})} if "labels" in given else {}
        self.context.change(ref, **given, **labels)
        return self.context.begin(call, ref, "patch")

    def deprecate(self, call: Call) -> Doc:
        ref, _ = self.find(call)
        state = call.body.get("state", "ACTIVE")
        if state not in ("ACTIVE", "DEPRECATED", "OBSOLETE", "DELETED"):
            raise invalid(f"Invalid value for field 'resource.state': '{state}'.")

        def work() -> None:
            self.context.change(ref, deprecated=None if state == "ACTIVE" else dict(call.body))

        return self.context.begin(call, ref, "deprecate", work)


def _public(project: str, name: str) -> Doc:
    families = [family for family in PUBLIC[project] if name.startswith(family)]
    doc = builtin_resource(
        Ref(project, GLOBAL, "images", name),
        "image",
        _CREATED_AT,
        description="the software of this computer, under a name that scripts ask for",
        sourceType="RAW",
        status="READY",
        archiveSizeBytes="0",
        diskSizeGb=str(_LARGE_GB.get(project, BASE_GB)),
        architecture="X86_64",
        storageLocations=["us"],
        labelFingerprint=fingerprint({}),
        _local=BASE_IMAGE,
    )
    return {**doc, "family": max(families, key=len)} if families else doc


def _check_public(ref: Ref, name: str) -> None:
    """Raise ApiError unless the name begins like one of the project's images. Every version exists."""
    beginnings = {family.partition("-")[0] for family in PUBLIC[ref.project]}
    if name.partition("-")[0] not in beginnings.union(_BEGINNINGS.get(ref.project, ())):
        raise resource_not_found(ref)
