"""Databases of Google Cloud: Cloud SQL instances, each with one database and one user. TLS is required.

People connect to the public address, from allowed networks. Machines connect to the private address, which needs
private services access in their network (docs/databases.md).
"""

from __future__ import annotations

import os
import re
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from outlast.clouds.gcp import labels as label
from outlast.clouds.gcp import secrets
from outlast.clouds.gcp.client import GcpClient, check_name
from outlast.clouds.gcp.errors import Doc, Stale
from outlast.clouds.gcp.network import shared_network
from outlast.clouds.gcp.operations import wait_sql
from outlast.clouds.resources import HOURS_PER_MONTH, Backup, Database, DatabaseRequest, Engine, ResourceState
from outlast.errors import AlreadyExists, BadRequest, CloudUnreachable, NotFound
from outlast.spec.network import network_of

CLOUD = "gcp"
_SERVICE, _REGION, _TIER = "sqladmin", "us-central1", "db-f1-micro"
_VERSIONS: Mapping[Engine, str] = {"mysql": "MYSQL_8_0", "postgres": "POSTGRES_16"}
_PORTS: Mapping[Engine, int] = {"mysql": 3306, "postgres": 5432}
_STATES: Mapping[str, ResourceState] = {
    "RUNNABLE": "ready",
    "PENDING_CREATE": "creating",
    "PENDING_DELETE": "deleting",
    "STOPPED": "stopped",
    "SUSPENDED": "stopped",
}
# List prices in us-central1: shared cores per hour, others per CPU and GB per hour; the disk per month.
_USD_PER_HOUR = {"db-f1-micro": 0.0105, "db-g1-small": 0.035}
_CPU_USD_PER_HOUR, _GB_USD_PER_HOUR, _DISK_USD_PER_GB_MONTH = 0.0413, 0.007, 0.17
_CUSTOM = re.compile(r"db-custom-(\d+)-(\d+)")
_LEAST_DISK_GB = 10
_ADDRESS_URL = "https://checkip.amazonaws.com"


class GcpDatabases:
    """The databases of one project. Any number of processes may use it at once."""

    def __init__(self, client: GcpClient) -> None:
        self.client = client

    def create(self, name: str, request: DatabaseRequest, *, password: str) -> Database:
        check_name(name, "database")
        with suppress(AlreadyExists, Stale):  # an answer was lost, or an earlier creation was interrupted
            self._change("POST", "", name, body=self._body(name, request))
        here = self._doc(name)
        if here.get("settings", {}).get("userLabels", {}) != label.encode_all(request.labels):
            raise BadRequest(f"another Cloud SQL instance `{name}` exists already", hint="choose another name")
        with suppress(AlreadyExists, Stale):
            body = {"name": request.database, "project": self.client.project, "instance": name}
            self._change("POST", f"/{name}/databases", name, body=body)
        user = {"name": request.user, "password": password, **({"host": "%"} if request.engine == "mysql" else {})}
        known = self._call("GET", f"/{name}/users").get("items", [])
        if any(one.get("name") == request.user for one in known):
            query = {"name": request.user, **({"host": "%"} if request.engine == "mysql" else {})}
            self._change("PUT", f"/{name}/users", name, body=user, query=query)
        else:
            self._change("POST", f"/{name}/users", name, body=user)
        return self.find(name)

    def _body(self, name: str, request: DatabaseRequest) -> Doc:
        zone = request.zone if request.zone.count("-") == 2 else ""
        region = request.zone.rpartition("-")[0] if zone else request.zone or _REGION
        _price(request.type or _TIER, request.size_gb)
        network = shared_network(self.client, network_of(CLOUD, os.environ), region)
        settings: Doc = {
            "tier": request.type or _TIER,
            "edition": "ENTERPRISE",
            "dataDiskSizeGb": str(max(_LEAST_DISK_GB, round(request.size_gb))),
            "userLabels": label.encode_all(request.labels),
            "backupConfiguration": {"enabled": True},
            "ipConfiguration": {
                "ipv4Enabled": True,
                "sslMode": "ENCRYPTED_ONLY",
                "privateNetwork": network,
                "authorizedNetworks": [],
            },
            **({"locationPreference": {"zone": zone}} if zone else {}),
        }
        return {"name": name, "region": region, "databaseVersion": _VERSIONS[request.engine], "settings": settings}

    def list_all(self, labels: Mapping[str, str] | None = None) -> Sequence[Database]:
        wanted = label.encode_all(labels or {})
        query = {"filter": " AND ".join(f"settings.userLabels.{k}:{v}" for k, v in wanted.items())} if wanted else None
        found, token = [], ""
        while True:
            page = {**(query or {}), **({"pageToken": token} if token else {})}
            answer = self._call("GET", "", query=page)
            found += [_read(doc) for doc in answer.get("items", [])]
            token = str(answer.get("nextPageToken", ""))
            if not token:
                return found

    def find(self, name: str) -> Database:
        return _read(self._doc(name))

    def wake(self, name: str) -> Database:
        found = self.find(name)
        if found.state == "stopped":
            self._change("PATCH", f"/{name}", name, body={"settings": {"activationPolicy": "ALWAYS"}})
            found = self.find(name)
        return found

    def allow(self, name: str, addresses: Sequence[str]) -> None:
        networks = [{"value": address, "kind": "sql#aclEntry"} for address in addresses]
        body = {"settings": {"ipConfiguration": {"authorizedNetworks": networks}}}
        self._change("PATCH", f"/{name}", name, body=body)

    def back_up(self, name: str) -> Backup:
        operation = self._change("POST", f"/{name}/backupRuns", name, body={"description": "outlast"})
        made = self.backups(name)
        wanted = str(operation.get("backupContext", {}).get("backupId", ""))
        return next((one for one in made if one.id == wanted), made[-1])

    def backups(self, name: str) -> Sequence[Backup]:
        runs = self._call("GET", f"/{name}/backupRuns").get("items", [])
        found = [
            Backup(
                id=str(run["id"]),
                created_at=_time(str(run.get("endTime") or run.get("enqueuedTime", ""))),
                state="ready" if run.get("status") == "SUCCESSFUL" else "creating",
            )
            for run in runs
        ]
        return sorted(found, key=lambda one: one.created_at)

    def restore(self, name: str, backup: str) -> None:
        body = {"restoreBackupContext": {"backupRunId": backup, "instanceId": name, "project": self.client.project}}
        self._change("POST", f"/{name}/restoreBackup", name, body=body)

    def delete(self, name: str) -> None:
        with suppress(NotFound):
            self._change("DELETE", f"/{name}", name)

    def secret(self, name: str) -> Mapping[str, str]:
        return secrets.read(self.client, name)

    def my_address(self) -> str:
        if self.client.emulated:
            return "127.0.0.1"
        return public_address()

    def _call(self, method: str, below: str, *, query: Mapping[str, object] | None = None, body: object = None) -> Doc:
        path = f"v1/projects/{self.client.project}/instances{below}"
        return self.client.call(_SERVICE, method, path, query=query or None, body=body).doc

    def _change(
        self, method: str, below: str, name: str, *, query: Mapping[str, object] | None = None, body: object = None
    ) -> Doc:
        """Send a change and wait until it is done."""
        operation = self._call(method, below, query=query, body=body)
        return wait_sql(self.client, operation, f"the database {name}")

    def _doc(self, name: str) -> Doc:
        return self._call("GET", f"/{name}")


