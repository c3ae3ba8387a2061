"""Cloud SQL, as far as `outlast db` goes, with a real server behind each instance: MariaDB for MySQL, or PostgreSQL.

Two things are not Google's: an instance holds one database and one user, and its port stands behind its address, as two
instances cannot both have 5432 of this computer. Every operation is over when it is answered.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from outlast.clouds.local.databases import LocalDatabases
from outlast.clouds.local.files import read_json, write_json
from outlast.clouds.resources import Backup, Engine
from outlast.errors import BadRequest, NotFound, OutlastError
from outlast_gcp_emulator.errors import ApiError, invalid, not_found
from outlast_gcp_emulator.http_types import HttpAnswer, HttpRequest, json_answer
from outlast_gcp_emulator.router import Router

Doc = dict[str, Any]


class SqlAdmin:
    """Instances in a folder: what was asked of each, and the databases of a small local cloud."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._servers = LocalDatabases(folder)
        self._lock = threading.Lock()

    def add_to(self, router: Router) -> None:
        place = "/sqladmin/v1/projects/{project}/instances"
        one = f"{place}/{{name}}"
        router.add("GET", place, self._list)
        router.add("POST", place, self._insert)
        router.add("GET", one, self._get)
        router.add("PATCH", one, self._patch)
        router.add("DELETE", one, self._delete)
        router.add("POST", f"{one}/databases", self._add_database)
        router.add("GET", f"{one}/users", self._users)
        router.add("POST", f"{one}/users", self._set_user)
        router.add("PUT", f"{one}/users", self._set_user)
        router.add("GET", f"{one}/backupRuns", self._backups)
        router.add("POST", f"{one}/backupRuns", self._back_up)
        router.add("POST", f"{one}/restoreBackup", self._restore)
        router.add("GET", "/sqladmin/v1/projects/{project}/operations/{operation}", self._operation)

    def _path(self, name: str) -> str:
        return f"{self._folder}/instances/{name}.json"

    def _kept(self, request: HttpRequest) -> Doc:
        name = request.parts["name"]
        kept = read_json(self._path(name)) if "/" not in name else None
        if kept is None or kept["project"] != request.parts["project"]:
            raise not_found("The Cloud SQL instance does not exist.")
        return kept

    def _shown(self, kept: Doc) -> Doc:
        """The resource, with what its server is now."""
        server = self._servers.find(kept["name"])
        doc = {key: value for key, value in kept.items() if not key.startswith("_")}
        return {
            **doc,
            "kind": "sql#instance",
            "state": "RUNNABLE",
            "backendType": "SECOND_GEN",
            "instanceType": "CLOUD_SQL_INSTANCE",
            "connectionName": f"{kept['project']}:{kept['region']}:{kept['name']}",
            "databaseInstalledVersion": kept["databaseVersion"],
            "ipAddresses": [{"type": kind, "ipAddress": f"{server.host}:{server.port}"} for kind in _KINDS],
            "serverCaCert": {"kind": "sql#sslCert", "cert": server.ca, "instance": kept["name"]},
        }

    def _list(self, request: HttpRequest) -> HttpAnswer:
        folder = f"{self._folder}/instances"
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        kept = [one for name in names if (one := read_json(f"{folder}/{name}"))]
        mine = [one for one in kept if one["project"] == request.parts["project"] and _fits(request, one)]
        return json_answer({"kind": "sql#instancesList", "items": [self._shown(one) for one in mine]})

    def _get(self, request: HttpRequest) -> HttpAnswer:
        return json_answer(self._shown(self._kept(request)))

    def _insert(self, request: HttpRequest) -> HttpAnswer:
        body = request.json()
        name, version = str(body.get("name", "")), str(body.get("databaseVersion", ""))
        engine: Engine = "mysql" if version.startswith("MYSQL") else "postgres"
        settings = body.get("settings") or {}
        if not version.startswith(("MYSQL_", "POSTGRES_")) or not settings.get("tier"):
            raise invalid("Invalid request: databaseVersion and settings.tier are needed")
        with self._lock:
            if os.path.exists(self._path(name)):
                raise ApiError(409, "instanceAlreadyExists", "The Cloud SQL instance already exists.")
            _tried(lambda: self._servers.create_server(name, engine, settings.get("userLabels") or {}))
            os.makedirs(f"{self._folder}/instances", exist_ok=True)
            kept = {
                "name": name,
                "project": request.parts["project"],
                "databaseVersion": version,
                "region": body.get("region", "us-central1"),
                "settings": settings,
                "createTime": _now(),
            }
            write_json(self._path(name), kept)
        return self._done(request, name, "CREATE")

    def _patch(self, request: HttpRequest) -> HttpAnswer:
        with self._lock:
            kept = self._kept(request)
            asked = request.json().get("settings") or {}
            address = {**kept["settings"].get("ipConfiguration", {}), **asked.get("ipConfiguration", {})}
            networks = [str(one.get("value", "")) for one in address.get("authorizedNetworks", [])]
            _tried(lambda: self._servers.allow(kept["name"], networks))
            settings = {**kept["settings"], **asked, "ipConfiguration": address}
            write_json(self._path(kept["name"]), {**kept, "settings": settings})
        return self._done(request, kept["name"], "UPDATE")

    def _delete(self, request: HttpRequest) -> HttpAnswer:
        with self._lock:
            kept = self._kept(request)
            _tried(lambda: self._servers.delete(kept["name"]))
            os.unlink(self._path(kept["name"]))
        return self._done(request, kept["name"], "DELETE")

    def _add_database(self, request: HttpRequest) -> HttpAnswer:
        with self._lock:
            kept, database = self._kept(request), str(request.json().get("name", ""))
            if kept.get("_database", database) != database:
                raise invalid("an instance on this computer holds one database")
            if kept.get("_database"):
                raise ApiError(409, "alreadyExists", f"database {database} already exists")
            write_json(self._path(kept["name"]), {**kept, "_database": database})
        return self._done(request, kept["name"], "CREATE_DATABASE")

    def _users(self, request: HttpRequest) -> HttpAnswer:
        kept = self._kept(request)
        items = [{"kind": "sql#user", "name": kept["_user"], "instance": kept["name"]}] if kept.get("_user") else []
        return json_answer({"kind": "sql#usersList", "items": items})

    def _set_user(self, request: HttpRequest) -> HttpAnswer:
        with self._lock:
            kept, body = self._kept(request), request.json()
            user = str(body.get("name") or request.query.get("name", ""))
            if not kept.get("_database") or kept.get("_user", user) != user:
                raise invalid("an instance on this computer holds one database, made first, and one user")
            password = str(body.get("password", ""))
            _tried(lambda: self._servers.create_database(kept["name"], kept["_database"], user, password=password))
            write_json(self._path(kept["name"]), {**kept, "_user": user})
        return self._done(request, kept["name"], "CREATE_USER")

    def _backups(self, request: HttpRequest) -> HttpAnswer:
        kept = self._kept(request)
        runs = [_run(kept, one) for one in self._servers.backups(kept["name"])]
        return json_answer({"kind": "sql#backupRunsList", "items": runs[::-1]})

    def _back_up(self, request: HttpRequest) -> HttpAnswer:
        kept = self._kept(request)
        made = _tried(lambda: self._servers.back_up(kept["name"]))
        operation = self._operation_of(request, kept["name"], "BACKUP_VOLUME")
        assert isinstance(made, Backup)
        return json_answer({**operation, "backupContext": {"kind": "sql#backupContext", "backupId": _number(made.id)}})

    def _restore(self, request: HttpRequest) -> HttpAnswer:
        kept = self._kept(request)
        wanted = str((request.json().get("restoreBackupContext") or {}).get("backupRunId", ""))
        known = {_number(one.id): one.id for one in self._servers.backups(kept["name"])}
        if wanted not in known:
            raise not_found("The backup run does not exist.")
        _tried(lambda: self._servers.restore(kept["name"], known[wanted]))
        return self._done(request, kept["name"], "RESTORE_VOLUME")

    def _operation(self, request: HttpRequest) -> HttpAnswer:
        kind, _, name = request.parts["operation"].partition(".")
        return json_answer(self._operation_of(request, name.rpartition(".")[0], kind))

    def _done(self, request: HttpRequest, name: str, kind: str) -> HttpAnswer:
        return json_answer(self._operation_of(request, name, kind))

    def _operation_of(self, request: HttpRequest, name: str, kind: str) -> Doc:
        return {
            "kind": "sql#operation",
            "name": f"{kind}.{name}.{time.time_ns()}",
            "status": "DONE",
            "operationType": kind,
            "targetId": name,
            "targetProject": request.parts["project"],
            "insertTime": _now(),
            "endTime": _now(),
        }


