"""The SSH keys of OS Login, and which machines accept them. Every account is this computer's user."""

from __future__ import annotations

import getpass
import hashlib
import time

from outlast_gcp_emulator.compute.context import Context
from outlast_gcp_emulator.compute.project import ProjectResource
from outlast_gcp_emulator.compute.refs import GLOBAL, Doc, Ref

_SWITCH = "enable-oslogin"
_COLLECTION = "loginKeys"


class OsLoginKeys:
    """The stored keys, one list for all projects."""

    def __init__(self, context: Context, project: ProjectResource) -> None:
        self._store = context.store
        self._project = project

    @property
    def user(self) -> str:
        return getpass.getuser()

    def are_used(self, project: str, attributes: dict[str, str]) -> bool:
        """Return whether a machine of this project with these attributes accepts OS Login keys."""
        common = self._project.common_metadata(project)
        return attributes.get(_SWITCH, common.get(_SWITCH, "")).lower() == "true"

    def lines(self) -> list[str]:
        """Return the unexpired keys in the form of the metadata attribute `ssh-keys`."""
        return [f"{self.user}:{doc['key'].strip()}" for doc in self.all() if not _is_expired(doc)]

    def all(self) -> list[Doc]:
        return [doc for _, doc in self._store.each(_COLLECTION)]

    def get(self, fingerprint: str) -> Doc | None:
        return self._store.get(_ref(fingerprint))

    def delete(self, fingerprint: str) -> None:
        self._store.drop(_ref(fingerprint))

    def put(self, given: Doc) -> None:
        """Store a key, or replace the expiration time of a stored one."""
        key = str(given["key"]).strip()
        fingerprint = hashlib.sha256(key.encode()).hexdigest()
        doc = {"key": key, "fingerprint": fingerprint}
        if given.get("expirationTimeUsec"):
            doc["expirationTimeUsec"] = str(given["expirationTimeUsec"])
        self._store.put(_ref(fingerprint), doc)


def _ref(fingerprint: str) -> Ref:
    return Ref("-", GLOBAL, _COLLECTION, fingerprint)


def _is_expired(doc: Doc) -> bool:
    until = doc.get("expirationTimeUsec", "")
    return until.isdigit() and int(until) / 1e6 < time.time()
