"""The keys of OS Login, and which machines take them. Everybody is this computer's user, whatever account asks."""

from __future__ import annotations

import getpass
import hashlib
import time

from outlast_gcp_emulator.compute import builtin_kinds
from outlast_gcp_emulator.compute.context import Context
from outlast_gcp_emulator.compute.refs import GLOBAL, Doc, Ref

_SWITCH = "enable-oslogin"
_COLLECTION = "loginKeys"


def user() -> str:
    return getpass.getuser()


def are_used(context: Context, project: str, attributes: dict[str, str]) -> bool:
    """Whether a machine of this project with these attributes lets people in by OS Login."""
    return attributes.get(_SWITCH, builtin_kinds.common_metadata(context, project).get(_SWITCH, "")).lower() == "true"


def lines(context: Context) -> list[str]:
    """Who may come in now, as the metadata of a machine name them."""
    return [f"{user()}:{doc['key'].strip()}" for doc in keys(context) if not _is_over(doc)]


def keys(context: Context) -> list[Doc]:
    return [doc for _, doc in context.store.each(_COLLECTION)]


def ref_of_key(fingerprint: str) -> Ref:
    return Ref("-", GLOBAL, _COLLECTION, fingerprint)


def add(context: Context, given: Doc) -> None:
    """Keep a key, once."""
    key = str(given["key"]).strip()
    fingerprint = hashlib.sha256(key.encode()).hexdigest()
    doc = {"key": key, "fingerprint": fingerprint}
    if given.get("expirationTimeUsec"):
        doc["expirationTimeUsec"] = str(given["expirationTimeUsec"])
    context.store.put(ref_of_key(fingerprint), doc)


def _is_over(doc: Doc) -> bool:
    until = doc.get("expirationTimeUsec", "")
    return until.isdigit() and int(until) / 1e6 < time.time()
