"""Operations: work that continues after the response, its end and its failure.

A new operation is always RUNNING, as on the real cloud, where the work takes minutes.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

from outlast.errors import BadRequest, Denied, NoCapacity, NotFound, OutlastError, OverQuota, Throttled
from outlast_gcp_emulator.compute.refs import Doc, Ref, new_id, ref_of, resource_not_found, scope_link, timestamp
from outlast_gcp_emulator.compute.store import ResourceStore
from outlast_gcp_emulator.errors import ApiError

# Google's limit for one `wait` request.
WAIT_S_MAX = 120.0
_KEPT_MAX = 2000

Work = Callable[[], None]


class OperationFailure(Exception):
    """The error of an operation, with Google's code and message."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


class Operations:
    """Starts work in threads and records how it ended."""

    def __init__(self, store: ResourceStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._by_request: dict[tuple[str, str], Ref] = {}
        for ref, doc in self._store.each("operations"):
            if doc["status"] != "DONE":
                self._end(
                    ref, OperationFailure("INTERNAL_ERROR", "the server stopped during the operation", status=500)
                )

    def begin(
        self, target: Ref, verb: str, work: Work, *, target_id: str = "", request_id: str = "", group: str = ""
    ) -> Doc:
        """Start the work and return its operation. `group` joins the operations that one request started."""
        name = f"operation-{int(time.time() * 1000)}-{secrets.token_hex(6)}"
        ref = Ref(target.project, target.scope, "operations", name)
        now = timestamp()
        doc: Doc = {
            "kind": "compute#operation",
            "id": new_id(),
            "name": name,
            "operationType": verb,
            "targetLink": target.link if target.collection else scope_link(target.project, "").rstrip("/"),
            "targetId": target_id or "0",
            "status": "RUNNING",
            "user": f"local@{target.project}.iam.gserviceaccount.com",
            "progress": 0,
            "insertTime": now,
            "startTime": now,
            "selfLink": ref.link,
        }
        kind, _, _ = target.scope.partition("/")
        if kind in ("zones", "regions"):
            doc[kind[:-1]] = scope_link(target.project, target.scope)
        if group:
            doc["operationGroupId"] = group
        if request_id:
            self._by_request[target.project, request_id] = ref
        self._store.put(ref, doc)
        started = dict(doc)
        threading.Thread(target=self._run, args=(ref, work), name=name, daemon=True).start()
        self._drop_old()
        return started

    def of_request(self, project: str, request_id: str) -> Doc | None:
        """Return the operation that an earlier request with this id started: the client repeats a lost request."""
        ref = self._by_request.get((project, request_id))
        return self._store.get(ref) if ref is not None else None

    def done(self, target: Ref, verb: str, *, target_id: str = "", failure: OperationFailure | None = None) -> None:
        """Record an event that no request caused, such as a preemption."""
        started = self.begin(target, verb, lambda: _fail(failure), target_id=target_id)
        self.wait(ref_of(started["selfLink"]))

    def wait(self, ref: Ref) -> Doc:
        """Return the operation once it is done, or in its current state after WAIT_S_MAX."""
        give_up_at = time.monotonic() + WAIT_S_MAX
        with self._changed:
            while (doc := self._find(ref))["status"] != "DONE" and time.monotonic() < give_up_at:
                self._changed.wait(give_up_at - time.monotonic())
        return dict(doc)

    def _find(self, ref: Ref) -> Doc:
        if (doc := self._store.get(ref)) is None:
            raise resource_not_found(ref)
        return doc

    def _run(self, ref: Ref, work: Work) -> None:
        failure: OperationFailure | None = OperationFailure(
            "INTERNAL_ERROR", "internal error in outlast; see the stderr of `outlast local serve`", status=500
        )
        try:
            work()
            failure = None
        except OperationFailure as problem:
            failure = problem
        except (OutlastError, ApiError) as problem:
            failure = failure_of(problem, ref)
        finally:
            self._end(ref, failure)

    def _end(self, ref: Ref, failure: OperationFailure | None) -> None:
        with self._changed:
            if (doc := self._store.get(ref)) is not None:
                doc = {**doc, "status": "DONE", "progress": 100, "endTime": timestamp()}
                if failure is not None:
                    doc["error"] = {"errors": [{"code": failure.code, "message": failure.message}]}
                    doc["httpErrorStatusCode"] = failure.status
                    doc["httpErrorMessage"] = _HTTP.get(failure.status, "BAD REQUEST")
                self._store.put(ref, doc)
            self._changed.notify_all()

    def _drop_old(self) -> None:
        done = [ref for ref, doc in self._store.each("operations") if doc["status"] == "DONE"]
        if len(done) > _KEPT_MAX:
            # Names begin with the time.
            for ref in sorted(done, key=lambda ref: ref.name)[: _KEPT_MAX // 2]:
                self._store.drop(ref)


_HTTP = {400: "BAD REQUEST", 403: "FORBIDDEN", 404: "NOT FOUND", 409: "CONFLICT", 500: "INTERNAL SERVER ERROR"}
_HTTP |= {412: "PRECONDITION FAILED", 429: "TOO MANY REQUESTS", 503: "SERVICE UNAVAILABLE"}


def _fail(failure: OperationFailure | None) -> None:
    if failure is not None:
        raise failure


def failure_of(problem: OutlastError | ApiError, ref: Ref) -> OperationFailure:
    """Return Google's equivalent of one of our errors."""
    place = f"projects/{ref.project}/{ref.scope}"
    if isinstance(problem, ApiError):
        return OperationFailure(_CODES.get(problem.reason, "INVALID_USAGE"), problem.message, status=problem.status)
    if isinstance(problem, NoCapacity):
        message = f"The zone '{place}' does not have enough resources available to fulfill the request."
        message += "  Try a different zone, or try again later."
        return OperationFailure("ZONE_RESOURCE_POOL_EXHAUSTED", message, status=503)
    if isinstance(problem, OverQuota):
        region = ref.scope.removeprefix("zones/").rpartition("-")[0]
        message = f"Quota 'CPUS' exceeded.  {problem.message} in region {region}."
        return OperationFailure("QUOTA_EXCEEDED", message, status=403)
    for kind, code, status in _FAILURES:
        if isinstance(problem, kind):
            return OperationFailure(code, problem.message, status=status)
    return OperationFailure("INTERNAL_ERROR", problem.message, status=500)


_FAILURES = (
    (Throttled, "RATE_LIMIT_EXCEEDED", 429),
    (Denied, "PERMISSIONS_ERROR", 403),
    (NotFound, "RESOURCE_NOT_FOUND", 404),
    (BadRequest, "INVALID_USAGE", 400),
)
_CODES = {
    "notFound": "RESOURCE_NOT_FOUND",
    "alreadyExists": "RESOURCE_ALREADY_EXISTS",
    "conditionNotMet": "CONDITION_NOT_MET",
    "resourceInUseByAnotherResource": "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
}
