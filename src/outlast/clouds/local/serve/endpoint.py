"""The endpoint: one server, one router, and every API that is here, on one folder."""

from __future__ import annotations

import os

from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.serve.batch import batch_handler
from outlast.clouds.local.serve.compute.service import Compute
from outlast.clouds.local.serve.environment import PROJECT, machine_variables
from outlast.clouds.local.serve.faults import Faults
from outlast.clouds.local.serve.filestore import Filestore
from outlast.clouds.local.serve.http import Server
from outlast.clouds.local.serve.identity import Identity
from outlast.clouds.local.serve.oslogin import OsLogin
from outlast.clouds.local.serve.router import Router, Watch
from outlast.clouds.local.serve.secretmanager import SecretRoutes
from outlast.clouds.local.serve.source import Source
from outlast.clouds.local.serve.sqladmin import SqlAdmin
from outlast.clouds.local.serve.storage.asked import RESERVED
from outlast.clouds.local.serve.storage.buckets import BucketRoutes
from outlast.clouds.local.serve.storage.inserts import InsertRoutes
from outlast.clouds.local.serve.storage.objects import ObjectRoutes
from outlast.clouds.local.serve.storage.store import Store
from outlast.clouds.local.serve.storage.uploads import Uploads
from outlast.clouds.local.serve.storage.xml import XmlRoutes
from outlast.clouds.local.serve.tokens import add_tokens


class Endpoint:
    """Google's protocols on a folder, from `start` to `stop`. Several may serve its buckets at once, but
    only one its machines."""

    def __init__(
        self, root: str, *, port: int = 0, watch: Watch | None = None, cloud: LocalCloud | None = None
    ) -> None:
        self.root = os.path.abspath(root)
        os.makedirs(self.root, exist_ok=True)
        router = Router(watch=watch)
        add_tokens(router)
        router.add("POST", "/batch", batch_handler(router.answer))
        router.add("POST", "/batch/{api*}", batch_handler(router.answer))
        # Taken before the folder is touched: a port that is in use changes nothing.
        self.server = Server(port, router.answer)
        self._store = Store(f"{self.root}/storage")
        uploads = Uploads(self._store)
        self._compute = Compute(cloud or LocalCloud(), f"{self.root}/compute")
        self._compute.add_to(router)
        Filestore(f"{self.root}/filestore").add_to(router)
        SqlAdmin(f"{self.root}/sqladmin").add_to(router)
        Identity(f"{self.root}/identity").add_to(router)
        SecretRoutes(f"{self.root}/secrets", self._compute.desk).add_to(router)
        OsLogin(self._compute.desk).add_to(router)
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
    def url(self) -> str:
        return self.server.url

    @property
    def faults(self) -> Faults:
        return self._router.faults

    def start(self) -> None:
        self._compute.start(machine_variables(self.url), port=self.server.server_address[1])
        self.server.start()

    def stop(self) -> None:
        self.server.stop()
        self._compute.stop()
        self._store.close()
