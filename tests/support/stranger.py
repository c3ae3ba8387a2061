"""Run attacks on a server of this computer as another of its users."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

UID = 65534

# What the attacker runs: one way to attack, so many times. It prints every byte that it receives.
_PROGRAM = r"""
import json, socket, struct, sys, time

plan = json.loads(sys.argv[1])
address, request = (plan["host"], plan["port"]), plan["request"].encode("latin-1")


def connect(family=socket.AF_INET):
    client = socket.socket(family, socket.SOCK_STREAM)
    client.settimeout(60)
    client.connect(("::ffff:" + address[0], address[1]) if family == socket.AF_INET6 else address)
    return client


def send(client, data):
    try:
        client.sendall(data)
    except ConnectionError:
        pass


def reset(client):
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def read(client):
    try:
        while data := client.recv(65536):
            sys.stdout.buffer.write(data)
    except ConnectionError:
        pass


def send_and_reset():
    client = connect()
    send(client, request)
    reset(client)


def send_and_close():
    client = connect()
    send(client, request)
    client.close()


def send_in_parts_and_reset():
    client = connect()
    for at in range(0, len(request), 64):
        send(client, request[at:at + 64])
    reset(client)


def send_and_read():
    client = connect()
    send(client, request)
    read(client)


def send_by_ipv6_socket():
    client = connect(socket.AF_INET6)
    send(client, request)
    read(client)


def send_many_on_one_connection():
    client = connect()
    send(client, request * 20)
    read(client)


def half_close():
    client = connect()
    send(client, request)
    try:
        client.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    read(client)


held = []


def hold():
    client = connect()
    send(client, request[:20])
    held.append(client)


for _ in range(plan["times"]):
    globals()[plan["attack"]]()
print("attacked", file=sys.stderr, flush=True)
# Until the test has seen enough; a flood goes on.
if plan["stay"]:
    import select
    while not select.select([sys.stdin], [], [], 0 if plan["flood"] else None)[0]:
        globals()[plan["attack"]]()
sys.stdout.flush()
"""

ATTACKS = (
    *("send_and_reset", "send_and_close", "send_in_parts_and_reset", "send_and_read", "send_by_ipv6_socket"),
    *("send_many_on_one_connection", "half_close"),
)
# Those that leave before the server looks at them.
HIT_AND_RUN = ("send_and_reset", "send_and_close", "send_in_parts_and_reset")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


class Attack:
    """An attack under way, as another user. With `stay` it holds what it has until `end`; a flood goes on till then."""

    def __init__(
        self, attack: str, host: str, request: bytes, *, times: int = 1, stay: bool = False, flood: bool = False
    ) -> None:
        name, _, port = host.partition(":")
        plan = {"attack": attack, "host": name, "port": int(port), "request": request.decode("latin-1")}
        plan |= {"times": times, "stay": stay or flood, "flood": flood}
        self._process = subprocess.Popen(
            [_interpreter(), "-I", "-c", _PROGRAM, json.dumps(plan)],
            user=UID,
            group=UID,
            extra_groups=[],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def begin(self) -> None:
        """Wait until all of it was sent."""
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        assert line == b"attacked\n", line + self._process.stderr.read()

    def end(self) -> bytes:
        """All bytes that the attacker received."""
        received, errors = self._process.communicate(timeout=600)
        assert self._process.returncode == 0, errors
        return received


def attack(attack: str, host: str, request: bytes, *, times: int = 1) -> bytes:
    """Attack a server; return all bytes that the attacker received."""
    return Attack(attack, host, request, times=times).end()


def _interpreter() -> str:
    """A Python that the other user may run: that of the tests may be in a private folder."""
    for found in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        try:
            if found and not subprocess.run([found, "-I", "-c", ""], user=UID, group=UID, cwd="/").returncode:
                return found
        except OSError:
            continue
    pytest.skip("no Python that another user may run")
