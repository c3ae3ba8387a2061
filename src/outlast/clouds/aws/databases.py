"""Databases of AWS: RDS instances, each with one database, its owner, and a security group.

RDS restores a snapshot into a new instance. The new one takes the old one's name, and the old one is deleted.
"""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

from outlast import private
from outlast.clouds.aws import secrets, security_groups, ssh_access
from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.errors import Doc
from outlast.clouds.aws.machines import check_name
from outlast.clouds.aws.network import AwsNetwork
from outlast.clouds.resources import HOURS_PER_MONTH, Backup, Database, DatabaseRequest, Engine, ResourceState
from outlast.errors import AlreadyExists, BadRequest, CloudUnreachable, NotFound
from outlast.spec.network import network_of

CLOUD = "aws"
_TYPE, _LEAST_DISK_GB = "db.t4g.micro", 20
_PORTS: Mapping[Engine, int] = {"mysql": 3306, "postgres": 5432}
_STATES: Mapping[str, ResourceState] = {
    "available": "ready",
    "backing-up": "ready",
    "modifying": "ready",
    "storage-optimization": "ready",
    "creating": "creating",
    "rebooting": "creating",
    "renaming": "creating",
    "starting": "creating",
    "stopped": "stopped",
    "stopping": "stopped",
    "deleting": "deleting",
}
# List prices in us-east-1, on demand, one zone; the disk (gp3) per month.
_USD_PER_HOUR = {
    "db.t3.micro": 0.017,
    "db.t3.small": 0.034,
    "db.t3.medium": 0.068,
    "db.t4g.micro": 0.016,
    "db.t4g.small": 0.032,
    "db.t4g.medium": 0.065,
    "db.m6g.large": 0.152,
    "db.m6g.xlarge": 0.304,
}
_DISK_USD_PER_GB_MONTH = 0.115
# A parameter group that requires TLS. RDS requires it for PostgreSQL by default, but not for MySQL.
_PARAMETERS = "outlast-mysql8"
# The subnets of a VPC other than the default one.
_SUBNETS = "outlast-"
_PAUSE_S, _S_MAX = 5.0, 2400.0
_CA_URL = "https://truststore.pki.rds.amazonaws.com/{region}/{region}-bundle.pem"


