"""Operations: work that goes on after the answer, its end, and its failure. Knows what failed only by its error.

An operation is answered as RUNNING, always: what is DONE at once in tests takes minutes on the real cloud.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

from outlast.errors import BadRequest, Denied, NoCapacity, NotFound, OutlastError, OverQuota, Throttled
from outlast_gcp_emulator.compute.refs import Doc, Ref, new_id, not_there, ref_of, scope_link, timestamp
from outlast_gcp_emulator.compute.store import ResourceStore
from outlast_gcp_emulator.errors import ApiError

# As long as the real one lets a client wait.
WAIT_S_MAX = 120.0
_KEPT_MAX = 2000

Work = Callable[[], None]


class OperationFailure(Exception):
    """An operation that ends in error, in Google's words."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


class Operations:
    def __init__(self, store: ResourceStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._asked: dict[tuple[str, str], Ref] = {}
        for ref, doc in self._store.each("operations"):
            if doc["status"] != "DONE":
                self._end(ref, OperationFailure("INTERNAL_ERROR", "the server ended during the operation", status=500))

    def begin(
        self, target: Ref, verb: str, work: Work, *, target_id: str = "", request_id: str = "", group: str = ""
    ) -> Doc:
        """Start the work and answer with its operation. A group is those that one request has begun."""
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
            self._asked[target.project, request_id] = ref
        self._store.put(ref, doc)
        answered = dict(doc)
        threading.Thread(target=self._run, args=(ref, work), name=name, daemon=True).start()
        self._forget_old()
        return answered

    def asked_before(self, project: str, request_id: str) -> Doc | None:
        """The operation of a request that came already: its answer was lost, and the client asks again."""
        ref = self._asked.get((project, request_id))
        return self._store.get(ref) if ref is not None else None

    def done(self, target: Ref, verb: str, *, target_id: str = "", failure: OperationFailure | None = None) -> None:
        """Record something that the cloud did of its own accord, as it does a preemption."""
        answered = self.begin(target, verb, lambda: _fail(failure), target_id=target_id)
        self.wait(ref_of(answered["selfLink"]), patience_s=WAIT_S_MAX)

    def wait(self, ref: Ref, *, patience_s: float) -> Doc:
        """The operation once it is done, or as it is when the patience is over."""
        give_up_at = time.monotonic() + min(patience_s, WAIT_S_MAX)
        with self._changed:
            while (doc := self._known(ref))["status"] != "DONE" and time.monotonic() < give_up_at:
                self._changed.wait(give_up_at - time.monotonic())
        return dict(doc)

    def _known(self, ref: Ref) -> Doc:
        if (doc := self._store.get(ref)) is None:
            raise not_there(ref)
        return doc

    def _run(self, ref: Ref, work: Work) -> None:
        failure: OperationFailure | None = OperationFailure(
            "INTERNAL_ERROR", "a bug in outlast; see what the server printed", status=500
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

    def _forget_old(self) -> None:
        every = [ref for ref, doc in self._store.each("operations") if doc["status"] == "DONE"]
        if len(every) > _KEPT_MAX:
            # Their names begin with the time.
            for ref in sorted(every, key=lambda ref: ref.name)[: _KEPT_MAX // 2]:
                self._store.drop(ref)


_HTTP = {400: "BAD REQUEST", 403: "FORBIDDEN", 404: "NOT FOUND", 409: "CONFLICT", 500: "INTERNAL SERVER ERROR"}
_HTTP |= {412: "PRECONDITION FAILED", 429: "TOO MANY REQUESTS", 503: "SERVICE UNAVAILABLE"}


def _fail(failure: OperationFailure | None) -> None:
    if failure is not None:
        raise failure


def failure_of(problem: OutlastError | ApiError, ref: Ref) -> OperationFailure:
    """What Google says in the place of an error of ours."""
    place = f"projects/{ref.project}/{ref.scope}"
    if isinstance(problem, ApiError):
        return OperationFailure(_CODES.get(problem.reason, "INVALID_USAGE"), problem.message, status=problem.status)
    match problem:
        case NoCapacity():
            told = f"The zone '{place}' does not have enough resources available to fulfill the request."
            return OperationFailure(
                "ZONE_RESOURCE_POOL_EXHAUSTED", f"{told}  Try a different zone, or try again later.", status=503
            )
        case OverQuota():
            region = ref.scope.removeprefix("zones/").rpartition("-")[0]
            return OperationFailure(
                "QUOTA_EXCEEDED", f"Quota 'CPUS' exceeded.  {problem.message} in region {region}.", status=403
            )
        case Throttled():
            return OperationFailure("RATE_LIMIT_EXCEEDED", problem.message, status=429)
        case Denied():
            return OperationFailure("PERMISSIONS_ERROR", problem.message, status=403)
        case NotFound():
            return OperationFailure("RESOURCE_NOT_FOUND", problem.message, status=404)
        case BadRequest():
            return OperationFailure("INVALID_USAGE", problem.message)
        case _:
            return OperationFailure("INTERNAL_ERROR", problem.message, status=500)


_CODES = {
    "notFound": "RESOURCE_NOT_FOUND",
    "alreadyExists": "RESOURCE_ALREADY_EXISTS",
    "conditionNotMet": "CONDITION_NOT_MET",
}
_CODES["resourceInUseByAnotherResource"] = "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
