"""The tokens of an endpoint: validation, how a client presents one, and where the owner's token is stored.

A request carries a token as `Authorization: Bearer TOKEN`, or as the first part of its path: `/TOKEN/storage/v1/b`. The
second form is for clients that send no credentials, such as all that read STORAGE_EMULATOR_HOST.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from outlast_gcp_emulator.errors import ApiError
from outlast_gcp_emulator.http_types import Caller

_OWNER = re.compile(r"outlast-[0-9a-f]{32}")
_MACHINE = re.compile(r"local-([-a-z0-9]{1,63})\.[0-9a-f]{32}")
_BEARER = "bearer "


class TokenCheck:
    """The owner's token of one endpoint, and its machines' tokens, which are derived from it."""

    def __init__(self, token: str) -> None:
        self.token = token

    def machine_token(self, machine: str) -> str:
        digest = hmac.new(self.token.encode(), machine.encode(), hashlib.sha256).hexdigest()
        return f"local-{machine}.{digest[:32]}"

    def admit(self, target: str, headers: Mapping[str, str]) -> tuple[Caller, str]:
        """Return the sender of a request, and its target without a token. Raises ApiError."""
        split = urlsplit(target)
        first, _, rest = split.path.removeprefix("/").partition("/")
        in_path = self._caller(first)
        if in_path is not None:
            target = f"/{rest}" + (f"?{split.query}" if split.query else "")
        # The header takes precedence: a machine may know an address with the token of its owner.
        caller = self._caller(_bearer(headers)) or in_path
        if caller is None:
            message = "Request is missing a valid token; set the variables that `outlast local env` prints."
            raise ApiError(401, "authError", message, headers={"WWW-Authenticate": "Bearer"})
        prefix = f"/{first}" if in_path is not None else ""
        return Caller(token=caller.token, machine=caller.machine, prefix=prefix), target

    def _caller(self, token: str) -> Caller | None:
        if _OWNER.fullmatch(token) and hmac.compare_digest(token, self.token):
            return Caller(token=token)
        if (named := _MACHINE.fullmatch(token)) and hmac.compare_digest(token, self.machine_token(named[1])):
            return Caller(token=token, machine=named[1])
        return None


def _bearer(headers: Mapping[str, str]) -> str:
    value = headers.get("authorization", "")
    return value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else ""


def url_with(address: str, token: str) -> str:
    """Return the address of an endpoint for clients that send no credentials."""
    return f"{address}/{token}"


def split_url(url: str) -> tuple[str, str]:
    """Return address and token of a URL of `url_with`."""
    address, _, token = url.rpartition("/")
    return address, token


def read_token(root: str) -> str | None:
    """Return the owner's token; None unless it exists and only this user may read it."""
    try:
        with open(f"{root}/token", encoding="ascii", errors="replace") as file:
            status = os.fstat(file.fileno())
            text = file.read(256).strip()
    except (FileNotFoundError, PermissionError):
        return None
    private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
    return text if private and _OWNER.fullmatch(text) else None


def owner_token(root: str) -> str:
    """Return the owner's token; create it if there is none, or if others could have read it."""
    path = f"{root}/token"
    while (token := read_token(root)) is None:
        with suppress(FileNotFoundError):
            os.unlink(path)
        draft = f"{path}.{secrets.token_hex(8)}.draft"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(f"outlast-{secrets.token_hex(16)}")
        # Unlike a rename this fails if another server was first: both must use the same token.
        with suppress(FileExistsError):
            os.link(draft, path)
        os.unlink(draft)
    return token
