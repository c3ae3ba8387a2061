"""The endpoint: the HTTP server with all emulated APIs, on one folder."""

from __future__ import annotations

import os
from collections.abc import Callable

from outlast.clouds.local.cloud import LocalCloud
from outlast_gcp_emulator.absent import add_absent
from outlast_gcp_emulator.access import TokenCheck, owner_token, url_with
from outlast_gcp_emulator.batch import batch_handler
from outlast_gcp_emulator.compute.context import GuestAccess
from outlast_gcp_emulator.compute.service import Compute
from outlast_gcp_emulator.conditions import CloudConditions, Surroundings
from outlast_gcp_emulator.environment import PROJECT, machine_variables
from outlast_gcp_emulator.faults import InjectedFaults
from outlast_gcp_emulator.filestore import Filestore
from outlast_gcp_emulator.http import HttpServer
from outlast_gcp_emulator.http_types import HttpRequest
from outlast_gcp_emulator.identity import Identity
from outlast_gcp_emulator.oslogin import OsLogin
from outlast_gcp_emulator.router import Router, Watch
from outlast_gcp_emulator.secretmanager import SecretRoutes
from outlast_gcp_emulator.source import SourceRepositories
from outlast_gcp_emulator.sqladmin import SqlAdmin
from outlast_gcp_emulator.storage.buckets import BucketRoutes
from outlast_gcp_emulator.storage.inserts import InsertRoutes
from outlast_gcp_emulator.storage.objects import ObjectRoutes
from outlast_gcp_emulator.storage.request_params import RESERVED
from outlast_gcp_emulator.storage.store import ObjectStore
from outlast_gcp_emulator.storage.uploads import Uploads
from outlast_gcp_emulator.storage.xml import XmlRoutes
from outlast_gcp_emulator.tokens import add_tokens


class Endpoint:
    """Serves Google's APIs from `start` to `stop`. Several endpoints can share the buckets of a folder, but only one
    its machines. `log` receives refused requests, a bounded number of lines."""

    def __init__(
        self,
        root: str,
        *,
        port: int = 0,
        watch: Watch | None = None,
        cloud: LocalCloud | None = None,
        conditions: CloudConditions | None = None,
        log: Callable[[str], object] = lambda line: None,
    ) -> None:
        self.root = os.path.abspath(root)
        os.makedirs(self.root, mode=0o700, exist_ok=True)
        self.surroundings = Surroundings(conditions or CloudConditions())
        router = Router(watch=watch)
        add_tokens(router)
        add_absent(router)
        router.add("POST", "/batch", batch_handler(router.respond))
        router.add("POST", "/batch/{api*}", batch_handler(router.respond))
        # Bind before the folder is written: a port that is in use must change nothing.
        self.server = HttpServer(port, router.respond, log=log)
        self._access = TokenCheck(owner_token(self.root))
        self._store = ObjectStore(f"{self.root}/storage")
        uploads = Uploads(self._store)
        self._compute = Compute(cloud or LocalCloud(), f"{self.root}/compute", self.surroundings)
        self._compute.add_to(router)
        Filestore(f"{self.root}/filestore").add_to(router)
        SqlAdmin(f"{self.root}/sqladmin").add_to(router)
        self._identity = Identity(f"{self.root}/identity", self.surroundings)
        self._identity.add_to(router)
        router.gate = self._check_conditions
        SecretRoutes(f"{self.root}/secrets", self._compute.context, self._identity.check_members).add_to(router)
        OsLogin(self._compute).add_to(router)
        SourceRepositories(f"{self.root}/source").add_to(router)
        BucketRoutes(self._store, self.surroundings, self._identity.check_members).add_to(router)
        ObjectRoutes(self._store).add_to(router)
        InsertRoutes(self._store, uploads).add_to(router)
        # Some clients, such as Google's for Node, use STORAGE_EMULATOR_HOST as the address of the API.
        # This hides no bucket, because bucket names have at least three letters.
        router.shorten("/storage/v1/b", "/b")
        # The XML API matches all other paths; a mistyped path of the JSON API must not become a bucket.
        for word in sorted(RESERVED):
            router.close(f"/{word}/{{rest*}}")
        XmlRoutes(self._store, uploads, project=PROJECT).add_to(router)
        self._router = router

    @property
    def address(self) -> str:
        """Return where the server listens. A client also needs a token."""
        return self.server.url

    @property
    def url(self) -> str:
        """Return the address with the owner's token, for clients that send no credentials. It is a secret."""
        return url_with(self.address, self._access.token)

    @property
    def faults(self) -> InjectedFaults:
        return self._router.faults

    def grant_notice(self, seconds: int) -> None:
        """Grant spot machines a notice of at most this long from now on, whatever they request."""
        self._compute.context.notice_s_max = seconds

    def silence(self, *zones: str) -> None:
        """Let aggregated lists miss these zones, and no others, from now on."""
        self._compute.context.silent_zones = set(zones)

    def _check_conditions(self, request: HttpRequest) -> None:
        self._identity.check_api(request)
        if request.caller.machine and (bucket := request.parts.get("bucket")):
            message = (
                f"The machine does not have storage.objects.get access to the Google Cloud Storage bucket {bucket}."
            )
            self.surroundings.check_grant(bucket, message=message)

    def start(self) -> None:
        self._compute.start(self._guest_access, port=self.server.server_address[1])
        self.server.start(self._access)

    def _guest_access(self, machine: str) -> GuestAccess:
        token = self._access.machine_token(machine)
        return GuestAccess(token=token, environment=machine_variables(url_with(self.address, token)))

    def stop(self) -> None:
        self.server.stop()
        self._compute.stop()
        self._store.close()
