"""OS Login, for `gcloud compute ssh` and `gcloud compute os-login`: a profile, and its SSH keys."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from outlast.errors import OutlastError
from outlast_gcp_emulator.compute.instance_backend import attributes
from outlast_gcp_emulator.compute.refs import Doc, stable_number
from outlast_gcp_emulator.compute.service import Compute
from outlast_gcp_emulator.errors import invalid, not_found
from outlast_gcp_emulator.http_types import HttpRequest, HttpResponse, json_response
from outlast_gcp_emulator.router import Router

# A client connects right after it imported its key, and Google's machines accept the key by then.
_SSHD_S_MAX = 5.0


class OsLogin:
    """The login profile of this computer's user, under any account name."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._context = compute.context
        self._keys = compute.oslogin_keys

    def add_to(self, router: Router) -> None:
        user = "/oslogin/{version}/users/{user}"
        key = f"{user}/sshPublicKeys/{{name}}"
        self._add(router, "GET", f"{user}/loginProfile", self._profile)
        self._add(router, "POST", f"{user}:importSshPublicKey", self._import)
        self._add(router, "GET", key, lambda request: _shown(request, self._key(request)))
        self._add(router, "PATCH", key, self._patch)
        self._add(router, "DELETE", key, self._delete)

    def _add(self, router: Router, method: str, path: str, handler: Callable[[HttpRequest], Doc]) -> None:
        def respond(request: HttpRequest) -> HttpResponse:
            self._compute.dispatcher.check_token(request)
            return json_response(handler(request))

        router.add(method, path, respond)

    def _profile(self, request: HttpRequest) -> Doc:
        name, project = self._keys.user, request.query.get("projectId", "")
        account = {
            "primary": True,
            "username": name,
            "uid": str(stable_number(name) % 10**9 + 10**6),
            "gid": str(stable_number(name) % 10**9 + 10**6),
            "homeDirectory": "/root" if name == "root" else f"/home/{name}",
            "operatingSystemType": "LINUX",
            **({"accountId": project} if project else {}),
        }
        keys = {doc["fingerprint"]: _shown(request, doc) for doc in self._keys.all()}
        return {"name": str(stable_number(name)), "posixAccounts": [account], "sshPublicKeys": keys}

    def _import(self, request: HttpRequest) -> Doc:
        given = request.json()
        key = str(given.get("key", "")).strip()
        if len(key.split()) < 2 or "\n" in key:
            raise invalid("Invalid value for field 'ssh_public_key.key': expected one line, as in `id_ed25519.pub`.")
        self._keys.put(given)
        self._push_keys()
        return {"loginProfile": self._profile(request)}

    def _patch(self, request: HttpRequest) -> Doc:
        doc = self._key(request)
        self._keys.put({**doc, **request.json(), "key": doc["key"]})
        self._push_keys()
        return _shown(request, self._key(request))

    def _delete(self, request: HttpRequest) -> Doc:
        self._key(request)
        self._keys.delete(request.parts["name"])
        self._push_keys()
        return {}

    def _key(self, request: HttpRequest) -> Doc:
        found = self._keys.get(request.parts["name"])
        if found is None:
            raise not_found(f"SSH Public Key with fingerprint {request.parts['name']} not found")
        return found

    def _push_keys(self) -> None:
        """Send the keys to all machines with OS Login, and wait until the sshd of each accepts connections."""
        for ref, doc in self._context.store.each("instances"):
            if not doc.get("_creating") and self._keys.are_used(ref.project, attributes(doc)):
                self._compute.backend.push_metadata(ref)
                self._wait_for_sshd(doc["_machine"])

    def _wait_for_sshd(self, machine: str) -> None:
        try:
            access = self._context.cloud.access(machine)
        except OutlastError:
            return  # the machine is off or gone; its next boot has the keys
        give_up_at = time.monotonic() + _SSHD_S_MAX
        while not access.proxy_command and time.monotonic() < give_up_at:
            try:
                socket.create_connection((access.host, access.port), timeout=1.0).close()
                return
            except OSError:
                time.sleep(0.05)


def _shown(request: HttpRequest, key: Doc) -> Doc:
    return {**key, "name": f"users/{request.parts['user']}/sshPublicKeys/{key['fingerprint']}"}
