"""The exclusive lock `db:NAME` in the database itself: it also holds against runs of other workspaces and accounts.

The holder renews its lease in the database (`sql/lease.py`). If that fails, for any reason, the command is killed
before another run can take the lease.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping

from outlast.agent.attempt import hopeless
from outlast.agent.effects import AttemptAborted
from outlast.agent.environment import machine_root
from outlast.agent.watch import AgentWatch
from outlast.errors import DatabaseUnreachable, OutlastError
from outlast.kit.libraries import fetch_libraries
from outlast.sql.lease import DatabaseLease, url_of
from outlast.sql.session import Login, login_from, need
from outlast.store.bucket import Bucket

# A restart of a database server must fit: its connections are refused meanwhile.
_TTL_S = 30.0
_RENEW_AT = 0.15
_STOP_AT = 0.7
_RELEASE_S = 2.0


def now_s() -> float:
    """Return a monotonic time that also passes while the machine is suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def database_lock(name: str, variables: Mapping[str, str], *, who: str, bucket: Bucket) -> DatabaseLock | None:
    """Return the lock in the database that `name` names and the run uses; None without one.

    Raises AttemptAborted if this machine cannot use the database.
    """
    url = url_of(name, variables)
    if not url:
        return None
    try:
        login = login_from(url)
    except OSError as problem:
        why = f"`{name}`: the certificate of the database cannot be read: {problem}"
        hint = "an address of another computer may name a file of that computer: use `ssl=true` instead of `ssl_ca`"
        raise AttemptAborted(why, hopeless(OutlastError(why, hint=hint))) from problem
    _load_driver(login, bucket)
    return DatabaseLock(DatabaseLease(login, name, who=who, ttl_s=_TTL_S))


def _load_driver(login: Login, bucket: Bucket) -> None:
    """Import the driver: that of this Python, else the kit's, which the submitter stored in the workspace."""
    try:
        need(login.engine)
        return
    except OutlastError as missing:
        try:
            sys.path.append(fetch_libraries(bucket, "db", folder=machine_root(os.path.expanduser("~"))))
            need(login.engine)
        except OutlastError:
            raise AttemptAborted(missing.message, hopeless(missing)) from missing


class DatabaseLock:
    """The lease of one attempt, and the threads that renew it."""

    def __init__(self, lease: DatabaseLease) -> None:
        self.lease = lease
        self._renewed_at = 0.0
        self._held = self._left = False
        self._noted = self._trouble = ""
        self._using = threading.Lock()

    @property
    def fence(self) -> int:
        """A number that increases with each new holder, in every workspace."""
        return self.lease.epoch

    def try_acquire(self, watch: AgentWatch, note: Callable[[str], None], lose: Callable[[str], None]) -> bool:
        """Try once to take the lease; renew it from then on, and call `lose` once it cannot be renewed.

        Raises AttemptAborted if the database refuses it.
        """
        if self._held:
            return True
        try:
            taken = self._renew()
            text = "" if taken else f"waiting for `{self.lease.name}`, held in the database by {self.lease.holder}"
        except DatabaseUnreachable as problem:
            taken, text = False, f"waiting for `{self.lease.name}`: {problem.message}"
        except OutlastError as problem:
            raise AttemptAborted(problem.message, hopeless(problem)) from problem
        if text and text != self._noted:
            note(text)
        self._noted = text
        if taken:
            self._held = True
            watch.spawn(lambda: self._keep_renewing(watch, lose))
            watch.spawn(lambda: self._watch_expiry(watch, lose))
        return taken

    def leave(self) -> None:
        """Release the lease, so that the next run need not wait until it expires."""
        if self._left:
            return
        self._left = True
        # In a thread: an unresponsive server must not use up the time for the last checkpoint.
        releasing = threading.Thread(target=self._release, daemon=True)
        releasing.start()
        releasing.join(_RELEASE_S)

    def _release(self) -> None:
        try:
            with self._using:
                self.lease.release()
        except OutlastError:
            pass  # it expires

    def _renew(self) -> bool:
        with self._using:
            began_at = now_s()
            if self._left or not self.lease.hold():
                return False
        self._renewed_at, self._trouble = began_at, ""
        return True

    def _keep_renewing(self, watch: AgentWatch, lose: Callable[[str], None]) -> None:
        # Sooner than planned after a failure: a server that restarts is back within seconds.
        while not watch.pause(_TTL_S * (0.03 if self._trouble else _RENEW_AT)) and not self._left:
            try:
                if not self._renew() and not self._left:
                    lose(f"was taken over in the database by {self.lease.holder or 'another run'}")
                    return
            except OutlastError as problem:
                self._trouble = problem.message

    def _watch_expiry(self, watch: AgentWatch, lose: Callable[[str], None]) -> None:
        """Stop before the lease expires. In a separate thread: an unresponsive server blocks `_keep_renewing`."""
        while not watch.pause(_TTL_S / 30) and not self._left:
            if now_s() - self._renewed_at > _STOP_AT * _TTL_S:
                lose(f"could not be renewed in the database: {self._trouble or 'the server does not respond'}")
                return
