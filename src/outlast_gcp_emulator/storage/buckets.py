"""Buckets in the JSON API, with their layout, policies and notifications."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outlast_gcp_emulator.conditions import LOCATIONS, Surroundings
from outlast_gcp_emulator.errors import required
from outlast_gcp_emulator.http_types import HttpRequest, HttpResponse, empty_response, json_response
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

_BUCKETS = "/storage/v1/b"
_BUCKET = f"{_BUCKETS}/{{bucket}}"


class BucketRoutes:
    """Handlers for buckets."""

    def __init__(
        self, store: ObjectStore, surroundings: Surroundings, check_members: Callable[[list[Any]], None]
    ) -> None:
        self._store = store
        self._surroundings = surroundings
        self._check_members = check_members

    def add_to(self, router: Router) -> None:
        router.add_methods(_BUCKETS, GET=self.page, POST=self.insert)
        router.add_methods(_BUCKET, GET=self.get, PATCH=self.patch, PUT=self.update, DELETE=self.delete)
        router.add("GET", f"{_BUCKET}/storageLayout", self.layout)
        router.add_methods(f"{_BUCKET}/iam", GET=self.policy, PUT=self.set_policy)
        router.add("GET", f"{_BUCKET}/iam/testPermissions", self.test_permissions)
        router.add("GET", f"{_BUCKET}/notificationConfigs", self.notifications)
        router.add("GET", f"{_BUCKET}/managedFolders", self.managed_folders)
        for start in ("/storage/v1", ""):
            router.add("GET", f"{start}/projects/{{project}}/serviceAccount", self.service_account)

    def insert(self, request: HttpRequest) -> HttpResponse:
        given = request.json()
        project = request.query.get("project")
        if not project:
            raise required("project")
        if "name" not in given:
            raise required("name")
        name = check_bucket_name(given["name"])
        place = f"'{given.get('location', 'US')}' violates constraint 'constraints/{LOCATIONS}'"
        self._surroundings.check_constraint(LOCATIONS, place, project=project)
        bucket = self._store.create_bucket(name, project=project, meta=settable(given, BUCKET_FIELDS))
        self._surroundings.delay(("grant", name), self._surroundings.now.grant_delay)
        return _shown(request, bucket)

    def page(self, request: HttpRequest) -> HttpResponse:
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
        page: dict[str, Any] = {"kind": "storage#buckets"}
        if found:
            page["items"] = [bucket_resource(bucket, request.base_url) for bucket in found[:count]]
        if len(found) > count:
            page["nextPageToken"] = page_token(found[count].name.encode())
        return json_response(page)

    def get(self, request: HttpRequest) -> HttpResponse:
        return _shown(request, self._store.bucket(request.parts["bucket"]))

    def patch(self, request: HttpRequest) -> HttpResponse:
        given = request.json()
        return self._change(request, lambda meta: patched(meta, given, BUCKET_FIELDS - {"location"}) | _location(meta))

    def update(self, request: HttpRequest) -> HttpResponse:
        given = request.json()
        return self._change(request, lambda meta: settable(given, BUCKET_FIELDS - {"location"}) | _location(meta))

    def _change(self, request: HttpRequest, change: Any) -> HttpResponse:
        name, only = request.parts["bucket"], request.number("ifMetagenerationMatch")
        return _shown(request, self._store.change_bucket(name, change, policy=None, metageneration=only))

    def delete(self, request: HttpRequest) -> HttpResponse:
        only = request.number("ifMetagenerationMatch")
        self._store.delete_bucket(request.parts["bucket"], metageneration=only)
        return empty_response()

    def layout(self, request: HttpRequest) -> HttpResponse:
        shown = bucket_resource(self._store.bucket(request.parts["bucket"]), request.base_url)
        return json_response(
            {
                "kind": "storage#storageLayout",
                "bucket": shown["name"],
                "location": shown["location"],
                "locationType": shown["locationType"],
                "hierarchicalNamespace": {"enabled": False},
            }
        )

    def policy(self, request: HttpRequest) -> HttpResponse:
        return _policy(self._store.bucket(request.parts["bucket"]))

    def set_policy(self, request: HttpRequest) -> HttpResponse:
        given = {name: value for name, value in request.json().items() if name in ("bindings", "version")}
        name = request.parts["bucket"]
        self._check_members(given.get("bindings", []))
        changed = self._store.change_bucket(name, lambda meta: meta, policy=given, metageneration=None)
        return _policy(changed)

    def test_permissions(self, request: HttpRequest) -> HttpResponse:
        self._store.bucket(request.parts["bucket"])
        permissions = request.repeated.get("permissions", [])
        return json_response({"kind": "storage#testIamPermissionsResponse", "permissions": permissions})

    def notifications(self, request: HttpRequest) -> HttpResponse:
        self._store.bucket(request.parts["bucket"])
        return json_response({"kind": "storage#notifications"})

    def managed_folders(self, request: HttpRequest) -> HttpResponse:
        self._store.bucket(request.parts["bucket"])
        return json_response({"kind": "storage#managedFolders"})

    def service_account(self, request: HttpRequest) -> HttpResponse:
        number = project_number(request.parts["project"])
        email = f"service-{number}@gs-project-accounts.iam.gserviceaccount.com"
        return json_response({"kind": "storage#serviceAccount", "email_address": email})


def _shown(request: HttpRequest, bucket: StoredBucket) -> HttpResponse:
    return json_response(bucket_resource(bucket, request.base_url))


def _location(meta: Any) -> dict[str, Any]:
    """Return the location, which never changes."""
    return {"location": meta["location"]} if "location" in meta else {}


def _policy(bucket: StoredBucket) -> HttpResponse:
    owners = {"role": "roles/storage.legacyBucketOwner", "members": [f"projectOwner:{bucket.project}"]}
    policy = {"version": 1, "bindings": [owners], **(bucket.policy or {})}
    return json_response(
        {
            "kind": "storage#policy",
            "resourceId": f"projects/_/buckets/{bucket.name}",
            "etag": etag(bucket.created_us, bucket.metageneration),
            **policy,
        }
    )
