"""A bucket in GCS, S3 or memory, through obstore."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import MemoryStore, from_url

from outlast.errors import Exists, Missing, StoreUnreachable, WorkspaceError
from outlast.workspace.bucket import Entry, check_key
from outlast.workspace.reach import Reach

_REFUSED = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)


@contextmanager
def _told(url: str, key: str) -> Iterator[None]:
    try:
        yield
    except exceptions.AlreadyExistsError as problem:
        raise Exists(f"`{key}` is there already") from problem
    except (exceptions.NotFoundError, FileNotFoundError) as problem:
        raise Missing(f"`{key}` is not in the workspace") from problem
    except _REFUSED as problem:
        raise WorkspaceError(
            f"workspace {url}: access denied: {_short(problem)}",
            hint="check the credentials and that they may read and write the bucket",
        ) from problem
    except exceptions.BaseError as problem:
        # Stores hold names that are no paths, `a//b` or `a/../b`; outlast writes none, and a listing ends at the first.
        foreign = "invalid path" in str(problem)
        hint = "outlast wrote no such object: delete it" if foreign else "is the network up?"
        raise StoreUnreachable(f"workspace {url}: {_short(problem)}", hint=hint) from problem


def _short(problem: BaseException) -> str:
    return str(problem).strip().splitlines()[0][:300]


def _open(url: str, reach: Reach) -> Any:
    if url.startswith("s3://"):
        return _open_s3(url, reach)
    host = reach.gs_host or os.environ.get("STORAGE_EMULATOR_HOST", "")
    if not host or not url.startswith("gs://"):
        return from_url(url, service_account_key=reach.gs_key) if reach.gs_key else from_url(url)
    # The variable that Google's own clients know. Without a token obstore would look for one before it writes.
    address = host if "://" in host else f"http://{host}"
    return from_url(url, base_url=address, bearer_token="emulator", client_options={"allow_http": True})


def _open_s3(url: str, reach: Reach) -> Any:
    # The variables that Amazon's own clients know; other servers of the protocol are reached by them, too.
    endpoint = reach.s3_endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    metadata = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "")
    given = {
        "endpoint": endpoint,
        "region": reach.s3_region,
        "metadata_endpoint": metadata,
        "access_key_id": reach.s3_id,
        "secret_access_key": reach.s3_secret,
    }
    plain = endpoint.startswith("http://") or metadata.startswith("http://")
    options: dict[str, Any] = {name: value for name, value in given.items() if value}
    return from_url(url, **options, client_options={"allow_http": True} if plain else {})


class ObjectBucket:
    """See `Bucket` for the contract. All three stores acknowledge only what is durable."""

    def __init__(self, url: str, reach: Reach | None = None) -> None:
        self.url = url.rstrip("/") if not url.startswith("memory://") else url
        try:
            self._store: Any = MemoryStore() if url.startswith("memory://") else _open(self.url, reach or Reach())
        except (exceptions.BaseError, ValueError) as problem:
            raise WorkspaceError(f"workspace {url}: {_short(problem)}") from problem

    def get(self, key: str) -> bytes:
        with _told(self.url, key):
            return bytes(obstore.get(self._store, check_key(key)).bytes())

    def fill(self, key: str, room: memoryview) -> int:
        with _told(self.url, key):
            body = memoryview(obstore.get(self._store, check_key(key)).bytes())[: len(room)]
        room[: len(body)] = body
        return len(body)

    def put(self, key: str, body: bytes, *, durable: bool = False) -> Entry:
        with _told(self.url, key):
            obstore.put(self._store, check_key(key), body)
        return self.head(key)

    def create(self, key: str, body: bytes, *, durable: bool = True) -> None:
        with _told(self.url, key):
            obstore.put(self._store, check_key(key), body, mode="create")

    def write(self, key: str, body: bytes | memoryview) -> None:
        with _told(self.url, key):
            # One request: the caller has many of these under way already. A copy: the store in memory keeps what it is
            # given, and the caller will fill this memory anew.
            obstore.put(self._store, check_key(key), bytes(body), use_multipart=False)

    def settle(self, keys: Sequence[str]) -> None:
        """Nothing to do: see above."""

    def sweep(self, *, older_s: float) -> int:
        """Nothing to do: what was not sent to its end is the store's own to forget."""
        return 0

    def upload(self, key: str, path: str) -> None:
        with _told(self.url, key), open(path, "rb") as file:
            obstore.put(self._store, check_key(key), file)

    def download(self, key: str, path: str) -> None:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        staged = f"{path}.{secrets.token_hex(4)}.part"
        try:
            with _told(self.url, key), open(staged, "wb") as file:
                for piece in obstore.get(self._store, check_key(key)):
                    file.write(piece)
            os.replace(staged, path)
        finally:
            with suppress(FileNotFoundError):  # it has its name
                os.unlink(staged)

    def head(self, key: str) -> Entry:
        with _told(self.url, key):
            return _entry(obstore.head(self._store, check_key(key)))

    def list(self, prefix: str, *, after: str = "") -> Iterator[Entry]:
        with _told(self.url, prefix):
            # The stores list by whole path segments; the memory store ignores the order that the others keep.
            pages = obstore.list(self._store, prefix or None, offset=after or None)
            found = [_entry(meta) for page in pages for meta in page]
        yield from sorted((e for e in found if e.key > after), key=lambda e: e.key)

    def children(self, prefix: str) -> Sequence[str]:
        with _told(self.url, prefix):
            found = obstore.list_with_delimiter(self._store, prefix or None)
        names = [p.rstrip("/").rsplit("/", 1)[-1] for p in found["common_prefixes"]]
        names += [meta["path"].rsplit("/", 1)[-1] for meta in found["objects"]]
        return sorted(set(names))

    def delete(self, key: str) -> None:
        try:
            with _told(self.url, key):
                obstore.delete(self._store, check_key(key))
        except Missing:
            pass


def _entry(meta: Any) -> Entry:
    return Entry(meta["path"], meta["size"], meta["last_modified"].timestamp())