class AwsDatabases:
    """The databases of one region. Any number of processes may use it at once."""

    def __init__(self, client: AwsClient) -> None:
        self.client = client

    def create(self, name: str, request: DatabaseRequest, *, password: str) -> Database:
        check_name(name)
        kind, size_gb = request.type or _TYPE, max(_LEAST_DISK_GB, round(request.size_gb))
        _price(kind, size_gb)
        network = AwsNetwork(self.client, network_of(CLOUD, os.environ))
        group = self._security_group(name, request.engine, network)
        parameters = {
            "DBInstanceIdentifier": name,
            "Engine": request.engine,
            "DBInstanceClass": kind,
            "AllocatedStorage": size_gb,
            "StorageType": "gp3",
            "StorageEncrypted": True,
            "DBName": request.database,
            "MasterUsername": request.user,
            "MasterUserPassword": password,
            "VpcSecurityGroupIds": [group],
            "PubliclyAccessible": True,
            "BackupRetentionPeriod": 1,
            "Tags": [{"Key": key, "Value": value} for key, value in request.labels.items()],
            **({"AvailabilityZone": request.zone} if request.zone and request.zone != self.client.region else {}),
            **self._place(network),
            **({"DBParameterGroupName": self._tls_parameter_group()} if request.engine == "mysql" else {}),
        }
        try:
            self.client.call("rds", "create_db_instance", **parameters)
        except AlreadyExists:
            # An answer was lost, or an earlier creation was interrupted. Another owner's database has other labels.
            if not dict(request.labels).items() <= self.find(name).labels.items():
                raise
            self._wait_available(name)
            self._change(name, MasterUserPassword=password)
        self._wait_available(name)
        return self.find(name)

    def _security_group(self, name: str, engine: Engine, network: AwsNetwork) -> str:
        return security_groups.security_group(
            self.client,
            _group(name),
            port=_PORTS[engine],
            note="a database of outlast",
            machines=network.groups(peers=False),
            vpc=network.vpc(),
        )

    def _place(self, network: AwsNetwork) -> Doc:
        """Return the subnets of the database, if they are not those of the default VPC."""
        vpc = network.vpc()
        if not vpc:
            return {}
        name, subnets = _SUBNETS + vpc, [str(doc["SubnetId"]) for doc in network.zone_subnets()]
        with suppress(AlreadyExists):
            self.client.call(
                "rds",
                "create_db_subnet_group",
                DBSubnetGroupName=name,
                DBSubnetGroupDescription="outlast: the subnets of machines",
                SubnetIds=subnets,
            )
        return {"DBSubnetGroupName": name, "PubliclyAccessible": network.settings.external_address}

    def _tls_parameter_group(self) -> str:
        note = "outlast: requires TLS"
        parameters = {"DBParameterGroupName": _PARAMETERS, "DBParameterGroupFamily": "mysql8.0", "Description": note}
        with suppress(AlreadyExists):
            self.client.call("rds", "create_db_parameter_group", **parameters)
        setting = {"ParameterName": "require_secure_transport", "ParameterValue": "1", "ApplyMethod": "immediate"}
        self.client.call("rds", "modify_db_parameter_group", DBParameterGroupName=_PARAMETERS, Parameters=[setting])
        return _PARAMETERS

    def list_all(self, labels: Mapping[str, str] | None = None) -> Sequence[Database]:
        wanted = set((labels or {}).items())
        found, marker = [], ""
        while True:
            answer = self.client.call("rds", "describe_db_instances", **({"Marker": marker} if marker else {}))
            found += [doc for doc in answer["DBInstances"] if wanted <= set(_labels(doc).items())]
            marker = str(answer.get("Marker", ""))
            if not marker:
                return [self._read(doc) for doc in found]

    def find(self, name: str) -> Database:
        return self._read(self._doc(name))

    def wake(self, name: str) -> Database:
        found = self.find(name)
        if found.state == "stopped":
            self.client.call("rds", "start_db_instance", DBInstanceIdentifier=name)
            self._wait_available(name)
            found = self.find(name)
        return found

    def allow(self, name: str, addresses: Sequence[str]) -> None:
        security_groups.allow(self.client, _group(name), addresses, port=self.find(name).port)

    def back_up(self, name: str) -> Backup:
        id = f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        with suppress(AlreadyExists):
            self.client.call("rds", "create_db_snapshot", DBInstanceIdentifier=name, DBSnapshotIdentifier=id)
        self._wait(lambda: any(one.id == id and one.state == "ready" for one in self.backups(name)), f"the backup {id}")
        return next(one for one in self.backups(name) if one.id == id)

    def backups(self, name: str) -> Sequence[Backup]:
        parameters = {"DBInstanceIdentifier": name, "SnapshotType": "manual"}
        docs = self.client.call("rds", "describe_db_snapshots", **parameters)["DBSnapshots"]
        found = [
            Backup(
                id=str(doc["DBSnapshotIdentifier"]),
                created_at=doc["SnapshotCreateTime"].timestamp() if "SnapshotCreateTime" in doc else 0.0,
                bytes=int(doc.get("AllocatedStorage", 0)) * 10**9,
                state="ready" if doc.get("Status") == "available" else "creating",
            )
            for doc in docs
        ]
        return sorted(found, key=lambda one: (one.created_at, one.id))

    def restore(self, name: str, backup: str) -> None:
        doc = self._doc(name)
        if backup not in {one.id for one in self.backups(name)}:
            raise NotFound(f"`{name}` has no snapshot `{backup}`")
        fresh, before = f"{name[:50]}-next", f"{name[:50]}-before"
        subnets = str((doc.get("DBSubnetGroup") or {}).get("DBSubnetGroupName", ""))
        with ExitStack() as undo:
            # The old instance stays untouched until the new one is available.
            undo.callback(self._drop_quietly, fresh)
            self.client.call(
                "rds",
                "restore_db_instance_from_db_snapshot",
                DBInstanceIdentifier=fresh,
                DBSnapshotIdentifier=backup,
                DBInstanceClass=doc["DBInstanceClass"],
                PubliclyAccessible=doc.get("PubliclyAccessible", True),
                **({"DBSubnetGroupName": subnets} if subnets.startswith(_SUBNETS) else {}),
                VpcSecurityGroupIds=[one["VpcSecurityGroupId"] for one in doc.get("VpcSecurityGroups", [])],
                Tags=[{"Key": key, "Value": value} for key, value in _labels(doc).items()],
            )
            self._wait_available(fresh)
            self._rename(name, before)
            undo.callback(self._rename, before, name)
            # The name is part of the address, so clients reach the new instance at the old address.
            self._rename(fresh, name)
            undo.pop_all()
        self._drop(before)

    def _drop_quietly(self, name: str) -> None:
        with suppress(NotFound):
            self._drop(name)

    def _rename(self, name: str, fresh: str) -> None:
        self._change(name, NewDBInstanceIdentifier=fresh)
        self._wait(lambda: self._exists(fresh), f"the database {fresh}")
        self._wait_available(fresh)

    def _exists(self, name: str) -> bool:
        try:
            self._doc(name)
        except NotFound:
            return False
        return True

    def delete(self, name: str) -> None:
        with suppress(NotFound):
            self._drop(name)
        parameters = {"DBInstanceIdentifier": name, "SnapshotType": "manual"}
        for doc in self.client.call("rds", "describe_db_snapshots", **parameters)["DBSnapshots"]:
            with suppress(NotFound):
                self.client.call("rds", "delete_db_snapshot", DBSnapshotIdentifier=doc["DBSnapshotIdentifier"])
        security_groups.remove(self.client, _group(name))

    def _drop(self, name: str) -> None:
        parameters = {"SkipFinalSnapshot": True, "DeleteAutomatedBackups": True}
        self.client.call("rds", "delete_db_instance", DBInstanceIdentifier=name, **parameters)
        self._wait(lambda: not self._exists(name), f"the end of the database {name}")

    def secret(self, name: str) -> Mapping[str, str]:
        return secrets.read(self.client, name)

    def my_address(self) -> str:
        return ssh_access.caller_network().removesuffix("/32").removesuffix("/128")

    def _change(self, name: str, **changes: object) -> None:
        self.client.call("rds", "modify_db_instance", DBInstanceIdentifier=name, ApplyImmediately=True, **changes)

    def _doc(self, name: str) -> Doc:
        found: Doc = self.client.call("rds", "describe_db_instances", DBInstanceIdentifier=name)["DBInstances"][0]
        return found

    def _wait_available(self, name: str) -> None:
        self._wait(lambda: self._doc(name)["DBInstanceStatus"] == "available", f"the database {name}")

    def _wait(self, is_done: Callable[[], bool], what: str) -> None:
        give_up_at = time.monotonic() + _S_MAX
        while not is_done():
            if time.monotonic() > give_up_at:
                raise CloudUnreachable(f"{what} is not ready after {_S_MAX:g} s", hint="check again later")
            time.sleep(_PAUSE_S)

    def _read(self, doc: Doc) -> Database:
        engine: Engine = "mysql" if doc["Engine"] in ("mysql", "mariadb") else "postgres"
        endpoint, size_gb = doc.get("Endpoint", {}), float(doc.get("AllocatedStorage", 0))
        try:
            price = _price(str(doc["DBInstanceClass"]), size_gb)
        except BadRequest:
            price = 0.0  # not created by outlast
        return Database(
            name=str(doc["DBInstanceIdentifier"]),
            cloud=CLOUD,
            engine=engine,
            version=str(doc.get("EngineVersion", "")),
            state=_STATES.get(str(doc["DBInstanceStatus"]), "broken"),
            why="" if str(doc["DBInstanceStatus"]) in _STATES else f"its status is {doc['DBInstanceStatus']}",
            zone=str(doc.get("AvailabilityZone", "") or self.client.region),
            type=str(doc["DBInstanceClass"]),
            host=str(endpoint.get("Address", "")),
            port=int(endpoint.get("Port", 0) or _PORTS[engine]),
            ca=_ca_bundle(self.client.region),
            server_name=str(endpoint.get("Address", "")),
            allowed=security_groups.allowed(self.client, _group(str(doc["DBInstanceIdentifier"]))),
            size_gb=size_gb,
            created_at=doc["InstanceCreateTime"].timestamp() if doc.get("InstanceCreateTime") else 0.0,
            usd_per_hour=price,
            labels=_labels(doc),
        )


