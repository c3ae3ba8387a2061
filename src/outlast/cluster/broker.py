"""How the head of a local cluster launches machines: a process of this computer does it for it, by a socket.

A head of a real cloud has an account of its own and calls the cloud's API. The local cloud is files of this computer,
which its machines do not see; so the broker stands for that API. It serves one cluster alone: it refuses machines that
do not carry the cluster's label, and everything that a head has no business with.

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
from typing import Any

import msgspec

from outlast import errors
from outlast.clouds.cloud import Boot, Image, Machine, Offer, Requirements
from outlast.clouds.local.cloud import LocalCloud
from outlast.cluster.record import LABEL_ID
from outlast.cluster.socket_rpc import SocketServer
from outlast.errors import BadRequest, CloudError, CloudUnreachable, Denied, NotFound, OutlastError

# A broker without a head for this long has nobody to serve; `up` may take so long until it has launched one.
_ALONE_S = 60.0
_LOOK_S = 1.0
_CALL_S = 120.0
_START_S = 20.0


def folder(cluster_id: str) -> str:
    """Short, for a socket's path has a hundred bytes; of this user alone."""
    return f"{tempfile.gettempdir()}/outlast-{os.getuid()}-cluster-{cluster_id}"


def socket_path(cluster_id: str) -> str:
    return f"{folder(cluster_id)}/broker"


# The side of this computer


class _Broker:
    def __init__(self, root: str, cluster_id: str, secrets: str) -> None:
        self.cloud = LocalCloud(root)
        self.cluster_id = cluster_id
        self.secrets = secrets

    def answer(self, call: str, given: dict[str, Any]) -> Any:
        cloud = self.cloud
        if call == "offers":
            return cloud.offers(msgspec.convert(given["needs"], Requirements))
        if call == "launch":
            labels = msgspec.convert(given["labels"], dict[str, str])
            self._check(labels)
            offer, boot = msgspec.convert(given["offer"], Offer), msgspec.convert(given["boot"], Boot)
            return cloud.launch(offer, str(given["name"]), boot=boot, labels=labels)
        if call == "machines":
            labels = msgspec.convert(given["labels"], dict[str, str])
            return cloud.machines({**labels, LABEL_ID: self.cluster_id})
        if call == "image":
            return cloud.image(str(given["name"]))
        if call == "drop_secrets":
            cloud.drop_secrets(self.secrets)
            return None
        machine = cloud.machine(str(given["name"]))
        self._check(machine.labels)
        if call == "machine":
            return machine
        if call == "metadata":
            return cloud.metadata(machine.name)
        if call == "delete":
            cloud.delete(machine.name)
            return None
        raise BadRequest(f"the broker has no `{call}`")

    def _check(self, labels: Mapping[str, str]) -> None:
        if labels.get(LABEL_ID) != self.cluster_id:
            raise Denied("that machine is not of this cluster")


def serve(path: str, root: str, cluster_id: str, head: str, secrets: str) -> None:
    """Until the head is no more. Nothing is lost with the broker: it keeps nothing."""
    broker = _Broker(root, cluster_id, secrets)
    with SocketServer(path, broker.answer) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True).start()
        seen_at = time.monotonic()
        while time.monotonic() - seen_at < _ALONE_S:
            time.sleep(_LOOK_S)
            try:
                there = os.path.exists(f"{root}/machines/{head}") and broker.cloud.machine(head).status != "broken"
            except OutlastError:
                there = False
            if there:
                seen_at = time.monotonic()
            if not os.path.exists(path):
                break  # somebody took the cluster down
        server.shutdown()
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)


def start(cloud: LocalCloud, cluster_id: str, head: str, secrets: str) -> str:
    """A broker for that head, in the background; the folder that the head must see. One that is there is replaced."""
    place = folder(cluster_id)
    stop(cluster_id)
    os.makedirs(place, mode=0o700, exist_ok=True)
    argv = [sys.executable, "-P", "-m", "outlast.cluster.broker"]
    argv += [socket_path(cluster_id), cloud.root, cluster_id, head, secrets]
    with open(f"{place}/log", "ab") as log:
        subprocess.run(
            # Nobody's child, as a keeper is: it outlives us and leaves us no zombie.
            ["/bin/sh", "-c", '"$@" & echo $! > "$0"', f"{place}/pid", *argv],
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
            raise CloudError("the broker of the cluster did not start", hint=f"see {place}/log")
        time.sleep(0.02)
    return place


def answers(cluster_id: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(socket_path(cluster_id))
        return True
    except OSError:
        return False


def stop(cluster_id: str) -> None:
    """End the broker, wherever it is in its work; one that is not there is fine."""
    place = folder(cluster_id)
    try:
        with open(f"{place}/pid", encoding="ascii") as file:
            pid = int(file.read())
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            # The number may be another's by now.
            if cluster_id.encode() in file.read():
                os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        pass
    shutil.rmtree(place, ignore_errors=True)


# The side of the head


class BrokeredCloud:
    """As much of the local cloud as the head of a cluster needs, through the broker's socket."""

    name = "local"

    def __init__(self, path: str) -> None:
        self.path = path

    def offers(self, needs: Requirements) -> Sequence[Offer]:
        return msgspec.convert(self._ask("offers", needs=msgspec.to_builtins(needs)), list[Offer])

    def launch(self, offer: Offer, name: str, *, boot: Boot, labels: Mapping[str, str]) -> Machine:
        given = {"offer": msgspec.to_builtins(offer), "boot": msgspec.to_builtins(boot)}
        return msgspec.convert(self._ask("launch", name=name, labels=dict(labels), **given), Machine)

    def machines(self, labels: Mapping[str, str] | None = None) -> Sequence[Machine]:
        return msgspec.convert(self._ask("machines", labels=dict(labels or {})), list[Machine])

    def machine(self, name: str) -> Machine:
        return msgspec.convert(self._ask("machine", name=name), Machine)

    def metadata(self, name: str) -> Mapping[str, str]:
        return msgspec.convert(self._ask("metadata", name=name), dict[str, str])

    def image(self, name: str) -> Image:
        return msgspec.convert(self._ask("image", name=name), Image)

    def delete(self, name: str) -> None:
        try:
            self._ask("delete", name=name)
        except NotFound:
            pass

    def drop_secrets(self, name: str) -> None:
        self._ask("drop_secrets", name=name)

    def _ask(self, call: str, **given: Any) -> Any:
        try:
            with socket.socket(socket.AF_UNIX) as door:
                door.settimeout(_CALL_S)
                door.connect(self.path)
                door.sendall(json.dumps({"call": call, "given": given}).encode() + b"\n")
                with door.makefile("rb") as reader:
                    answer = json.loads(reader.readline() or b"{}")
        except (OSError, ValueError) as problem:
            raise CloudUnreachable(
                f"the broker of this cluster does not answer: {problem}",
                hint="`outlast cluster up` on the computer that it was made from starts it again",
            ) from problem
        if "ok" in answer:
            return answer["ok"]
        kind = getattr(errors, str(answer.get("error")), CloudError)
        known = kind if isinstance(kind, type) and issubclass(kind, OutlastError) else CloudError
        raise known(str(answer.get("message", "the broker said nothing")), hint=str(answer.get("hint", "")))


def main(argv: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    serve(*argv)


if __name__ == "__main__":
    main(sys.argv[1:])
