"""Requests to Google's APIs: credentials, endpoints, pages, operations. Each request is sent once.

Exception: a request that was refused because its token expired had no effect, and is sent again with a new token. The
supervisor retries everything else.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

from outlast.clouds.cloud import ApiExchange
from outlast.clouds.gcp.errors import LOGIN, Doc, from_operation, from_response
from outlast.errors import BadRequest, CloudUnreachable, Denied
from outlast.extras import install_hint

PAGE = 500
_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
_CONNECT_S, _READ_S = 10.0, 60.0
_NETWORK = "check the network connection"
# The server answers `wait` within two minutes. The second limit is for the whole operation.
_WAIT_READ_S, _OPERATION_S_MAX = 150.0, 900.0
_NAMES = uuid.UUID("6f1f0d6c-7d5d-5c52-9d43-0b5b1f6d4c11")

# Service → endpoint. gcloud's variable CLOUDSDK_API_ENDPOINT_OVERRIDES_<SERVICE> overrides it.
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
    """A response body, and the time by the server's clock."""

    doc: Doc
    at: float


def request_id(*parts: str) -> str:
    """Return an id derived from the parts, so that repeating a request after a lost answer sends the same id."""
    return str(uuid.uuid5(_NAMES, "/".join(parts)))


# The most remembered failures of one request that are skipped to send a new one.
_REMEMBERED_MAX = 10


