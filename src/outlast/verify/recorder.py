"""Saves the cloud's answers during a verification, without names of accounts: one JSON object per line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outlast.clouds.cloud import ApiExchange, HasVerification

_ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")
_EMAIL = re.compile(r"[\w.+-]+@[\w.-]+\.\w+")
_LONG_NUMBER = re.compile(r"\b\d{10,14}\b")
_SECRET_FIELDS = re.compile(r"token|secret|password|credential|authorization|fingerprint|userdata", re.IGNORECASE)


def scrubbed(value: Any, names: tuple[str, ...]) -> Any:
    """Return a copy of an answer without account names, addresses, emails and secret fields."""
    if isinstance(value, dict):
        return {
            scrubbed(str(key), names): "SCRUBBED"
            if _SECRET_FIELDS.search(str(key)) and isinstance(one, str)
            else scrubbed(one, names)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [scrubbed(one, names) for one in value]
    if not isinstance(value, str):
        return value if isinstance(value, int | float | bool | None) else str(value)
    for name in names:
        value = value.replace(name, "ACCOUNT")
    value = _EMAIL.sub("user@example.com", _ADDRESS.sub("192.0.2.1", value))
    return _LONG_NUMBER.sub("000000000000", value)


@contextmanager
def recorded(cloud: HasVerification, folder: str) -> Iterator[None]:
    """Write each answer of the cloud to `FOLDER/answers.jsonl` during the block."""
    os.makedirs(folder, exist_ok=True)
    names = tuple(name for name in cloud.account_names() if name)
    with open(os.path.join(folder, "answers.jsonl"), "a", encoding="utf-8") as file:

        def write(exchange: ApiExchange) -> None:
            row = {
                "service": exchange.service,
                "request": scrubbed(exchange.what, names),
                "status": exchange.status,
                "id": scrubbed(exchange.request_id, names),
                "answer": scrubbed(exchange.answer, names),
            }
            file.write(json.dumps(row) + "\n")

        cloud.watch(write)
        try:
            yield
        finally:
            cloud.watch(None)
