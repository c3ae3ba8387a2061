"""The endpoint: one server, one router, and every API that is here, on one folder."""

from __future__ import annotations

import os
from collections.abc import Callable

from outlast.clouds.local.cloud import LocalCloud
from outlast_gcp_emulator.access import TokenCheck, owner_token, url_with
from outlast_gcp_emulator.batch import batch_handler
from outlast_gcp_emulator.compute.context import GuestAccess
from outlast_gcp_emulator.compute.service import Compute
from outlast_gcp_emulator.environment import PROJECT, machine_variables
from outlast_gcp_emulator.faults import InjectedFaults
from outlast_gcp_emulator.filestore import Filestore
from outlast_gcp_emulator.http import HttpServer
from outlast_gcp_emulator.identity import Identity
from outlast_gcp_emulator.oslogin import OsLogin
from outlast_gcp_emulator.router import Router, Watch
from outlast_gcp_emulator.secretmanager import SecretRoutes
from outlast_gcp_emulator.source import Source
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
    """Google's protocols on a folder, from `start` to `stop`. Several may serve its buckets at once, but
    only one its machines. `log` receives refusals, a bounded number of lines."""

    def __init__(
        self,
        root: str,
        *,
        port: int = 0,
        watch: Watch | None = None,
        cloud: LocalCloud | None = None,
        log: Callable[[str], object] = lambda line: None,
    ) -> None:
        self.root = os.path.abspath(root)
        os.makedirs(self.root, mode=0o700, exist_ok=True)
        router = Router(watch=watch)
        add_tokens(router)
        router.add("POST", "/batch", batch_handler(router.answer))
        router.add("POST", "/batch/{api*}", batch_handler(router.answer))
        # Taken before the folder is touched: a port that is in use changes nothing.
        self.server = HttpServer(port, router.answer, log=log)
        self._access = TokenCheck(owner_token(self.root))
        self._store = ObjectStore(f"{self.root}/storage")
        uploads = Uploads(self._store)
        self._compute = Compute(cloud or LocalCloud(), f"{self.root}/compute")
        self._compute.add_to(router)
        Filestore(f"{self.root}/filestore").add_to(router)
        SqlAdmin(f"{self.root}/sqladmin").add_to(router)
        Identity(f"{self.root}/identity").add_to(router)
        SecretRoutes(f"{self.root}/secrets", self._compute.context).add_to(router)
        OsLogin(self._compute.context).add_to(router)
        Source(f"{self.root}/source").add_to(router)
        BucketRoutes(self._store).add_to(router)
        ObjectRoutes(self._store).add_to(router)
        InsertRoutes(self._store, uploads).add_to(router)
        # Clients that take the server's address for that of the API, as Google's for Node do of STORAGE_EMULATOR_HOST.
        # No bucket is hidden by it: names have three letters and more.
        router.shorten("/storage/v1/b", "/b")
        # The XML API takes what is left, and a mistyped path of the JSON API is none of it.
        for word in sorted(RESERVED):
            router.close(f"/{word}/{{rest*}}")
        XmlRoutes(self._store, uploads, project=PROJECT).add_to(router)
        self._router = router

    @property
    def address(self) -> str:
        """Where the server listens. A client needs a token besides."""
        return self.server.url

    @property
    def url(self) -> str:
        """The address with the owner's token in it, for clients that send no credentials. A secret."""
        return url_with(self.address, self._access.token)

    @property
    def faults(self) -> InjectedFaults:
        return self._router.faults

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
