"""References to resources: links in responses, references in requests, fingerprints, ids and timestamps.

In memory and on disk a link begins with `//compute.googleapis.com/`. A response has the address that the client used
in its place.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import time
from typing import Any, NamedTuple

from outlast.clouds.local import google_types
from outlast_gcp_emulator.errors import ApiError, invalid

Doc = dict[str, Any]

ROOT = "//compute.googleapis.com/"
NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
GLOBAL = "global"


class Ref(NamedTuple):
    """A resource by its names. The scope is `global`, `zones/us-central1-a` or `regions/us-central1`."""

    project: str
    scope: str
    collection: str
    name: str

    @property
    def path(self) -> str:
        return f"projects/{self.project}/{self.scope}/{self.collection}/{self.name}"

    @property
    def link(self) -> str:
        return ROOT + self.path

    def beside(self, collection: str, name: str) -> Ref:
        """Return another resource of the same project and scope."""
        return Ref(self.project, self.scope, collection, name)


def scope_link(project: str, scope: str) -> str:
    return f"{ROOT}projects/{project}/{scope}"


def parse(text: Any, *, near: Ref, field: str) -> Ref:
    """Parse a full link, a partial one, or a bare name. `near` gives the missing parts and the expected collection.

    Raises ApiError.
    """
    if not isinstance(text, str) or not text:
        raise invalid(f"Invalid value for field '{field}': '{text or ''}'. The URL is malformed.")
    path = text.partition("?")[0]
    if "projects/" in path:
        project, _, rest = path.partition("projects/")[2].partition("/")
    else:
        project, rest = near.project, path.removeprefix("/")
    parts = [part for part in rest.split("/") if part]
    scope = near.scope
    if parts[:1] == [GLOBAL]:
        scope, parts = GLOBAL, parts[1:]
    elif len(parts) > 2 and parts[0] in ("zones", "regions"):
        scope, parts = "/".join(parts[:2]), parts[2:]
    if len(parts) == 1:
        parts = [near.collection, *parts]
    if len(parts) < 2 or parts[0] != near.collection or len(parts) > 3:
        raise invalid(f"Invalid value for field '{field}': '{text}'. The URL is malformed.")
    return Ref(project, scope, parts[0], "/".join(parts[1:]))


def last(link: Any) -> str:
    """Return the name at the end of a link."""
    return str(link or "").rstrip("/").rpartition("/")[2]


def ref_of(link: str) -> Ref:
    """Return the reference of a link in the stored form."""
    _, project, *scope, collection, name = link.removeprefix(ROOT).split("/")
    return Ref(project, "/".join(scope), collection, name)


def render(value: Any, base: str) -> Any:
    """Return a resource for a client: links with the client's address, without private fields (`_name`)."""
    if isinstance(value, dict):
        return {name: render(inner, base) for name, inner in value.items() if not name.startswith("_")}
    if isinstance(value, list):
        return [render(inner, base) for inner in value]
    if isinstance(value, str) and value.startswith(ROOT):
        return f"{base}/{value.removeprefix(ROOT)}"
    return value


def fingerprint(value: Any) -> str:
    """Return a base64 digest of a value, in the form of Google's fingerprints."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return base64.urlsafe_b64encode(hashlib.blake2b(text.encode(), digest_size=8).digest()).decode()


def check_fingerprint(given: Any, current: str) -> None:
    if given != current:
        raise ApiError(412, "conditionNotMet", "Supplied fingerprint does not match current metadata fingerprint.")


def check_name(value: Any, field: str = "resource.name") -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise invalid(f"Invalid value for field '{field}': '{value or ''}'. Must be a match of regex '{NAME.pattern}'")
    return value


def check_place(scope: str, project: str) -> None:
    """Raise ApiError for a zone or region that Google does not have."""
    kind, _, name = scope.partition("/")
    known = {"zones": google_types.ZONES, "regions": google_types.REGIONS}.get(kind)
    if known is not None and name not in known:
        raise invalid(f"Invalid value for field '{kind[:-1]}': '{name}'. Unknown {kind[:-1]}.")
    if not project:
        raise invalid("Invalid value for field 'project': ''.")


def resource_not_found(ref: Ref) -> ApiError:
    return ApiError(404, "notFound", f"The resource '{ref.path}' was not found")


def new_id() -> str:
    return str(secrets.randbelow(2**63 - 10**18) + 10**18)


def stable_number(text: str) -> int:
    """Return a number of twelve digits that depends on the text only, like a project number."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return 10**11 + int.from_bytes(digest, "big") % (9 * 10**11)


def timestamp(seconds: float | None = None) -> str:
    now = time.time() if seconds is None else seconds
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}+00:00"


def number(value: Any, field: str) -> int:
    """Parse a whole number; Google writes large ones as text. Raises ApiError."""
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit():
        raise invalid(f"Invalid value for field '{field}': '{value}'. Expected a whole number.")
    return int(text)
