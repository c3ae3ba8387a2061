"""What a machine runs at its start and its end: the scripts of its metadata, as Google's guest environment does.

This file is not imported by the endpoint but given to the machine, as text. It needs nothing but an interpreter, and is
quick to start, because boot time is recovery time: a socket in place of an HTTP library.
"""

from __future__ import annotations

import json
import os
import select
import signal
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


def report(line: str) -> None:
    os.write(1, f"google_metadata_script_runner: {line}\n".encode())


def metadata(host: str) -> dict[str, Any]:
    status, body = ask(host, "/computeMetadata/v1/instance/?recursive=true")
    if status != 200:
        report(f"the metadata server answers {status}")
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


# Readable once somebody on the machine wants it switched off.
WISH, WISHER = os.pipe()


def copy(reader: int, name: str) -> None:
    """Line by line to the serial console until the end, or until the power goes: then all that was said before."""
    rest = b""
    while reader in select.select([reader, WISH], [], [])[0] and (data := os.read(reader, 65536)):
        rest = print_lines(rest + data, name)
    print_lines(rest + b"\n" if rest else b"", name)
    honour_wish()


def honour_wish() -> None:
    """Switch the machine off if somebody wants it, also if it was the last thing that the script did."""
    if select.select([WISH], [], [], 0)[0]:
        switch = real_switch("shutdown")
        os.execv(switch, [switch, "-h", "now"])


def print_lines(data: bytes, name: str) -> bytes:
    """Print the lines that are whole; what is left is the beginning of the next."""
    *lines, rest = data.split(b"\n")
    os.write(1, b"".join(f"{name}: ".encode() + line + b"\n" for line in lines))
    return rest


def real_switch(name: str) -> str:
    places = os.environ["PATH"].split(":")
    return next((f"{place}/{name}" for place in places if os.path.exists(f"{place}/{name}")), f"/sbin/{name}")


SWITCHES = ("shutdown", "poweroff", "halt")


def take_switches(home: str) -> None:
    """Be told before the power goes: a machine that its script switches off would lose the script's last words."""
    os.set_blocking(WISHER, False)
    signal.set_wakeup_fd(WISHER)
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    for name in SWITCHES:
        text = f'#!/bin/sh\nkill -s USR1 {os.getpid()} 2>/dev/null || exec {real_switch(name)} "$@"\n'
        put(f"{home}/.outlast/bin/{name}", text, 0o755, anew=True)


def leave_switches(home: str) -> None:
    for name in SWITCHES:
        os.unlink(f"{home}/.outlast/bin/{name}")
    # From here on nobody can tell us any more; who did is heard.
    honour_wish()


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
    copy(reader, name)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.unlink(path)
    report(f"{name} exit status {code}")
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


def put(path: str, text: str, permissions: int, *, anew: bool = False) -> None:
    if anew or not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, permissions)


def surroundings(host: str, told: dict[str, Any]) -> dict[str, str]:
    """The variables of a script: those of the machine, and where it finds the cloud that it is in."""
    variables = {**os.environ, **told.get("outlast", {}).get("environment", {})}
    home = variables.setdefault("HOME", "/root")
    put(f"{home}/.boto", "[GSUtil]\nuse_gcloud_storage = True\n", 0o600)
    if ":" in host or not os.path.exists("/usr/bin/sudo"):
        put(f"{home}/.outlast/bin/sudo", _SUDO, 0o755)
    variables["PATH"] = f"{home}/.outlast/bin:{variables['PATH']}"
    if ":" in host:
        # A machine that shares its network with others cannot have 169.254.169.254; as a proxy the metadata server
        # is found by every name that it has on Google's machines.
        variables |= {"http_proxy": f"http://{host}", "GCE_METADATA_ROOT": host}
        variables["no_proxy"] = "127.0.0.0/8,127.0.0.1,localhost"
    remember(home, variables)
    return variables


_READ = "[ -r ~/.outlast/environment ] && . ~/.outlast/environment\n"


def remember(home: str, variables: dict[str, str]) -> None:
    """Let those who log in find the cloud, too: bash reads this, also for a single command by ssh."""
    new = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    lines = [f"export {name}='{value}'\n" for name, value in new.items() if "'" not in value]
    put(f"{home}/.outlast/environment", "".join(lines), 0o644, anew=True)
    before = ""
    if os.path.exists(f"{home}/.bashrc"):
        with open(f"{home}/.bashrc", encoding="utf-8", errors="surrogateescape") as file:
            before = file.read()
    if _READ not in before:
        # First, because many a .bashrc ends early for a shell that nobody types to.
        with open(f"{home}/.bashrc", "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(_READ + before)


def main() -> int:
    host = os.environ.get("GCE_METADATA_HOST", "169.254.169.254")
    told = metadata(host)
    variables = surroundings(host, told)
    attributes = told["attributes"]
    home = variables["HOME"]
    if KIND == "startup":
        take_switches(home)
    code = run_all(attributes, variables)
    if KIND == "startup":
        leave_switches(home)
    report(f"Finished running {KIND} scripts.")
    return code


def run_all(attributes: dict[str, str], variables: dict[str, str]) -> int:
    code = 0
    for key in (f"{KIND}-script", f"{KIND}-script-url"):
        if not (script := attributes.get(key, "")):
            continue
        if key.endswith("-url"):
            try:
                script = fetch(script, variables)
            except (OSError, ValueError) as problem:
                report(f"{key} {script}: {problem}")
                code = 1
                continue
        code = run(key, script, variables) or code
    return code


if __name__ == "__main__":
    sys.exit(main())