def public_address() -> str:
    """Return this computer's public address. Raises CloudUnreachable."""
    try:
        with urllib.request.urlopen(_ADDRESS_URL, timeout=10.0) as answer:
            return str(answer.read().decode("ascii").strip())
    except (OSError, UnicodeDecodeError) as problem:
        why = f"could not get this computer's public address from {_ADDRESS_URL}: {problem}"
        raise CloudUnreachable(why, hint="pass it: `outlast db allow NAME ADDRESS`") from problem


def _price(tier: str, size_gb: float) -> float:
    """Return the price per hour. Raises BadRequest if it is unknown, so that no bill is a surprise."""
    disk = max(_LEAST_DISK_GB, size_gb) * _DISK_USD_PER_GB_MONTH / HOURS_PER_MONTH
    if tier in _USD_PER_HOUR:
        return _USD_PER_HOUR[tier] + disk
    if (custom := _CUSTOM.fullmatch(tier)) is None:
        known = ", ".join([*_USD_PER_HOUR, "db-custom-CPUS-MEGABYTES"])
        raise BadRequest(f"the price of database type `{tier}` is unknown", hint=f"use one of {known}")
    return int(custom[1]) * _CPU_USD_PER_HOUR + int(custom[2]) / 1024 * _GB_USD_PER_HOUR + disk


def _read(doc: Doc) -> Database:
    settings = doc.get("settings", {})
    engine: Engine = "mysql" if str(doc.get("databaseVersion", "")).startswith("MYSQL") else "postgres"
    addresses = {one.get("type"): str(one.get("ipAddress", "")) for one in doc.get("ipAddresses", [])}
    # Google returns an address only; the emulator appends its port.
    host, _, port = addresses.get("PRIMARY", "").partition(":")
    size_gb = float(settings.get("dataDiskSizeGb", 0))
    try:
        price = _price(str(settings.get("tier", "")), size_gb)
    except BadRequest:
        price = 0.0  # not created by outlast
    return Database(
        name=str(doc["name"]),
        cloud=CLOUD,
        engine=engine,
        version=str(doc.get("databaseInstalledVersion") or doc.get("databaseVersion", "")),
        state=_STATES.get(str(doc.get("state", "")), "broken"),
        zone=str(doc.get("gceZone") or doc.get("region", "")),
        type=str(settings.get("tier", "")),
        host=host,
        port=int(port) if port else _PORTS[engine],
        inner_host=addresses.get("PRIVATE", "").partition(":")[0],
        ca=str(doc.get("serverCaCert", {}).get("cert", "")),
        allowed=tuple(one["value"] for one in settings.get("ipConfiguration", {}).get("authorizedNetworks", [])),
        size_gb=size_gb,
        created_at=_time(str(doc.get("createTime", ""))),
        usd_per_hour=price,
        labels=label.decode_all(settings.get("userLabels", {})),
    )


def _time(text: str) -> float:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