def _group(name: str) -> str:
    return f"outlast-db-{name}"


def _labels(doc: Doc) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in doc.get("TagList", [])}


def _price(kind: str, size_gb: float) -> float:
    """Return the price per hour. Raises BadRequest if it is unknown, so that no bill is a surprise."""
    if kind not in _USD_PER_HOUR:
        why = f"the price of database type `{kind}` is unknown"
        raise BadRequest(why, hint=f"use one of {', '.join(_USD_PER_HOUR)}")
    return _USD_PER_HOUR[kind] + size_gb * _DISK_USD_PER_GB_MONTH / HOURS_PER_MONTH


def _ca_bundle(region: str) -> str:
    """Return the certificates of Amazon's authorities for databases, which systems do not trust by default; cached.

    Empty if they cannot be fetched: then connections fail with a TLS error.
    """
    path = os.path.expanduser(f"~/.outlast/cache/rds-{region}.pem")
    with suppress(OSError), open(path, encoding="ascii") as file:
        return file.read()
    if os.environ.get("AWS_ENDPOINT_URL"):
        return ""  # an emulator, not Amazon
    try:
        with urllib.request.urlopen(_CA_URL.format(region=region), timeout=10.0) as answer:
            text = str(answer.read().decode("ascii"))
    except (OSError, UnicodeDecodeError):
        return ""
    with suppress(OSError):
        private.folder("cache")
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    return text
