"""What a machine runs at its start and its end: the scripts of its metadata, as Google's guest environment does.

This file is not imported by the endpoint but given to the machine, as text. It needs nothing but an interpreter, and is
quick to start, because boot time is recovery time: a socket in place of an HTTP library.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

KIND = "startup"  # the endpoint writes `shutdown` here for the other one


def ask(host: str, path: str, headers: str = "Metadata-Flavor: Google\r\n") -> tuple[int, bytes]:
    """Status and body of a GET."""
    name, _, port = host.partition(":")
    with socket.create_connection((name, int(port or 80)), timeout=30) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n{headers}\r\n".encode())
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def say(line: str) -> None:
    os.write(1, f"google_metadata_script_runner: {line}\n".encode())


def metadata(host: str) -> dict[str, Any]:
    status, body = ask(host, "/computeMetadata/v1/instance/?recursive=true")
    if status != 200:
        say(f"the metadata server answers {status}")
        sys.exit(1)
    value: dict[str, Any] = json.loads(body)
    return value


def fetch(url: str, variables: dict[str, str]) -> str:
    """The script at a `gs://` or `http://` address. Raises OSError."""
    storage = variables.get("STORAGE_EMULATOR_HOST", "").removeprefix("http://").rstrip("/")
    for prefix in ("gs://", "https://storage.googleapis.com/", "http://storage.googleapis.com/"):
        if url.startswith(prefix) and storage:
            url = f"http://{storage}/{url.removeprefix(prefix)}"
    if not url.startswith("http://"):
        from urllib.request import urlopen

        with urlopen(url, timeout=60) as answer:
            return str(answer.read().decode())
    host, _, path = url.removeprefix("http://").partition("/")
    status, body = ask(host, f"/{path}", "")
    if status != 200:
        raise OSError(f"the answer is {status}")
    return body.decode()


def run(name: str, script: str, variables: dict[str, str]) -> int:
    """Run a script, its output line by line on the serial console."""
    place = os.environ.get("TMPDIR", "/tmp")
    path = f"{place}/{name}.{os.getpid()}"
    with open(path, "w", encoding="utf-8") as file:
        file.write(script)
    os.chmod(path, 0o700)
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        os.close(reader)
        try:
            os.execve(path, [path], variables)
        except OSError:
            os.execve("/bin/bash", ["/bin/bash", path], variables)
    os.close(writer)
    with open(reader, "rb") as output:
        for line in output:
            os.write(1, f"{name}: ".encode() + line.rstrip(b"\n") + b"\n")
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.unlink(path)
    say(f"{name} exit status {code}")
    return code


# On a machine that has no root of its own, who calls for root is root enough: the real one is this computer's.
_SUDO = """#!/bin/sh
while :; do
    case "$1" in
        -u | -g | -U) shift 2 ;;
        --) shift; break ;;
        -*) shift ;;
        *=*) export "$1"; shift ;;
        *) break ;;
    esac
done
exec "$@"
"""


def put(path: str, text: str, permissions: int) -> None:
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, permissions)


def surroundings(host: str, told: dict[str, Any]) -> dict[str, str]:
    """The variables of a script: those of the machine, and where it finds the cloud that it is in."""
    variables = {**os.environ, **told.get("outlast", {}).get("environment", {})}
    home = variables.get("HOME", "/root")
    put(f"{home}/.boto", "[GSUtil]\nuse_gcloud_storage = True\n", 0o600)
    if ":" in host:
        put(f"{home}/.outlast/bin/sudo", _SUDO, 0o755)
        variables["PATH"] = f"{home}/.outlast/bin:{variables['PATH']}"
        # A machine that shares its network with others cannot have 169.254.169.254; as a proxy the metadata server
        # is found by every name that it has on Google's machines.
        variables |= {"http_proxy": f"http://{host}", "GCE_METADATA_ROOT": host}
        variables["no_proxy"] = "127.0.0.0/8,127.0.0.1,localhost"
    return variables


def main() -> int:
    host = os.environ.get("GCE_METADATA_HOST", "169.254.169.254")
    told = metadata(host)
    variables = surroundings(host, told)
    attributes = told["attributes"]
    code = 0
    for key in (f"{KIND}-script", f"{KIND}-script-url"):
        if not (script := attributes.get(key, "")):
            continue
        if key.endswith("-url"):
            try:
                script = fetch(script, variables)
            except (OSError, ValueError) as problem:
                say(f"{key} {script}: {problem}")
                code = 1
                continue
        code = run(key, script, variables) or code
    say(f"Finished running {KIND} scripts.")
    return code


if __name__ == "__main__":
    sys.exit(main())
