"""A bucket in GCS, S3 or memory, through obstore."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import MemoryStore, from_url

from outlast.errors import Exists, Missing, StoreUnreachable, WorkspaceError
from outlast.store import credentials
from outlast.store.access import StoreAccess
from outlast.store.bucket import Entry, check_key
from outlast.store.parallel import in_parallel

# A refused create-only write means that the object exists (412), or that another write to it was under way (409), which
# may have failed. The library reports both alike, so check for the object, and repeat the write after a pause.
_CONFLICT_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
_CONFLICT = "try again in a moment"
_REFUSED = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)


@contextmanager
def _store_errors(url: str, key: str) -> Iterator[None]:
    try:
        yield
    except exceptions.AlreadyExistsError as problem:
        # The library raises this for every 409. Outside of `create` it means a conflicting request.
        raise StoreUnreachable(
            f"workspace {url}: a conflicting request: {_short(problem)}", hint=_CONFLICT
        ) from problem
    except (exceptions.NotFoundError, FileNotFoundError) as problem:
        raise Missing(f"`{key}` is not in the workspace") from problem
    except _REFUSED as problem:
        raise WorkspaceError(
            f"workspace {url}: access denied: {_short(problem)}",
            hint="check the credentials and that they may read and write the bucket",
        ) from problem
    except exceptions.BaseError as problem:
        # Stores accept keys such as `a//b` or `a/../b`; a listing fails at the first. outlast never writes one.
        foreign = "invalid path" in str(problem)
        hint = "outlast did not write this object: delete it" if foreign else "check the network connection"
        raise StoreUnreachable(f"workspace {url}: {_short(problem)}", hint=hint) from problem


def _short(problem: BaseException) -> str:
    return str(problem).strip().splitlines()[0][:300]


def _open(url: str, access: StoreAccess) -> Any:
    if url.startswith("s3://"):
        return _open_s3(url, access)
    host = access.gs_host or os.environ.get("STORAGE_EMULATOR_HOST", "")
    if not host or not url.startswith("gs://"):
        if access.gs_key:
            return from_url(url, service_account_key=access.gs_key)
        provider = credentials.gs_provider(os.environ) if url.startswith("gs://") else None
        if provider is None:
            credentials.require_credentials(url, os.environ)
        return from_url(url, credential_provider=provider) if provider else from_url(url)
    # The variable of Google's own clients. Without a token, obstore would search for credentials before it writes.
    address = host if "://" in host else f"http://{host}"
    return from_url(url, base_url=address, bearer_token="emulator", client_options={"allow_http": True})


def _open_s3(url: str, access: StoreAccess) -> Any:
    # The variables of Amazon's own clients, which also select other S3-compatible servers.
    endpoint = access.s3_endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    metadata = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "")
    # Machines get the region in their metadata, and the credentials from their role or as a key.
    is_machine = bool(access.s3_region or access.s3_id)
    provider = None if is_machine else credentials.s3_provider(os.environ)
    if provider is None and not is_machine:
        credentials.require_credentials(url, os.environ, metadata=metadata)
    given = {
        "endpoint": endpoint,
        "region": access.s3_region or credentials.store_region(url, os.environ, endpoint=endpoint),
        "metadata_endpoint": metadata,
        "access_key_id": access.s3_id,
        "secret_access_key": access.s3_secret,
        "credential_provider": provider,
    }
    plain = endpoint.startswith("http://") or metadata.startswith("http://")
    options: dict[str, Any] = {name: value for name, value in given.items() if value}
    return from_url(url, **options, client_options={"allow_http": True} if plain else {})


class ObjectBucket:
    """See `Bucket` for the contract. All three stores acknowledge only durable writes."""

    def __init__(self, url: str, access: StoreAccess | None = None) -> None:
        self.url = url.rstrip("/") if not url.startswith("memory://") else url
        try:
            self._store: Any = (
                MemoryStore() if url.startswith("memory://") else _open(self.url, access or StoreAccess())
            )
        except (exceptions.BaseError, ValueError) as problem:
            raise WorkspaceError(f"workspace {url}: {_short(problem)}") from problem

    def get(self, key: str) -> bytes:
        with _store_errors(self.url, key):
            return bytes(obstore.get(self._store, check_key(key)).bytes())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with _store_errors(self.url, key):
            return bytes(obstore.get_range(self._store, check_key(key), start=start, length=length))

    def read_into(self, key: str, room: memoryview) -> int:
        with _store_errors(self.url, key):
            body = memoryview(obstore.get(self._store, check_key(key)).bytes())[: len(room)]
        room[: len(body)] = body
        return len(body)

    def put(self, key: str, body: bytes, *, durable: bool = False) -> None:
        with _store_errors(self.url, key):
            obstore.put(self._store, check_key(key), body)

    def now(self, key: str) -> float:
        # The response to a write contains no time.
        self.put(key, b"")
        return self.head(key).modified_at

    def create(self, key: str, body: bytes, *, durable: bool = True) -> None:
        for pause_s in _CONFLICT_PAUSES_S:
            with _store_errors(self.url, key):
                try:
                    obstore.put(self._store, check_key(key), body, mode="create")
                    return
                except exceptions.AlreadyExistsError as problem:
                    refused = problem
            if self._has(key):
                raise Exists(f"`{key}` already exists") from refused
            time.sleep(pause_s)
        why = (
            f"`{key}` was refused {len(_CONFLICT_PAUSES_S)} times because of a conflicting request, and does not exist"
        )
        raise StoreUnreachable(f"workspace {self.url}: {why}", hint=_CONFLICT)

    def _has(self, key: str) -> bool:
        try:
            self.head(key)
        except Missing:
            return False
        return True

    def write(self, key: str, body: bytes | memoryview) -> None:
        with _store_errors(self.url, key):
            # One request, since the caller runs many in parallel. A copy, since the memory store keeps a reference and
            # the caller reuses the memory.
            obstore.put(self._store, check_key(key), bytes(body), use_multipart=False)

    def make_durable(self, keys: Sequence[str]) -> None:
        """Do nothing: every acknowledged write is durable."""

    def remove_stale_writes(self, *, older_s: float) -> int:
        """Do nothing: the store itself discards unfinished uploads."""
        return 0

    def upload(self, key: str, path: str) -> None:
        with _store_errors(self.url, key), open(path, "rb") as file:
            obstore.put(self._store, check_key(key), file)

    def download(self, key: str, path: str) -> None:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        staged = f"{path}.{secrets.token_hex(4)}.part"
        try:
            with _store_errors(self.url, key), open(staged, "wb") as file:
                for piece in obstore.get(self._store, check_key(key)):
                    file.write(piece)
            os.replace(staged, path)
        finally:
            with suppress(FileNotFoundError):  # it was renamed
                os.unlink(staged)

    def head(self, key: str) -> Entry:
        with _store_errors(self.url, key):
            return _entry(obstore.head(self._store, check_key(key)))

    def list(self, prefix: str, *, after: str = "", limit: int = 0) -> Iterator[Entry]:
        with _store_errors(self.url, prefix):
            # The stores list by whole path segments; the memory store ignores the order that the others keep.
            pages = obstore.list(self._store, prefix or None, offset=after or None)
            found = []
            for page in pages:
                found += [_entry(meta) for meta in page if meta["path"] > after]
                if limit and len(found) >= limit and not isinstance(self._store, MemoryStore):
                    break
        yield from sorted(found, key=lambda e: e.key)[: limit or None]

    def children(self, prefix: str) -> Sequence[str]:
        with _store_errors(self.url, prefix):
            found = obstore.list_with_delimiter(self._store, prefix or None)
        names = [p.rstrip("/").rsplit("/", 1)[-1] for p in found["common_prefixes"]]
        names += [meta["path"].rsplit("/", 1)[-1] for meta in found["objects"]]
        return sorted(set(names))

    def delete(self, key: str) -> None:
        try:
            with _store_errors(self.url, key):
                obstore.delete(self._store, check_key(key))
        except Missing:
            pass

    def delete_many(self, keys: Sequence[str]) -> None:
        try:
            with _store_errors(self.url, "several objects"):
                obstore.delete(self._store, [check_key(key) for key in keys])
        except Missing:
            # Some stores refuse a batch if one of its objects is already gone.
            in_parallel(self.delete, keys)


def _entry(meta: Any) -> Entry:
    return Entry(meta["path"], meta["size"], meta["last_modified"].timestamp())
