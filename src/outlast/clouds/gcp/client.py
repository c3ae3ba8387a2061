"""Requests to Google's APIs: credentials, addresses, pages, operations. Each is tried once and answers or raises.

One thing is asked twice: a request that is refused because its token is too old did nothing, and is sent with a new
one. Whoever wants more patience has it; retries are the supervisor's.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

from outlast.clouds.gcp.errors import LOGIN, Doc, of_answer, of_operation
from outlast.errors import BadRequest, CloudUnreachable, Denied

PAGE = 500
_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
_CONNECT_S, _READ_S = 10.0, 60.0
# The server holds `wait` for two minutes at most; an operation that takes longer than the other is not worth waiting.
_WAIT_READ_S, _OPERATION_S_MAX = 150.0, 900.0
_NAMES = uuid.UUID("6f1f0d6c-7d5d-5c52-9d43-0b5b1f6d4c11")

# Service → where it is, unless gcloud's own variable CLOUDSDK_API_ENDPOINT_OVERRIDES_<SERVICE> says otherwise.
SERVICES = {
    "compute": "https://compute.googleapis.com/compute/v1/",
    "storage": "https://storage.googleapis.com/storage/v1/",
    "secretmanager": "https://secretmanager.googleapis.com/",
    "cloudbilling": "https://cloudbilling.googleapis.com/",
    "file": "https://file.googleapis.com/",
    "sqladmin": "https://sqladmin.googleapis.com/",
    "iam": "https://iam.googleapis.com/",
    "cloudresourcemanager": "https://cloudresourcemanager.googleapis.com/",
    "serviceusage": "https://serviceusage.googleapis.com/",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiAnswer:
    """A body, and the server's own time."""

    doc: Doc
    at: float


def request_id(*argv: str) -> str:
    """Derived, never drawn: who repeats a request whose answer was lost sends the same."""
    return str(uuid.uuid5(_NAMES, "/".join(argv)))


# So many failures of one and the same request are gone through to reach a new one.
_REMEMBERED_MAX = 10


