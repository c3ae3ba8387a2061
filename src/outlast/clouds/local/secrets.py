"""Secrets at rest: one private file per name. `metadata_server.py` decides which machine may read them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from outlast import private
from outlast.clouds.local.files import read_json, write_json

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def put(root: str, name: str, values: Mapping[str, str]) -> None:
    os.makedirs(private.prepare(f"{root}/secrets"), mode=0o700, exist_ok=True)
    write_json(_path(root, name), dict(values), permissions=0o600)


def read(root: str, name: str) -> dict[str, str] | None:
    return read_json(_path(root, name)) if is_name(name) else None


def drop(root: str, name: str) -> None:
    try:
        os.unlink(_path(root, name))
    except FileNotFoundError:
        pass


def _path(root: str, name: str) -> str:
    return f"{root}/secrets/{name}.json"
