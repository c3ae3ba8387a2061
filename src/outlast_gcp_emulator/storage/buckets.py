"""Buckets in the JSON API, with what clients ask beside them: layout, policies, notifications."""

from __future__ import annotations

from typing import Any

from outlast_gcp_emulator.errors import required
from outlast_gcp_emulator.http_types import HttpAnswer, HttpRequest, empty_answer, json_answer
from outlast_gcp_emulator.router import Router
from outlast_gcp_emulator.storage.listing import from_page_token, page_token
from outlast_gcp_emulator.storage.request_params import check_bucket_name
from outlast_gcp_emulator.storage.resources import (
    BUCKET_FIELDS,
    bucket_resource,
    etag,
    patched,
    project_number,
    settable,
)
from outlast_gcp_emulator.storage.store import ObjectStore
from outlast_gcp_emulator.storage.values import StoredBucket

_B = "/storage/v1/b/{bucket}"


class BucketRoutes:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def add_to(self, router: Router) -> None:
        router.add("GET", "/storage/v1/b", self.page)
        router.add("POST", "/storage/v1/b", self.insert)
        router.add("GET", _B, self.get)
        router.add("PATCH", _B, self.patch)
        router.add("PUT", _B, self.update)
        router.add("DELETE", _B, self.delete)
        router.add("GET", f"{_B}/storageLayout", self.layout)
        router.add("GET", f"{_B}/iam", self.policy)
        router.add("PUT", f"{_B}/iam", self.set_policy)
        router.add("GET", f"{_B}/iam/testPermissions", self.test_permissions)
        router.add("GET", f"{_B}/notificationConfigs", self.notifications)
        router.add("GET", f"{_B}/managedFolders", self.managed_folders)
        for start in ("/storage/v1", ""):
            router.add("GET", f"{start}/projects/{{project}}/serviceAccount", self.service_account)

    def insert(self, request: HttpRequest) -> HttpAnswer:
        given = request.json()
        project = request.query.get("project")
        if not project:
            raise required("project")
        if "name" not in given:
            raise required("name")
        name = check_bucket_name(given["name"])
        bucket = self._store.create_bucket(name, project=project, meta=settable(given, BUCKET_FIELDS))
        return _shown(request, bucket)

    def page(self, request: HttpRequest) -> HttpAnswer:
        project = request.query.get("project")
        if not project:
            raise required("project")
        count = max(1, min(1000, request.number("maxResults") or 1000))
        token = request.query.get("pageToken", "")
        found = self._store.buckets(
            prefix=request.query.get("prefix", ""),
            start=from_page_token(token).decode("utf-8", "replace") if token else "",
            count=count + 1,
            project=project,
        )
        answer: dict[str, Any] = {"kind": "storage#buckets"}
        if found:
            answer["items"] = [bucket_resource(bucket, request.base_url) for bucket in found[:count]]
        if len(found) > count:
            answer["nextPageToken"] = page_token(found[count].name.encode())
        return json_answer(answer)

    def get(self, request: HttpRequest) -> HttpAnswer:
        return _shown(request, self._store.bucket(request.parts["bucket"]))

    def patch(self, request: HttpRequest) -> HttpAnswer:
        given = request.json()
        return self._change(request, lambda meta: patched(meta, given, BUCKET_FIELDS - {"location"}) | _place(meta))

    def update(self, request: HttpRequest) -> HttpAnswer:
        given = request.json()
        return self._change(request, lambda meta: settable(given, BUCKET_FIELDS - {"location"}) | _place(meta))

    def _change(self, request: HttpRequest, change: Any) -> HttpAnswer:
        name, only = request.parts["bucket"], request.number("ifMetagenerationMatch")
        return _shown(request, self._store.change_bucket(name, change, policy=None, metageneration=only))

    def delete(self, request: HttpRequest) -> HttpAnswer:
        only = request.number("ifMetagenerationMatch")
        self._store.delete_bucket(request.parts["bucket"], metageneration=only)
        return empty_answer()

    def layout(self, request: HttpRequest) -> HttpAnswer:
        shown = bucket_resource(self._store.bucket(request.parts["bucket"]), request.base_url)
        return json_answer(
            {
                "kind": "storage#storageLayout",
                "bucket": shown["name"],
                "location": shown["location"],
                "locationType": shown["locationType"],
                "hierarchicalNamespace": {"enabled": False},
            }
        )

    def policy(self, request: HttpRequest) -> HttpAnswer:
        return _policy(self._store.bucket(request.parts["bucket"]))

    def set_policy(self, request: HttpRequest) -> HttpAnswer:
        given = {name: value for name, value in request.json().items() if name in ("bindings", "version")}
        name = request.parts["bucket"]
        changed = self._store.change_bucket(name, lambda meta: meta, policy=given, metageneration=None)
        return _policy(changed)

    def test_permissions(self, request: HttpRequest) -> HttpAnswer:
        self._store.bucket(request.parts["bucket"])
        asked = request.repeated.get("permissions", [])
        return json_answer({"kind": "storage#testIamPermissionsResponse", "permissions": asked})

    def notifications(self, request: HttpRequest) -> HttpAnswer:
        self._store.bucket(request.parts["bucket"])
        return json_answer({"kind": "storage#notifications"})

    def managed_folders(self, request: HttpRequest) -> HttpAnswer:
        self._store.bucket(request.parts["bucket"])
        return json_answer({"kind": "storage#managedFolders"})

    def service_account(self, request: HttpRequest) -> HttpAnswer:
        number = project_number(request.parts["project"])
        email = f"service-{number}@gs-project-accounts.iam.gserviceaccount.com"
        return json_answer({"kind": "storage#serviceAccount", "email_address": email})


def _shown(request: HttpRequest, bucket: StoredBucket) -> HttpAnswer:
    return json_answer(bucket_resource(bucket, request.base_url))


def _place(meta: Any) -> dict[str, Any]:
    """A bucket never moves."""
    return {"location": meta["location"]} if "location" in meta else {}


def _policy(bucket: StoredBucket) -> HttpAnswer:
    owners = {"role": "roles/storage.legacyBucketOwner", "members": [f"projectOwner:{bucket.project}"]}
    policy = {"version": 1, "bindings": [owners], **(bucket.policy or {})}
    return json_answer(
        {
            "kind": "storage#policy",
            "resourceId": f"projects/_/buckets/{bucket.name}",
            "etag": etag(bucket.created_us, bucket.metageneration),
            **policy,
        }
    )