_KINDS = ("PRIMARY", "PRIVATE")


def _fits(request: HttpRequest, kept: Doc) -> bool:
    """The one filter that we know: labels, as `settings.userLabels.KEY:VALUE`, with AND between them."""
    labels = kept["settings"].get("userLabels") or {}
    for term in filter(None, request.query.get("filter", "").split(" AND ")):
        key, _, value = term.removeprefix("settings.userLabels.").partition(":")
        if not term.startswith("settings.userLabels.") or labels.get(key) != value:
            return False
    return True


def _tried(act: Any) -> Any:
    """What the server behind refuses, as Google would put it."""
    try:
        return act()
    except BadRequest as problem:
        raise invalid(problem.message) from problem
    except NotFound as problem:
        raise not_found(problem.message) from problem
    except OutlastError as problem:
        raise ApiError(503, "backendError", problem.message) from problem


def _number(backup: str) -> str:
    """Google's ids are numbers."""
    return backup.replace("-", "")


def _run(kept: Doc, one: Backup) -> Doc:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(one.created_at))
    return {
        "kind": "sql#backupRun",
        "id": _number(one.id),
        "instance": kept["name"],
        "status": "SUCCESSFUL",
        "type": "ON_DEMAND",
        "enqueuedTime": at,
        "endTime": at,
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
