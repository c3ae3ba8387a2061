"""Secrets as encrypted parameters of Systems Manager, below a path that the machines' role may read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from outlast.clouds.aws.client import AwsClient
from outlast.errors import BadRequest, NotFound

PREFIX = "/outlast/secrets/"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,200}")
# The limit of an advanced parameter.
_BYTES_MAX = 8192


def put(client: AwsClient, name: str, values: Mapping[str, str]) -> None:
    if not _NAME.fullmatch(name):
        raise BadRequest(f"invalid secret name `{name}`", hint="use letters, digits, `-`, `_` and `.`")
    text = json.dumps(dict(values))
    if len(text.encode()) > _BYTES_MAX:
        why = f"the secrets `{name}` exceed {_BYTES_MAX} bytes"
        raise BadRequest(why, hint="store large files in the workspace")
    tier = "Intelligent-Tiering"
    client.call("ssm", "put_parameter", Name=PREFIX + name, Value=text, Type="SecureString", Overwrite=True, Tier=tier)


def drop(client: AwsClient, name: str) -> None:
    if not _NAME.fullmatch(name):
        return
    try:
        client.call("ssm", "delete_parameter", Name=PREFIX + name)
    except NotFound:
        pass


def exists(client: AwsClient, name: str) -> bool:
    try:
        client.call("ssm", "get_parameter", Name=PREFIX + name)
    except NotFound:
        return False
    return True


def read(client: AwsClient, name: str) -> dict[str, str]:
    """Return the values. Raises NotFound, Denied."""
    if not _NAME.fullmatch(name):
        raise NotFound(f"invalid secret name `{name}`")
    answer = client.call("ssm", "get_parameter", Name=PREFIX + name, WithDecryption=True)
    return {str(key): str(value) for key, value in json.loads(answer["Parameter"]["Value"]).items()}
