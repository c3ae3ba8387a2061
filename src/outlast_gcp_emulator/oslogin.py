"""OS Login, as far as `gcloud compute ssh` and `gcloud compute os-login` go: a profile, and the keys in it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from outlast.errors import OutlastError
from outlast_gcp_emulator.compute import instance_backend, oslogin_keys
from outlast_gcp_emulator.compute.context import Context
from outlast_gcp_emulator.compute.refs import Doc, stable_number
from outlast_gcp_emulator.compute.routes import check_token
from outlast_gcp_emulator.errors import invalid, not_found
from outlast_gcp_emulator.http_types import HttpAnswer, HttpRequest, json_answer
from outlast_gcp_emulator.router import Router

# Whoever imported a key knocks at once, and Google's machines would know it by then.
_DOOR_S = 5.0


class OsLogin:
    def __init__(self, context: Context) -> None:
        self._context = context

    def add_to(self, router: Router) -> None:
        user = "/oslogin/{version}/users/{user}"
        key = f"{user}/sshPublicKeys/{{name}}"
        self._add(router, "GET", f"{user}/loginProfile", self._profile)
        self._add(router, "POST", f"{user}:importSshPublicKey", self._import)
        self._add(router, "GET", key, lambda request: _shown(request, self._key(request)))
        self._add(router, "PATCH", key, self._change)
        self._add(router, "DELETE", key, self._delete)

    def _add(self, router: Router, method: str, path: str, handler: Callable[[HttpRequest], Doc]) -> None:
        def answer(request: HttpRequest) -> HttpAnswer:
            check_token(self._context, request)
            return json_answer(handler(request))

        router.add(method, path, answer)

    def _profile(self, request: HttpRequest) -> Doc:
        name, project = oslogin_keys.user(), request.query.get("projectId", "")
        account = {
            "primary": True,
            "username": name,
            "uid": str(stable_number(name) % 10**9 + 10**6),
            "gid": str(stable_number(name) % 10**9 + 10**6),
            "homeDirectory": "/root" if name == "root" else f"/home/{name}",
            "operatingSystemType": "LINUX",
            **({"accountId": project} if project else {}),
        }
        keys = {doc["fingerprint"]: _shown(request, doc) for doc in oslogin_keys.keys(self._context)}
        return {"name": str(stable_number(name)), "posixAccounts": [account], "sshPublicKeys": keys}

    def _import(self, request: HttpRequest) -> Doc:
        given = request.json()
        key = str(given.get("key", "")).strip()
        if len(key.split()) < 2 or "\n" in key:
            raise invalid("Invalid value for field 'ssh_public_key.key': it is one line, as in `id_ed25519.pub`.")
        oslogin_keys.add(self._context, given)
        self._let_in()
        return {"loginProfile": self._profile(request)}

    def _change(self, request: HttpRequest) -> Doc:
        kept = self._key(request)
        oslogin_keys.add(self._context, {**kept, **request.json(), "key": kept["key"]})
        self._let_in()
        return _shown(request, self._key(request))

    def _delete(self, request: HttpRequest) -> Doc:
        self._key(request)
        self._context.store.drop(oslogin_keys.ref_of_key(request.parts["name"]))
        self._let_in()
        return {}

    def _key(self, request: HttpRequest) -> Doc:
        found = self._context.store.get(oslogin_keys.ref_of_key(request.parts["name"]))
        if found is None:
            raise not_found(f"SSH Public Key with fingerprint {request.parts['name']} not found")
        return found

    def _let_in(self) -> None:
        """All machines that are asked in this way know the keys when this returns, if they run."""
        for ref, doc in self._context.store.each("instances"):
            if not doc.get("_creating") and oslogin_keys.are_used(
                self._context, ref.project, instance_backend.attributes(doc)
            ):
                instance_backend.tell(self._context, ref)
                self._open_door(doc["_machine"])

    def _open_door(self, machine: str) -> None:
        try:
            access = self._context.cloud.access(machine)
        except OutlastError:
            return  # it is off, or gone; the next boot knows the keys
        give_up_at = time.monotonic() + _DOOR_S
        while not access.proxy_command and time.monotonic() < give_up_at:
            try:
                socket.create_connection((access.host, access.port), timeout=1.0).close()
                return
            except OSError:
                time.sleep(0.05)


def _shown(request: HttpRequest, key: Doc) -> Doc:
    return {**key, "name": f"users/{request.parts['user']}/sshPublicKeys/{key['fingerprint']}"}
