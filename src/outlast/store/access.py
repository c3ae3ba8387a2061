"""Access of machines to the workspace's store: its location, and a key if the store belongs to another cloud.

The location is part of the machine's metadata. The key is a secret in the machine's cloud.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from outlast.clouds.traits import traits_of
from outlast.errors import UsageError
from outlast.store.credentials import store_region
from outlast.store.traits import scheme_of, traits_of_store

# Names in a machine's metadata; `code/bootstrap.py` reads them, too.
_REGION, _ENDPOINT, _HOST, STORE_KEY = (
    "outlast-s3-region",
    "outlast-s3-endpoint",
    "outlast-storage-host",
    "outlast-store-key",
)


class StoreAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Location and key of a store. Empty fields are resolved as the store's own clients do."""

    s3_region: str = ""
    s3_endpoint: str = ""
    gs_host: str = ""
    s3_id: str = ""
    s3_secret: str = ""
    gs_key: str = ""


def metadata(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the location of the store by the variables of this computer.

    It contains no secret except the token of `outlast local serve`, which works only for this user on this computer.
    """
    if url.startswith("s3://"):
        endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
        region = store_region(url, environment, endpoint=endpoint)
        return {_REGION: region, **({_ENDPOINT: endpoint} if endpoint else {})}
    host = environment.get("STORAGE_EMULATOR_HOST", "")
    # With `outlast local serve`, machines of every cloud use the emulator.
    return {_HOST: host} if host and url.startswith("gs://") else {}


def store_access(attribute: Callable[[str], str], key: Mapping[str, str]) -> StoreAccess:
    """Return the access of a machine, from its metadata and its key."""
    return StoreAccess(
        s3_region=attribute(_REGION),
        s3_endpoint=attribute(_ENDPOINT),
        gs_host=attribute(_HOST),
        s3_id=key.get("s3_id", ""),
        s3_secret=key.get("s3_secret", ""),
        gs_key=key.get("gs_key", ""),
    )


def needs_key(url: str, cloud: str, environment: Mapping[str, str]) -> bool:
    """Return whether machines of that cloud need a key for this store."""
    if not traits_of_store(url).network:
        return False
    traits = traits_of(cloud)
    if traits.shares_host_files and url.startswith("gs://") and environment.get("STORAGE_EMULATOR_HOST"):
        return False  # the emulator's address contains its token
    return scheme_of(url) != traits.store_scheme


def loopback_port(address: str) -> int:
    """Return the port of an endpoint on this computer's loopback; 0 if it is elsewhere."""
    # A path may follow the port: the token of `outlast local serve`.
    host, _, port = address.rpartition("//")[2].partition("/")[0].rpartition(":")
    return int(port) if host in ("127.0.0.1", "localhost") and port.isdigit() else 0


def emulator_ports(url: str, environment: Mapping[str, str]) -> tuple[int, ...]:
    """Return the loopback ports of storage emulators on this computer."""
    own = "AWS_ENDPOINT_URL_S3" if environment.get("AWS_ENDPOINT_URL_S3") else "AWS_ENDPOINT_URL"
    names = ("STORAGE_EMULATOR_HOST", *((own,) if url.startswith("s3://") else ()))
    found = (loopback_port(environment.get(name, "")) for name in names)
    return tuple(dict.fromkeys(port for port in found if port))


def key_name(secrets_name: str) -> str:
    return f"{secrets_name}-store"


def key_given(url: str, cloud: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the key that the user created for machines of this cloud. Raises UsageError if none is set.

    Machines of the local cloud fall back to the credentials of the submitter.
    """
    on_host = traits_of(cloud).shares_host_files
    if url.startswith("s3://"):
        id, secret = environment.get("OUTLAST_S3_KEY_ID", ""), environment.get("OUTLAST_S3_KEY_SECRET", "")
        if id and secret:
            return {"s3_id": id, "s3_secret": secret}
        own = {"s3_id": environment.get("AWS_ACCESS_KEY_ID"), "s3_secret": environment.get("AWS_SECRET_ACCESS_KEY")}
        if on_host and all(own.values()) and not environment.get("AWS_SESSION_TOKEN"):
            return {name: value for name, value in own.items() if value}
        hint = "create an access key for this bucket only, and set OUTLAST_S3_KEY_ID and OUTLAST_S3_KEY_SECRET"
    else:
        names = ("OUTLAST_GS_KEY_FILE", *(("GOOGLE_APPLICATION_CREDENTIALS",) if on_host else ()))
        if name := next((name for name in names if environment.get(name)), ""):
            return {"gs_key": _read(name, environment[name])}
        hint = "create a service account for this bucket only, and set OUTLAST_GS_KEY_FILE to the path of its key"
    if on_host and environment.get("AWS_SESSION_TOKEN") and url.startswith("s3://"):
        hint = f"the credentials of AWS_SESSION_TOKEN would expire during a run: {hint}"
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
            f"{name}: could not read {path}: {getattr(problem, 'strerror', None) or problem}", hint=hint
        ) from problem
    if not isinstance(fields, dict) or not {"client_email", "private_key", "token_uri"} <= fields.keys():
        raise UsageError(f"{name}: {path} is not the key of a service account", hint=hint)
    return text
