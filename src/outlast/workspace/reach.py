"""How a machine reaches a workspace: where its store is, and the key for a store of another cloud than its own.

Where it is travels in the machine's metadata; a key never does: it is kept with the machine's cloud as a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from outlast.errors import UsageError

S3_REGION = "us-east-1"
# The names in a machine's metadata; `bootstrap` reads the same.
_REGION, _ENDPOINT, _HOST, STORE_KEY = (
    "outlast-s3-region",
    "outlast-s3-endpoint",
    "outlast-storage-host",
    "outlast-store-key",
)
# Whose machines have rights to a store of their own, without any key.
_OWN = {"gs": "gcp", "s3": "aws"}


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """What is empty is found as the store's own clients find it."""

    s3_region: str = ""
    s3_endpoint: str = ""
    gs_host: str = ""
    s3_id: str = ""
    s3_secret: str = ""
    gs_key: str = ""


def metadata(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Where the store is, as the variables of this computer say. Nothing in it is a secret."""
    if url.startswith("s3://"):
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or S3_REGION
        endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
        return {_REGION: region, **({_ENDPOINT: endpoint} if endpoint else {})}
    host = environment.get("STORAGE_EMULATOR_HOST", "")
    # A workspace that is rehearsed with `outlast local serve` is found by machines of every cloud.
    return {_HOST: host} if host and url.startswith("gs://") else {}


def reach(attribute: Callable[[str], str], key: Mapping[str, str]) -> Reach:
    """What a machine learns from its metadata and from the key that it was given."""
    return Reach(
        s3_region=attribute(_REGION),
        s3_endpoint=attribute(_ENDPOINT),
        gs_host=attribute(_HOST),
        s3_id=key.get("s3_id", ""),
        s3_secret=key.get("s3_secret", ""),
        gs_key=key.get("gs_key", ""),
    )


def needs_key(url: str, cloud: str) -> bool:
    """Whether machines of that cloud have no rights of their own to this store."""
    owner = _OWN.get(url.partition("://")[0])
    return owner is not None and cloud != "local" and owner != cloud


def key_name(secrets_name: str) -> str:
    return f"{secrets_name}-store"


def key_given(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The key for machines of other clouds, which the user made for them. Raises UsageError when there is none."""
    if url.startswith("s3://"):
        id, secret = environment.get("OUTLAST_S3_KEY_ID", ""), environment.get("OUTLAST_S3_KEY_SECRET", "")
        if id and secret:
            return {"s3_id": id, "s3_secret": secret}
        hint = "make an access key that may use this bucket alone, and set OUTLAST_S3_KEY_ID and OUTLAST_S3_KEY_SECRET"
    else:
        path = environment.get("OUTLAST_GS_KEY_FILE", "")
        if path:
            return {"gs_key": _read(path)}
        hint = "make a service account that may use this bucket alone, and name its key file in OUTLAST_GS_KEY_FILE"
    raise UsageError(f"machines of another cloud need a key for the workspace {url}", hint=hint)


def _read(path: str) -> str:
    hint = "`gcloud iam service-accounts keys create` writes one"
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        fields = msgspec.json.decode(text)
    except (OSError, ValueError) as problem:
        raise UsageError(
            f"OUTLAST_GS_KEY_FILE: {path} cannot be read: {getattr(problem, 'strerror', None) or problem}", hint=hint
        ) from problem
    if not isinstance(fields, dict) or not {"client_email", "private_key", "token_uri"} <= fields.keys():
        raise UsageError(f"OUTLAST_GS_KEY_FILE: {path} is no key of a service account", hint=hint)
    return text
