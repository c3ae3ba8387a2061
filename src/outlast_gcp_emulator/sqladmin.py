"""Cloud SQL, for `outlast db`, with a real server behind each instance: MariaDB for MySQL, or PostgreSQL.

It differs from Google's in two ways. An instance holds one database and one user. Its address includes the port,
because two instances cannot both use port 5432 of this computer. Every operation is DONE in its first response.
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
from outlast_gcp_emulator.http_types import HttpRequest, HttpResponse, json_response
from outlast_gcp_emulator.router import Router

Doc = dict[str, Any]


class SqlAdmin:
    """Instances in a folder: the settings of each, and the database servers of the local cloud."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._servers = LocalDatabases(folder)
        self._lock = threading.Lock()

    def add_to(self, router: Router) -> None:
        instances = "/sqladmin/v1/projects/{project}/instances"
        instance = f"{instances}/{{name}}"
        router.add_methods(instances, GET=self._list, POST=self._insert)
        router.add_methods(instance, GET=self._get, PATCH=self._patch, DELETE=self._delete)
        router.add("POST", f"{instance}/databases", self._add_database)
        router.add_methods(f"{instance}/users", GET=self._users, POST=self._set_user, PUT=self._set_user)
        router.add_methods(f"{instance}/backupRuns", GET=self._backups, POST=self._back_up)
        router.add("POST", f"{instance}/restoreBackup", self._restore)
        router.add("GET", "/sqladmin/v1/projects/{project}/operations/{operation}", self._operation)

    def _path(self, name: str) -> str:
        return f"{self._folder}/instances/{name}.json"

    def _find(self, request: HttpRequest) -> Doc:
        name = request.parts["name"]
        record = read_json(self._path(name)) if "/" not in name else None
        if record is None or record["project"] != request.parts["project"]:
            raise not_found("The Cloud SQL instance does not exist.")
        return record

    def _shown(self, record: Doc) -> Doc:
        """Return the resource with the current address of its server."""
        server = self._servers.find(record["name"])
        doc = {key: value for key, value in record.items() if not key.startswith("_")}
        return {
            **doc,
            "kind": "sql#instance",
            "state": "RUNNABLE",
            "backendType": "SECOND_GEN",
            "instanceType": "CLOUD_SQL_INSTANCE",
            "connectionName": f"{record['project']}:{record['region']}:{record['name']}",
            "databaseInstalledVersion": record["databaseVersion"],
            "ipAddresses": [{"type": kind, "ipAddress": f"{server.host}:{server.port}"} for kind in _KINDS],
            "serverCaCert": {"kind": "sql#sslCert", "cert": server.ca, "instance": record["name"]},
        }

    def _list(self, request: HttpRequest) -> HttpResponse:
        folder = f"{self._folder}/instances"
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        records = [record for name in names if (record := read_json(f"{folder}/{name}"))]
        project = request.parts["project"]
        items = [self._shown(record) for record in records if record["project"] == project and _fits(request, record)]
        return json_response({"kind": "sql#instancesList", "items": items})

    def _get(self, request: HttpRequest) -> HttpResponse:
        return json_response(self._shown(self._find(request)))

    def _insert(self, request: HttpRequest) -> HttpResponse:
        body = request.json()
        name, version = str(body.get("name", "")), str(body.get("databaseVersion", ""))
        engine: Engine = "mysql" if version.startswith("MYSQL") else "postgres"
        settings = body.get("settings") or {}
        if not version.startswith(("MYSQL_", "POSTGRES_")) or not settings.get("tier"):
            raise invalid("Invalid request: databaseVersion and settings.tier are required")
        with self._lock:
            if os.path.exists(self._path(name)):
                raise ApiError(409, "instanceAlreadyExists", "The Cloud SQL instance already exists.")
            _translated(lambda: self._servers.create_server(name, engine, settings.get("userLabels") or {}))
            os.makedirs(f"{self._folder}/instances", exist_ok=True)
            record = {
                "name": name,
                "project": request.parts["project"],
                "databaseVersion": version,
                "region": body.get("region", "us-central1"),
                "settings": settings,
                "createTime": _now(),
            }
            write_json(self._path(name), record)
        return self._done(request, name, "CREATE")

    def _patch(self, request: HttpRequest) -> HttpResponse:
        with self._lock:
            record = self._find(request)
            changes = request.json().get("settings") or {}
            address = {**record["settings"].get("ipConfiguration", {}), **changes.get("ipConfiguration", {})}
            networks = [str(network.get("value", "")) for network in address.get("authorizedNetworks", [])]
            _translated(lambda: self._servers.allow(record["name"], networks))
            settings = {**record["settings"], **changes, "ipConfiguration": address}
            write_json(self._path(record["name"]), {**record, "settings": settings})
        return self._done(request, record["name"], "UPDATE")

    def _delete(self, request: HttpRequest) -> HttpResponse:
        with self._lock:
            record = self._find(request)
            _translated(lambda: self._servers.delete(record["name"]))
            os.unlink(self._path(record["name"]))
        return self._done(request, record["name"], "DELETE")

    def _add_database(self, request: HttpRequest) -> HttpResponse:
        with self._lock:
            record, database = self._find(request), str(request.json().get("name", ""))
            if record.get("_database", database) != database:
                raise invalid("an instance of this emulator holds only one database")
            if record.get("_database"):
                raise ApiError(409, "alreadyExists", f"database {database} already exists")
            write_json(self._path(record["name"]), {**record, "_database": database})
        return self._done(request, record["name"], "CREATE_DATABASE")

    def _users(self, request: HttpRequest) -> HttpResponse:
        record = self._find(request)
        items = (
            [{"kind": "sql#user", "name": record["_user"], "instance": record["name"]}] if record.get("_user") else []
        )
        return json_response({"kind": "sql#usersList", "items": items})

    def _set_user(self, request: HttpRequest) -> HttpResponse:
        with self._lock:
            record, body = self._find(request), request.json()
            user = str(body.get("name") or request.query.get("name", ""))
            if not record.get("_database") or record.get("_user", user) != user:
                raise invalid("an instance of this emulator holds one user, and needs a database first")
            password = str(body.get("password", ""))
            _translated(
                lambda: self._servers.create_database(record["name"], record["_database"], user, password=password)
            )
            write_json(self._path(record["name"]), {**record, "_user": user})
        return self._done(request, record["name"], "CREATE_USER")

    def _backups(self, request: HttpRequest) -> HttpResponse:
        record = self._find(request)
        runs = [_backup_run(record, backup) for backup in self._servers.backups(record["name"])]
        return json_response({"kind": "sql#backupRunsList", "items": runs[::-1]})

    def _back_up(self, request: HttpRequest) -> HttpResponse:
        record = self._find(request)
        made = _translated(lambda: self._servers.back_up(record["name"]))
        operation = self._operation_of(request, record["name"], "BACKUP_VOLUME")
        assert isinstance(made, Backup)
        return json_response(
            {**operation, "backupContext": {"kind": "sql#backupContext", "backupId": _number(made.id)}}
        )

    def _restore(self, request: HttpRequest) -> HttpResponse:
        record = self._find(request)
        wanted = str((request.json().get("restoreBackupContext") or {}).get("backupRunId", ""))
        known = {_number(backup.id): backup.id for backup in self._servers.backups(record["name"])}
        if wanted not in known:
            raise not_found("The backup run does not exist.")
        _translated(lambda: self._servers.restore(record["name"], known[wanted]))
        return self._done(request, record["name"], "RESTORE_VOLUME")

    def _operation(self, request: HttpRequest) -> HttpResponse:
        kind, _, name = request.parts["operation"].partition(".")
        return json_response(self._operation_of(request, name.rpartition(".")[0], kind))

    def _done(self, request: HttpRequest, name: str, kind: str) -> HttpResponse:
        return json_response(self._operation_of(request, name, kind))

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


def _fits(request: HttpRequest, record: Doc) -> bool:
    """Match the only supported filter: labels, as `settings.userLabels.KEY:VALUE`, joined by AND."""
    labels = record["settings"].get("userLabels") or {}
    for term in filter(None, request.query.get("filter", "").split(" AND ")):
        key, _, value = term.removeprefix("settings.userLabels.").partition(":")
        if not term.startswith("settings.userLabels.") or labels.get(key) != value:
            return False
    return True


def _translated(act: Any) -> Any:
    """Call `act`, and translate its errors to Google's."""
    try:
        return act()
    except BadRequest as problem:
        raise invalid(problem.message) from problem
    except NotFound as problem:
        raise not_found(problem.message) from problem
    except OutlastError as problem:
        raise ApiError(503, "backendError", problem.message) from problem


def _number(backup: str) -> str:
    """Return a backup id as a number, like Google's."""
    return backup.replace("-", "")


def _backup_run(record: Doc, backup: Backup) -> Doc:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(backup.created_at))
    return {
        "kind": "sql#backupRun",
        "id": _number(backup.id),
        "instance": record["name"],
        "status": "SUCCESSFUL",
        "type": "ON_DEMAND",
        "enqueuedTime": at,
        "endTime": at,
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
