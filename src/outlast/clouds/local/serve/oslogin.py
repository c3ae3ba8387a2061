"""OS Login, as far as `gcloud compute ssh` and `gcloud compute os-login` go: a profile, and the keys in it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from outlast.clouds.local.serve.compute import logins, machines
from outlast.clouds.local.serve.compute.desk import Desk
from outlast.clouds.local.serve.compute.links import Doc, stable_number
from outlast.clouds.local.serve.compute.routes import check_token
from outlast.clouds.local.serve.message import Answer, Request, json_answer
from outlast.clouds.local.serve.refusal import invalid, not_found
from outlast.clouds.local.serve.router import Router
from outlast.errors import OutlastError

# Whoever imported a key knocks at once, and Google's machines would know it by then.
_DOOR_S = 5.0


class OsLogin:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def add_to(self, router: Router) -> None:
        user = "/oslogin/{version}/users/{user}"
        key = f"{user}/sshPublicKeys/{{name}}"
        self._add(router, "GET", f"{user}/loginProfile", self._profile)
        self._add(router, "POST", f"{user}:importSshPublicKey", self._import)
        self._add(router, "GET", key, lambda request: _shown(request, self._key(request)))
        self._add(router, "PATCH", key, self._change)
        self._add(router, "DELETE", key, self._delete)

    def _add(self, router: Router, method: str, path: str, handler: Callable[[Request], Doc]) -> None:
        def answer(request: Request) -> Answer:
            check_token(self._desk, request)
            return json_answer(handler(request))

        router.add(method, path, answer)

    def _profile(self, request: Request) -> Doc:
        name, project = logins.user(), request.query.get("projectId", "")
        account = {
            "primary": True,
            "username": name,
            "uid": str(stable_number(name) % 10**9 + 10**6),
            "gid": str(stable_number(name) % 10**9 + 10**6),
            "homeDirectory": "/root" if name == "root" else f"/home/{name}",
            "operatingSystemType": "LINUX",
            **({"accountId": project} if project else {}),
        }
        keys = {doc["fingerprint"]: _shown(request, doc) for doc in logins.keys(self._desk)}
        return {"name": str(stable_number(name)), "posixAccounts": [account], "sshPublicKeys": keys}

    def _import(self, request: Request) -> Doc:
        given = request.json()
        key = str(given.get("key", "")).strip()
        if len(key.split()) < 2 or "\n" in key:
            raise invalid("Invalid value for field 'ssh_public_key.key': it is one line, as in `id_ed25519.pub`.")
        logins.add(self._desk, given)
        self._let_in()
        return {"loginProfile": self._profile(request)}

    def _change(self, request: Request) -> Doc:
        kept = self._key(request)
        logins.add(self._desk, {**kept, **request.json(), "key": kept["key"]})
        self._let_in()
        return _shown(request, self._key(request))

    def _delete(self, request: Request) -> Doc:
        self._key(request)
        self._desk.store.drop(logins.ref_of_key(request.parts["name"]))
        self._let_in()
        return {}

    def _key(self, request: Request) -> Doc:
        found = self._desk.store.get(logins.ref_of_key(request.parts["name"]))
        if found is None:
            raise not_found(f"SSH Public Key with fingerprint {request.parts['name']} not found")
        return found

    def _let_in(self) -> None:
        """All machines that are asked in this way know the keys when this returns, if they run."""
        for ref, doc in self._desk.store.each("instances"):
            if not doc.get("_creating") and logins.are_used(self._desk, ref.project, machines.attributes(doc)):
                machines.tell(self._desk, ref)
                self._open_door(doc["_machine"])

    def _open_door(self, machine: str) -> None:
        try:
            access = self._desk.cloud.access(machine)
        except OutlastError:
            return  # it is off, or gone; the next boot knows the keys
        give_up_at = time.monotonic() + _DOOR_S
        while not access.proxy_command and time.monotonic() < give_up_at:
            try:
                socket.create_connection((access.host, access.port), timeout=1.0).close()
                return
            except OSError:
                time.sleep(0.05)


def _shown(request: Request, key: Doc) -> Doc:
    return {**key, "name": f"users/{request.parts['user']}/sshPublicKeys/{key['fingerprint']}"}
