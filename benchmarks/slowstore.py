"""An S3 server in memory with a fixed latency per call, as a stand-in for a remote bucket.

It supports the calls of a workspace: get, put (also create-only), head, delete and listings of 1,000 keys per call.
"""

from __future__ import annotations

import bisect
import time
import urllib.parse
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from xml.sax.saxutils import escape

BUCKET = "bench"
_PAGE = 1000


class SlowStore:
    """The objects, the latency, and the number of calls."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.latency_s = 0.0
        self.calls = 0
        self.port = 0
        self._keys: list[str] = []
        self._lock = Lock()

    def fill(self, objects: Mapping[str, bytes]) -> None:
        """Add many objects without calls."""
        now = time.time()
        with self._lock:
            self.objects.update({key: (body, now) for key, body in objects.items()})
            self._keys = sorted(self.objects)

    def put(self, key: str, body: bytes, *, create: bool) -> bool:
        with self._lock:
            if key not in self.objects:
                bisect.insort(self._keys, key)
            elif create:
                return False
            self.objects[key] = (body, time.time())
            return True

    def delete(self, key: str) -> None:
        with self._lock:
            if self.objects.pop(key, None) is not None:
                del self._keys[bisect.bisect_left(self._keys, key)]

    def listed(self, prefix: str, after: str, delimiter: str) -> tuple[list[str], list[str], str]:
        """Return the keys and common prefixes of one page, and the start of the next one."""
        keys: list[str] = []
        prefixes: list[str] = []
        with self._lock:
            at = bisect.bisect_right(self._keys, after) if after else bisect.bisect_left(self._keys, prefix)
            at = max(at, bisect.bisect_left(self._keys, prefix))
            while at < len(self._keys) and (key := self._keys[at]).startswith(prefix):
                if len(keys) + len(prefixes) == _PAGE:
                    return keys, prefixes, after
                cut = key.find(delimiter, len(prefix)) if delimiter else -1
                if cut < 0:
                    keys.append(key)
                    after, at = key, at + 1
                    continue
                prefixes.append(key[: cut + 1])
                after = key[: cut + 1] + "\U0010ffff"
                at = bisect.bisect_left(self._keys, after)
        return keys, prefixes, ""

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that point Amazon's clients to it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_REGION": "us-east-1",
        }


def _handler(store: SlowStore) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, *_arguments: object) -> None:
            pass

        def _begin(self) -> tuple[str, dict[str, str], bytes]:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            store.calls += 1
            time.sleep(store.latency_s)
            parts = urllib.parse.urlsplit(self.path)
            key = urllib.parse.unquote(parts.path).removeprefix(f"/{BUCKET}").lstrip("/")
            return key, dict(urllib.parse.parse_qsl(parts.query)), body

        def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            length = headers.pop("length", str(len(body)))
            for name, value in {"Content-Length": length, **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def _object(self, *, with_body: bool) -> None:
            key, query, _ = self._begin()
            if with_body and "list-type" in query:
                self._answer(200, _listing(store, query), Content_Type="application/xml")
            elif (found := store.objects.get(key)) is None:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>" if with_body else b"")
            else:
                body, at = found
                times = {"Last_Modified": formatdate(at, usegmt=True), "ETag": f'"{zlib.crc32(body):08x}"'}
                self._answer(200, body if with_body else b"", length=str(len(body)), **times)

        def do_GET(self) -> None:
            self._object(with_body=True)

        def do_HEAD(self) -> None:
            self._object(with_body=False)

        def do_PUT(self) -> None:
            key, _, body = self._begin()
            made = store.put(key, body, create=self.headers.get("If-None-Match") == "*")
            error = b"<Error><Code>PreconditionFailed</Code></Error>"
            self._answer(200 if made else 412, b"" if made else error, ETag=f'"{zlib.crc32(body):08x}"')

        def do_DELETE(self) -> None:
            key, _, _ = self._begin()
            store.delete(key)
            self._answer(204)

        def do_POST(self) -> None:
            """Delete several objects; the client uses this call even for one."""
            _, _, body = self._begin()
            keys = [part.partition(b"</Key>")[0].decode() for part in body.split(b"<Key>")[1:]]
            for key in keys:
                store.delete(key)
            gone = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            self._answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode(), Content_Type="application/xml")

    return Handler


def _listing(store: SlowStore, query: Mapping[str, str]) -> bytes:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = query.get("continuation-token") or query.get("start-after", "")
    keys, prefixes, rest = store.listed(prefix, after, delimiter)
    parts = []
    for key in keys:
        body, at = store.objects.get(key, (b"", 0.0))
        when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(at))
        parts.append(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{when}</LastModified><Size>{len(body)}</Size></Contents>"
        )
    parts += [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in prefixes]
    more = f"<NextContinuationToken>{escape(rest)}</NextContinuationToken>" if rest else ""
    whole = f"<IsTruncated>{'true' if rest else 'false'}</IsTruncated>{more}{''.join(parts)}"
    return f"<ListBucketResult><Name>{BUCKET}</Name>{whole}</ListBucketResult>".encode()


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


@contextmanager
def slow_store() -> Iterator[SlowStore]:
    store = SlowStore()
    server = _Server(("127.0.0.1", 0), _handler(store))
    store.port = server.server_port
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
