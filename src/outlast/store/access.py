"""How a machine reaches a workspace: where its store is, and the key for a store of another cloud than its own.

Where it is travels in the machine's metadata; a key never does: it is kept with the machine's cloud as a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from outlast.clouds.traits import traits_of
from outlast.errors import UsageError
from outlast.store.credentials import store_region
from outlast.store.traits import scheme_of, traits_of_store

# The names in a machine's metadata; `bootstrap` reads the same.
_REGION, _ENDPOINT, _HOST, STORE_KEY = (
    "outlast-s3-region",
    "outlast-s3-endpoint",
    "outlast-storage-host",
    "outlast-store-key",
)


class StoreAccess(msgspec.Struct, frozen=True, kw_only=True):
    """What is empty is found as the store's own clients find it."""

    s3_region: str = ""
    s3_endpoint: str = ""
    gs_host: str = ""
    s3_id: str = ""
    s3_secret: str = ""
    gs_key: str = ""


def metadata(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Where the store is, as the variables of this computer say. Nothing in it is a secret, but for the token of
    `outlast local serve`, which only this user of this computer can use."""
    if url.startswith("s3://"):
        endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
        region = store_region(url, environment, endpoint=endpoint)
        return {_REGION: region, **({_ENDPOINT: endpoint} if endpoint else {})}
    host = environment.get("STORAGE_EMULATOR_HOST", "")
    # A workspace that is rehearsed with `outlast local serve` is found by machines of every cloud.
    return {_HOST: host} if host and url.startswith("gs://") else {}


def store_access(attribute: Callable[[str], str], key: Mapping[str, str]) -> StoreAccess:
    """What a machine learns from its metadata and from the key that it was given."""
    return StoreAccess(
        s3_region=attribute(_REGION),
        s3_endpoint=attribute(_ENDPOINT),
        gs_host=attribute(_HOST),
        s3_id=key.get("s3_id", ""),
        s3_secret=key.get("s3_secret", ""),
        gs_key=key.get("gs_key", ""),
    )


def needs_key(url: str, cloud: str, environment: Mapping[str, str]) -> bool:
    """Whether machines of that cloud have no rights of their own to this store."""
    if not traits_of_store(url).network:
        return False
    traits = traits_of(cloud)
    if traits.shares_host_files and url.startswith("gs://") and environment.get("STORAGE_EMULATOR_HOST"):
        return False  # the address of the endpoint that stands for Google's has its token in it
    return scheme_of(url) != traits.store_scheme


def loopback_port(address: str) -> int:
    """The port of an endpoint on this computer's loopback; 0 if it is elsewhere."""
    # Behind the port there may be a path: the token of `outlast local serve`.
    host, _, port = address.rpartition("//")[2].partition("/")[0].rpartition(":")
    return int(port) if host in ("127.0.0.1", "localhost") and port.isdigit() else 0


def key_name(secrets_name: str) -> str:
    return f"{secrets_name}-store"


def key_given(url: str, cloud: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The key for machines of this cloud, which the user made for them. Raises UsageError when there is none.

    Machines of the local cloud are this computer: without such a key they get the key of the user who submits.
    """
    on_host = traits_of(cloud).shares_host_files
    if url.startswith("s3://"):
        id, secret = environment.get("OUTLAST_S3_KEY_ID", ""), environment.get("OUTLAST_S3_KEY_SECRET", "")
        if id and secret:
            return {"s3_id": id, "s3_secret": secret}
        own = {"s3_id": environment.get("AWS_ACCESS_KEY_ID"), "s3_secret": environment.get("AWS_SECRET_ACCESS_KEY")}
        if on_host and all(own.values()) and not environment.get("AWS_SESSION_TOKEN"):
            return {name: value for name, value in own.items() if value}
        hint = "make an access key that may use this bucket alone, and set OUTLAST_S3_KEY_ID and OUTLAST_S3_KEY_SECRET"
    else:
        names = ("OUTLAST_GS_KEY_FILE", *(("GOOGLE_APPLICATION_CREDENTIALS",) if on_host else ()))
        if name := next((name for name in names if environment.get(name)), ""):
            return {"gs_key": _read(name, environment[name])}
        hint = "make a service account that may use this bucket alone, and name its key file in OUTLAST_GS_KEY_FILE"
    if on_host and environment.get("AWS_SESSION_TOKEN") and url.startswith("s3://"):
        hint = f"those of AWS_SESSION_TOKEN would expire while a run goes on: {hint}"
    whose = "the local cloud" if on_host else "another cloud"
    raise UsageError(f"machines of {whose} need a key for the workspace {url}", hint=hint)


def _read(name: str, path: str) -> str:
    hint = "`gcloud iam service-accounts keys create` writes one"
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        fields = msgspec.json.decode(text)
    except (OSError, ValueError) as problem:
        raise UsageError(
            f"{name}: {path} cannot be read: {getattr(problem, 'strerror', None) or problem}", hint=hint
        ) from problem
    if not isinstance(fields, dict) or not {"client_email", "private_key", "token_uri"} <= fields.keys():
        raise UsageError(f"{name}: {path} is no key of a service account", hint=hint)
    return text
