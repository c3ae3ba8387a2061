"""Cloud SQL, for `outlast db`, with a real server behind each instance: MariaDB for MySQL, or PostgreSQL.

It differs from Google's in two ways. An instance holds one database and one user. Its address includes the port,
because two instances cannot both use port 5432 of this computer. Every operation is DONE in its first response.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

from outlast.clouds.local.databases import LocalDatabases
from outlast.clouds.resources import Backup, Engine
from outlast.errors import BadRequest, NotFound, OutlastError
from outlast_gcp_emulator.errors import ApiError, invalid, not_found
from outlast_gcp_emulator.http_types import HttpRequest, HttpResponse, json_response
from outlast_gcp_emulator.json_records import Doc, JsonRecords
from outlast_gcp_emulator.router import Router


class SqlAdmin:
    """Instances in a folder: the settings of each, and the database servers of the local cloud."""

    def __init__(self, folder: str) -> None:
        self._records = JsonRecords(f"{folder}/instances")
        self._servers = LocalDatabases(folder)

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

    def _find(self, request: HttpRequest) -> Doc:
        record = self._records.get(request.parts["name"])
        if record is None or record["project"] != request.parts["project"]:
            raise not_found("The Cloud SQL instance does not exist.")
        return record

    def _changing(self, request: HttpRequest) -> AbstractContextManager[Doc]:
        return self._records.changing(request.parts["name"], lambda: self._find(request))

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
        items = [self._shown(record) for record in self._records.all() if _matches(request, record)]
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
        with self._records.lock:
            if self._records.get(name) is not None:
                raise ApiError(409, "instanceAlreadyExists", "The Cloud SQL instance already exists.")
            _translated(lambda: self._servers.create_server(name, engine, settings.get("userLabels") or {}))
            record = {
                "name": name,
                "project": request.parts["project"],
                "databaseVersion": version,
                "region": body.get("region", "us-central1"),
                "settings": settings,
                "createTime": _now(),
            }
            self._records.put(name, record)
        return self._done(request, name, "CREATE")

    def _patch(self, request: HttpRequest) -> HttpResponse:
        with self._changing(request) as record:
            changes = request.json().get("settings") or {}
            address = {**record["settings"].get("ipConfiguration", {}), **changes.get("ipConfiguration", {})}
            networks = [str(network.get("value", "")) for network in address.get("authorizedNetworks", [])]
            _translated(lambda: self._servers.allow(record["name"], networks))
            record["settings"] |= changes | {"ipConfiguration": address}
        return self._done(request, record["name"], "UPDATE")

    def _delete(self, request: HttpRequest) -> HttpResponse:
        with self._records.lock:
            record = self._find(request)
            _translated(lambda: self._servers.delete(record["name"]))
            self._records.delete(record["name"])
        return self._done(request, record["name"], "DELETE")

    def _add_database(self, request: HttpRequest) -> HttpResponse:
        with self._changing(request) as record:
            database = str(request.json().get("name", ""))
            if record.get("_database", database) != database:
                raise invalid("an instance of this emulator holds only one database")
            if record.get("_database"):
                raise ApiError(409, "alreadyExists", f"database {database} already exists")
            record["_database"] = database
        return self._done(request, record["name"], "CREATE_DATABASE")

    def _users(self, request: HttpRequest) -> HttpResponse:
        record = self._find(request)
        user = {"kind": "sql#user", "name": record.get("_user"), "instance": record["name"]}
        return json_response({"kind": "sql#usersList", "items": [user] if record.get("_user") else []})

    def _set_user(self, request: HttpRequest) -> HttpResponse:
        with self._changing(request) as record:
            body = request.json()
            user = str(body.get("name") or request.query.get("name", ""))
            if not record.get("_database") or record.get("_user", user) != user:
                raise invalid("an instance of this emulator holds one user, and needs a database first")
            password = str(body.get("password", ""))
            _translated(
                lambda: self._servers.create_database(record["name"], record["_database"], user, password=password)
            )
            record["_user"] = user
        return self._done(request, record["name"], "CREATE_USER")

    def _backups(self, request: HttpRequest) -> HttpResponse:
        record = self._find(request)
        runs = [_backup_run(record, backup) for backup in self._servers.backups(record["name"])]
        return json_response({"kind": "sql#backupRunsList", "items": runs[::-1]})

    def _back_up(self, request: HttpRequest) -> HttpResponse:
        record = self._find(request)
        backup = _translated(lambda: self._servers.back_up(record["name"]))
        assert isinstance(backup, Backup)
        details = {"kind": "sql#backupContext", "backupId": _number(backup.id)}
        return self._done(request, record["name"], "BACKUP_VOLUME", backupContext=details)

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
        return self._done(request, name.rpartition(".")[0], kind)

    def _done(self, request: HttpRequest, name: str, kind: str, **fields: Any) -> HttpResponse:
        """Return a finished operation."""
        operation = {
            "kind": "sql#operation",
            "name": f"{kind}.{name}.{time.time_ns()}",
            "status": "DONE",
            "operationType": kind,
            "targetId": name,
            "targetProject": request.parts["project"],
            "insertTime": _now(),
            "endTime": _now(),
        }
        return json_response(operation | fields)


_KINDS = ("PRIMARY", "PRIVATE")


def _matches(request: HttpRequest, record: Doc) -> bool:
    """Match the project, and the only supported filter: `settings.userLabels.KEY:VALUE`, joined by AND."""
    labels = record["settings"].get("userLabels") or {}
    for term in filter(None, request.query.get("filter", "").split(" AND ")):
        key, _, value = term.removeprefix("settings.userLabels.").partition(":")
        if not term.startswith("settings.userLabels.") or labels.get(key) != value:
            return False
    return bool(record["project"] == request.parts["project"])


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