class GcpClient:
    """A client of one project. May be used from many threads at once."""

    def __init__(self, project: str = "", *, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment
        self._project = project
        self._lock = threading.Lock()
        self._credentials: Any = None
        self._pool: Any = None
        # Number of requests sent, for benchmarks and tests.
        self.sent = 0
        # The id of the last answer, and a receiver of all answers.
        self.last_request = ""
        self.sink: Callable[[ApiExchange], None] | None = None

    # Project, endpoints, credentials

    @property
    def project(self) -> str:
        """Return the project id. Raises Denied if none is configured."""
        if not self._project:
            for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"):
                self._project = self._project or self._environment.get(name, "")
        if not self._project:
            self._sign_in()
        if not self._project:
            raise Denied("no Google Cloud project is configured", hint="set GOOGLE_CLOUD_PROJECT to a project id")
        return self._project

    def address(self, service: str) -> str:
        """Return the endpoint of a service. An override for Compute Engine applies to services without their own."""
        if own := self._override(service):
            return own.rstrip("/") + "/"
        if not (near := self._override("compute")):
            return SERVICES[service]
        split = urlsplit(near)
        path = urlsplit(SERVICES[service]).path
        return f"{split.scheme}://{split.netloc}{path if path != '/' else f'/{service}/'}"

    @property
    def emulated(self) -> bool:
        """Return whether the server is an emulator, not Google's."""
        return bool(self._override("compute"))

    def _override(self, service: str) -> str:
        return self._environment.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}", "")

    def _sign_in(self) -> Any:
        """Return the application default credentials. Raises Denied, CloudUnreachable."""
        try:
            import google.auth
            from google.auth.exceptions import DefaultCredentialsError
        except ImportError as problem:
            raise Denied("google-auth is not installed", hint=install_hint("outlast[gcp]")) from problem
        with self._lock:
            if self._credentials is None:
                try:
                    self._credentials, project = google.auth.default(scopes=_SCOPES, request=self._carrier())
                except DefaultCredentialsError as problem:
                    raise Denied("no credentials for Google Cloud were found", hint=LOGIN) from problem
                self._project = self._project or project or ""
            return self._credentials

    def token(self, *, renew: bool = False) -> str:
        """Return a valid access token. Raises Denied, CloudUnreachable."""
        credentials = self._sign_in()
        from google.auth.exceptions import GoogleAuthError, TransportError

        with self._lock:
            try:
                if renew or not credentials.valid:
                    credentials.refresh(self._carrier())
            except TransportError as problem:
                raise CloudUnreachable("Google's token endpoint is unreachable", hint=_NETWORK) from problem
            except GoogleAuthError as problem:
                if problem.retryable:
                    raise CloudUnreachable("Google's token endpoint returned a temporary error") from problem
                raise Denied("Google rejected the credentials", hint=LOGIN) from problem
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
        """Send one request. Raises a CloudError."""
        url = self.address(service) + quote(path, safe="/:@")
        if query:
            url += "?" + urlencode({name: _text(value) for name, value in query.items()})
        answer = self._send(method, url, body, self.token(), read_s)
        if answer.status == 401:
            answer = self._send(method, url, body, self.token(renew=True), read_s)
        doc = _parsed(answer.data)
        self._note(service, f"{method} {path}", answer, doc)
        if answer.status >= 300:
            raise from_response(answer.status, doc, _what(method, path))
        return ApiAnswer(doc=doc if isinstance(doc, dict) else {}, at=_date(answer.headers.get("Date", "")))

    def _note(self, service: str, what: str, answer: Any, doc: object) -> None:
        """Remember the id of an answer: its operation, or the one that Cloud Storage gives."""
        operation = str(doc.get("name", "")) if isinstance(doc, dict) and "operationType" in doc else ""
        self.last_request = operation or str(answer.headers.get("X-GUploader-UploadID", "")) or what
        if self.sink is not None:
            id = self.last_request
            self.sink(ApiExchange(service=service, what=what, status=answer.status, request_id=id, answer=doc))

    @property
    def credentials(self) -> Any:
        """Return the application default credentials. Raises Denied, CloudUnreachable."""
        return self._sign_in()

    def _send(self, method: str, url: str, body: object, token: str, read_s: float) -> Any:
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "gzip", "User-Agent": "outlast (gzip)"}
        if payer := self._quota_project():
            headers["X-Goog-User-Project"] = payer
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
            raise CloudUnreachable(f"{host} did not answer ({why})", hint=_NETWORK) from problem

    def _quota_project(self) -> str:
        """Return the project that pays for requests. Google demands one for the credentials of a person."""
        given = str(getattr(self._credentials, "quota_project_id", None) or "")
        # Only credentials of a person have a refresh token; those of accounts belong to a project themselves.
        return given or (self.project if getattr(self._credentials, "refresh_token", None) else "")

    def _http(self) -> Any:
        """Return a pool of persistent connections, through this computer's proxy if it has one."""
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
        """Send a request to Compute Engine; `below` is the path below the project."""
        return self.call("compute", method, self.below(below), query=query, body=body)

    def below(self, path: str) -> str:
        return f"projects/{self.project}/{path}".rstrip("/")

    def pages(self, below: str, *, query: Mapping[str, object], project: str = "") -> Iterator[ApiAnswer]:
        """Yield a list, page by page."""
        token = ""
        path = f"projects/{project}/{below}" if project else self.below(below)
        while True:
            full = {**query, "maxResults": PAGE, **({"pageToken": token} if token else {})}
            answer = self.call("compute", "GET", path, query=full)
            yield answer
            token = str(answer.doc.get("nextPageToken", ""))
            if not token:
                return

    def change(
        self, method: str, below: str, *, key: str = "", query: Mapping[str, object] | None = None, body: object = None
    ) -> Doc:
        """Send a change and wait until it is done. Repeating it with the same key has no effect.

        Without a key every call has its effect. That suits requests that set a value: the server remembers a key for an
        hour, in which an earlier value may be set again.

        Raises the error of the request or of its operation.
        """
        what = _what(method, below)
        id = request_id(key) if key else str(uuid.uuid4())
        for _ in range(_REMEMBERED_MAX):
            answer = self.compute(method, below, body=body, query={**(query or {}), "requestId": id})
            if answer.doc.get("status") != "DONE" or "error" not in answer.doc:
                break
            # The server remembers a request for an hour and answers with its result. A failed one had no effect, so it
            # may be sent again. Other processes derive the same next id from the failure.
            id = request_id(key, str(answer.doc.get("name", "")))
        operation = self.wait(answer.doc)
        if (problem := from_operation(operation, what)) is not None:
            raise problem
        return operation

    def wait(self, operation: Doc) -> Doc:
        """Return the operation once it is done. Raises CloudUnreachable after a timeout."""
        if "status" not in operation:
            return operation  # some changes, such as policies, have no operation
        give_up_at = time.monotonic() + _OPERATION_S_MAX
        scope = "global"
        for kind in ("zone", "region"):
            if operation.get(kind):
                scope = f"{kind}s/{last(operation[kind])}"
        path = self.below(f"{scope}/operations/{operation['name']}/wait")
        while operation["status"] != "DONE":
            if time.monotonic() > give_up_at:
                why = f"operation {operation['name']} is not done after {_OPERATION_S_MAX:g} s"
                raise CloudUnreachable(why)
            operation = self.call("compute", "POST", path, read_s=_WAIT_READ_S).doc
        return operation


def last(link: object) -> str:
    """Return the name at the end of a link."""
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
    """Return the name if it follows Google's rules. Raises BadRequest."""
    import re

    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name):
        raise BadRequest(
            f"invalid {what} name `{name}`", hint="use lower-case letters, digits and `-`, at most 63, a letter first"
        )
    return name
