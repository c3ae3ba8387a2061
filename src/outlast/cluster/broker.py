"""The broker: a process on this computer that launches machines for the head of a local cluster, over a socket.

The head of a real cluster calls the cloud's API. The state of the local cloud is files of this computer, which its
machines cannot see, so the broker stands in for that API. It serves one cluster: it refuses machines without the
cluster's label, and calls that a head does not need.

    python -m outlast.cluster.broker SOCKET ROOT CLUSTER_ID HEAD SECRETS
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from outlast import errors
from outlast.clouds.cloud import Boot, Cloud, Image, Machine, Offer, Requirements
from outlast.clouds.local.cloud import LocalCloud
from outlast.cluster.record import LABEL_ID
from outlast.cluster.socket_rpc import SocketServer
from outlast.errors import BadRequest, CloudError, CloudUnreachable, Denied, NotFound, OutlastError

# The broker exits when the head has been missing for this long. `up` must launch the head within this time.
_HEAD_MISSING_S = 60.0
_POLL_S = 1.0
_CALL_S = 120.0
_START_S = 20.0


def folder(cluster_id: str) -> str:
    """Return the broker's folder, private to this user. It is short: a socket's path has at most 100 bytes."""
    return f"{tempfile.gettempdir()}/outlast-{os.getuid()}-cluster-{cluster_id}"


def socket_path(cluster_id: str) -> str:
    return f"{folder(cluster_id)}/broker"


class _Broker:
    def __init__(self, root: str, cluster_id: str, secrets: str) -> None:
        self.cloud = LocalCloud(root)
        self.cluster_id = cluster_id
        self.secrets = secrets

    def answer(self, call: str, args: dict[str, Any]) -> Any:
        cloud = self.cloud
        if call == "offers":
            return cloud.offers(msgspec.convert(args["needs"], Requirements))
        if call == "launch":
            labels = msgspec.convert(args["labels"], dict[str, str])
            self._check(labels)
            offer, boot = msgspec.convert(args["offer"], Offer), msgspec.convert(args["boot"], Boot)
            return cloud.launch(offer, str(args["name"]), boot=boot, labels=labels)
        if call == "machines":
            labels = msgspec.convert(args["labels"], dict[str, str])
            return cloud.machines({**labels, LABEL_ID: self.cluster_id})
        if call == "image":
            return cloud.image(str(args["name"]))
        if call == "drop_secrets":
            cloud.drop_secrets(self.secrets)
            return None
        machine = cloud.machine(str(args["name"]))
        self._check(machine.labels)
        if call == "machine":
            return machine
        if call == "metadata":
            return cloud.metadata(machine.name)
        if call == "delete":
            cloud.delete(machine.name)
            return None
        raise BadRequest(f"unknown broker call `{call}`")

    def _check(self, labels: Mapping[str, str]) -> None:
        if labels.get(LABEL_ID) != self.cluster_id:
            raise Denied("the machine does not belong to this cluster")


def serve(path: str, root: str, cluster_id: str, head: str, secrets: str) -> None:
    """Serve until the head is gone. The broker has no state that could be lost."""
    broker = _Broker(root, cluster_id, secrets)
    with SocketServer(path, broker.answer) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True).start()
        seen_at = time.monotonic()
        while time.monotonic() - seen_at < _HEAD_MISSING_S:
            time.sleep(_POLL_S)
            try:
                there = os.path.exists(f"{root}/machines/{head}") and broker.cloud.machine(head).status != "broken"
            except OutlastError:
                there = False
            if there:
                seen_at = time.monotonic()
            if not os.path.exists(path):
                break  # `cluster down` removed the socket
        server.shutdown()
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)


def start(cloud: Cloud, cluster_id: str, head: str, secrets: str) -> str:
    """Start a broker in the background, replacing an earlier one. Return its folder, which the head must see."""
    directory = folder(cluster_id)
    stop(cluster_id)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    argv = [sys.executable, "-P", "-m", "outlast.cluster.broker"]
    argv += [socket_path(cluster_id), cast(LocalCloud, cloud).root, cluster_id, head, secrets]
    with open(f"{directory}/log", "ab") as log:
        subprocess.run(
            # Started through a shell that exits: the broker outlives this process and leaves no zombie.
            ["/bin/sh", "-c", '"$@" & echo $! > "$0"', f"{directory}/pid", *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            check=True,
        )
    ends_at = time.monotonic() + _START_S
    while not answers(cluster_id):
        if time.monotonic() > ends_at:
            raise CloudError(f"the cluster's broker did not start within {_START_S:.0f} s", hint=f"see {directory}/log")
        time.sleep(0.02)
    return directory


def answers(cluster_id: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(socket_path(cluster_id))
        return True
    except OSError:
        return False


def stop(cluster_id: str) -> None:
    """End the broker if it runs."""
    directory = folder(cluster_id)
    try:
        with open(f"{directory}/pid", encoding="ascii") as file:
            pid = int(file.read())
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            # Another process may have the pid by now.
            if cluster_id.encode() in file.read():
                os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        pass
    shutil.rmtree(directory, ignore_errors=True)


class BrokeredCloud:
    """The part of the local cloud that a head needs, through the broker's socket."""

    name = LocalCloud.name
    traits = LocalCloud.traits

    def __init__(self, path: str) -> None:
        self.path = path

    def offers(self, needs: Requirements) -> Sequence[Offer]:
        return msgspec.convert(self._call("offers", needs=msgspec.to_builtins(needs)), list[Offer])

    def launch(self, offer: Offer, name: str, *, boot: Boot, labels: Mapping[str, str]) -> Machine:
        args = {"offer": msgspec.to_builtins(offer), "boot": msgspec.to_builtins(boot)}
        return msgspec.convert(self._call("launch", name=name, labels=dict(labels), **args), Machine)

    def machines(self, labels: Mapping[str, str] | None = None) -> Sequence[Machine]:
        return msgspec.convert(self._call("machines", labels=dict(labels or {})), list[Machine])

    def machine(self, name: str) -> Machine:
        return msgspec.convert(self._call("machine", name=name), Machine)

    def metadata(self, name: str) -> Mapping[str, str]:
        return msgspec.convert(self._call("metadata", name=name), dict[str, str])

    def image(self, name: str) -> Image:
        return msgspec.convert(self._call("image", name=name), Image)

    def delete(self, name: str) -> None:
        try:
            self._call("delete", name=name)
        except NotFound:
            pass

    def drop_secrets(self, name: str) -> None:
        self._call("drop_secrets", name=name)

    def _call(self, call: str, **args: Any) -> Any:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_CALL_S)
                connection.connect(self.path)
                connection.sendall(json.dumps({"call": call, "args": args}).encode() + b"\n")
                with connection.makefile("rb") as reader:
                    answer = json.loads(reader.readline() or b"{}")
        except (OSError, ValueError) as problem:
            raise CloudUnreachable(
                f"the cluster's broker does not answer: {problem}",
                hint="run `outlast cluster up` on the computer that created the cluster, which restarts it",
            ) from problem
        if "ok" in answer:
            return answer["ok"]
        kind = getattr(errors, str(answer.get("error")), CloudError)
        known = kind if isinstance(kind, type) and issubclass(kind, OutlastError) else CloudError
        raise known(str(answer.get("message", "the broker sent no message")), hint=str(answer.get("hint", "")))


def main(argv: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    serve(*argv)


if __name__ == "__main__":
    main(sys.argv[1:])