class GcpClient:
    """One project. May be used from many threads at once."""

    def __init__(self, project: str = "", *, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment
        self._project = project
        self._lock = threading.Lock()
        self._credentials: Any = None
        self._pool: Any = None
        # How many requests were sent; the benchmark reads it.
        self.sent = 0

    # Who and where

    @property
    def project(self) -> str:
        """Raises Denied when nobody says which."""
        if not self._project:
            for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"):
                self._project = self._project or self._environment.get(name, "")
        if not self._project:
            self._sign_in()
        if not self._project:
            raise Denied("no project of Google Cloud is chosen", hint="set GOOGLE_CLOUD_PROJECT to its id")
        return self._project

    def address(self, service: str) -> str:
        """Where a service is. A server that stands for Compute Engine stands for all others that nothing is said of."""
        if own := self._override(service):
            return own.rstrip("/") + "/"
        if not (near := self._override("compute")):
            return SERVICES[service]
        split = urlsplit(near)
        path = urlsplit(SERVICES[service]).path
        return f"{split.scheme}://{split.netloc}{path if path != '/' else f'/{service}/'}"

    @property
    def rehearses(self) -> bool:
        """Whether this is not Google's own server, but one that speaks like it."""
        return bool(self._override("compute"))

    def _override(self, service: str) -> str:
        return self._environment.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}", "")

    def _sign_in(self) -> Any:
        """The credentials, the usual way: application default. Raises Denied, CloudUnreachable."""
        try:
            import google.auth
            from google.auth.exceptions import DefaultCredentialsError
        except ImportError as problem:
            raise Denied("google-auth is not installed", hint="pip install 'outlast[gcp]'") from problem
        with self._lock:
            if self._credentials is None:
                try:
                    self._credentials, project = google.auth.default(scopes=_SCOPES, request=self._carrier())
                except DefaultCredentialsError as problem:
                    raise Denied("there are no credentials for Google Cloud", hint=LOGIN) from problem
                self._project = self._project or project or ""
            return self._credentials

    def token(self, *, renew: bool = False) -> str:
        """Raises Denied, CloudUnreachable."""
        credentials = self._sign_in()
        from google.auth.exceptions import GoogleAuthError, TransportError

        with self._lock:
            try:
                if renew or not credentials.valid:
                    credentials.refresh(self._carrier())
            except TransportError as problem:
                raise CloudUnreachable("the server of Google's tokens cannot be reached") from problem
            except GoogleAuthError as problem:
                if problem.retryable:
                    raise CloudUnreachable("the server of Google's tokens is not well") from problem
                raise Denied("the credentials for Google Cloud are no longer good", hint=LOGIN) from problem
            return str(credentials.token)

    # Requests

    def call(
        self,
        service: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        read_s: float = _READ_S,
    ) -> ApiAnswer:
        """One request. Raises a CloudError."""
        url = self.address(service) + quote(path, safe="/:@")
        if query:
            url += "?" + urlencode({name: _text(value) for name, value in query.items()})
        answer = self._send(method, url, body, self.token(), read_s)
        if answer.status == 401:
            answer = self._send(method, url, body, self.token(renew=True), read_s)
        doc = _parsed(answer.data)
        if answer.status >= 300:
            raise of_answer(answer.status, doc, _what(method, path))
        return ApiAnswer(doc=doc if isinstance(doc, dict) else {}, at=_date(answer.headers.get("Date", "")))

    def _send(self, method: str, url: str, body: object, token: str, read_s: float) -> Any:
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "gzip", "User-Agent": "outlast (gzip)"}
        if payer := getattr(self._credentials, "quota_project_id", None):
            headers["X-Goog-User-Project"] = str(payer)
        if body is not None:
            headers["Content-Type"] = "application/json"
        data = None if body is None else json.dumps(body).encode()
        timeout = Timeout(connect=_CONNECT_S, read=read_s)
        self.sent += 1
        try:
            return self._http().request(
                method, url, body=data, headers=headers, timeout=timeout, retries=False, redirect=False
            )
        except HTTPError as problem:
            host = urlsplit(url).netloc
            why = type(problem).__name__
            raise CloudUnreachable(f"{host} gave no answer ({why})", hint="is the network up?") from problem

    def _http(self) -> Any:
        """Connections that stay open, through the proxy that this computer uses."""
        if self._pool is None:
            import urllib3

            host = urlsplit(self.address("compute")).hostname or ""
            proxy = "" if proxy_bypass(host) else getproxies().get(urlsplit(self.address("compute")).scheme, "")
            options: dict[str, Any] = {"maxsize": 16, "num_pools": 16}
            self._pool = urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)
        return self._pool

    def _carrier(self) -> Any:
        from google.auth.transport.urllib3 import Request

        return Request(self._http())  # type: ignore[no-untyped-call]

    # Compute Engine

    def compute(
        self, method: str, below: str, *, query: Mapping[str, object] | None = None, body: object = None
    ) -> ApiAnswer:
        """A request about something of this project; `below` is the path below it."""
        return self.call("compute", method, self.below(below), query=query, body=body)

    def below(self, path: str) -> str:
        return f"projects/{self.project}/{path}".rstrip("/")

    def pages(self, below: str, *, query: Mapping[str, object], project: str = "") -> Iterator[ApiAnswer]:
        """A list, page by page."""
        token = ""
        path = f"projects/{project}/{below}" if project else self.below(below)
        while True:
            asked = {**query, "maxResults": PAGE, **({"pageToken": token} if token else {})}
            answer = self.call("compute", "GET", path, query=asked)
            yield answer
            token = str(answer.doc.get("nextPageToken", ""))
            if not token:
                return

    def change(
        self, method: str, below: str, *, key: str = "", query: Mapping[str, object] | None = None, body: object = None
    ) -> Doc:
        """Change something and wait until that is done. Who repeats it under the same key repeats nothing.

        Without a key it is done each time: right for what sets a value, to which somebody may come back within the hour
        that the server remembers keys.

        Raises what the request or its operation ended in.
        """
        what = _what(method, below)
        again = request_id(key) if key else str(uuid.uuid4())
        for _ in range(_REMEMBERED_MAX):
            answer = self.compute(method, below, body=body, query={**(query or {}), "requestId": again})
            if answer.doc.get("status") != "DONE" or "error" not in answer.doc:
                break
            # The server remembers a request for an hour, and answers with how it went. What failed made nothing: it
            # may be tried again; whoever else tries goes the same way from failure to failure, and sends the same.
            again = request_id(key, str(answer.doc.get("name", "")))
        operation = self.wait(answer.doc)
        if (problem := of_operation(operation, what)) is not None:
            raise problem
        return operation

    def wait(self, operation: Doc) -> Doc:
        """The operation when it is done. Raises CloudUnreachable when that takes too long."""
        if "status" not in operation:
            return operation  # some changes, such as policies, are done when they are answered
        give_up_at = time.monotonic() + _OPERATION_S_MAX
        place = "global"
        for kind in ("zone", "region"):
            if operation.get(kind):
                place = f"{kind}s/{last(operation[kind])}"
        path = self.below(f"{place}/operations/{operation['name']}/wait")
        while operation["status"] != "DONE":
            if time.monotonic() > give_up_at:
                raise CloudUnreachable(f"the operation {operation['name']} does not end")
            operation = self.call("compute", "POST", path, read_s=_WAIT_READ_S).doc
        return operation


def last(link: object) -> str:
    """The name at the end of a link."""
    return str(link or "").rstrip("/").rpartition("/")[2]


def _what(method: str, path: str) -> str:
    return f"{method} {path}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data) if data.strip() else {}
    except ValueError:
        return {"error": {"message": data[:200].decode("utf-8", "replace")}}


def _date(text: str) -> float:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return time.time()


def check_name(name: str, what: str = "machine") -> str:
    """The rules for names of resources. Raises BadRequest."""
    import re

    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name):
        raise BadRequest(
            f"`{name}` cannot name a {what}", hint="lower-case letters, digits and `-`, at most 63, a letter first"
        )
    return name
