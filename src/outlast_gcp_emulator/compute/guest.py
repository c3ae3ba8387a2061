"""The guest environment: runs the startup and shutdown scripts of a machine's metadata, as on Google's machines.

The endpoint does not import this file but gives it to the machine, as text. It needs only the standard library, and
uses a socket instead of an HTTP library to start fast, because boot time is recovery time.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from typing import Any

KIND = "startup"  # the endpoint replaces it with `shutdown` for the other program


def http_get(host: str, path: str, headers: str = "Metadata-Flavor: Google\r\n") -> tuple[int, bytes]:
    """Return status and body of a GET request."""
    name, _, port = host.partition(":")
    with socket.create_connection((name, int(port or 80)), timeout=30) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n{headers}\r\n".encode())
        response = b""
        while piece := connection.recv(65536):
            response += piece
    head, _, body = response.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def report(line: str) -> None:
    os.write(1, f"google_metadata_script_runner: {line}\n".encode())


def metadata(host: str) -> dict[str, Any]:
    status, body = http_get(host, "/computeMetadata/v1/instance/?recursive=true")
    if status != 200:
        report(f"the metadata server responded with status {status}")
        sys.exit(1)
    value: dict[str, Any] = json.loads(body)
    return value


def fetch(url: str, variables: dict[str, str]) -> str:
    """Return the script at a `gs://` or `http://` address. Raises OSError."""
    storage = variables.get("STORAGE_EMULATOR_HOST", "").removeprefix("http://").rstrip("/")
    for prefix in ("gs://", "https://storage.googleapis.com/", "http://storage.googleapis.com/"):
        if url.startswith(prefix) and storage:
            url = f"http://{storage}/{url.removeprefix(prefix)}"
    if not url.startswith("http://"):
        from urllib.request import urlopen

        with urlopen(url, timeout=60) as response:
            return str(response.read().decode())
    host, _, path = url.removeprefix("http://").partition("/")
    status, body = http_get(host, f"/{path}", "")
    if status != 200:
        raise OSError(f"the server responded with status {status}")
    return body.decode()


# Readable once a program on the machine requested a power-off.
POWER_OFF_READER, POWER_OFF_WRITER = os.pipe()


def copy(reader: int, name: str) -> None:
    """Copy a script's output to the serial console, until the script ends or a power-off is requested."""
    rest = b""
    while reader in select.select([reader, POWER_OFF_READER], [], [])[0] and (data := os.read(reader, 65536)):
        rest = print_lines(rest + data, name)
    print_lines(rest + b"\n" if rest else b"", name)
    power_off_if_requested()


def power_off_if_requested() -> None:
    """Run the power command that a program requested, even as the last action of the script."""
    if select.select([POWER_OFF_READER], [], [], 0)[0]:
        with open(f"{helpers()}/request", encoding="utf-8", errors="surrogateescape") as file:
            command = file.read().splitlines()
        os.execv(command[0], command)


def print_lines(data: bytes, name: str) -> bytes:
    """Print the complete lines, and return the beginning of the next line."""
    *lines, rest = data.split(b"\n")
    os.write(1, b"".join(f"{name}: ".encode() + line + b"\n" for line in lines))
    return rest


def real_command(name: str) -> str:
    places = os.environ["PATH"].split(":")
    return next((f"{place}/{name}" for place in places if os.path.exists(f"{place}/{name}")), f"/sbin/{name}")


POWER_COMMANDS = ("shutdown", "poweroff", "halt", "reboot")
# A command that takes effect at once signals the runner of the script first. Others go to the machine directly.
_INTERCEPT = """#!/bin/sh
now=@NOW@
for word; do
    case $word in
        now | 0 | +0) now=yes ;;
        -c | -k | -w | --show | --help | --wtmp-only) exec @REAL@ "$@" ;;
    esac
done
[ -n "$now" ] && printf '%s\\n' @REAL@ "$@" > @REQUEST@ 2>/dev/null &&
    kill -s USR1 @RUNNER@ 2>/dev/null || exec @REAL@ "$@"
"""


def is_shared() -> bool:
    """Return whether the machine shares the network and the files of its host."""
    return ":" in os.environ.get("GCE_METADATA_HOST", "")


def helpers() -> str:
    return f"{os.environ['HOME']}/.outlast/bin" if is_shared() else "/run/outlast-guest"


def intercept_power_commands() -> None:
    """Make power commands signal this process first, because a power-off would lose the script's last output."""
    os.set_blocking(POWER_OFF_WRITER, False)
    signal.set_wakeup_fd(POWER_OFF_WRITER)
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    for name in POWER_COMMANDS:
        values = {"NOW": "" if name == "shutdown" else "yes", "REAL": real_command(name)}
        values |= {"REQUEST": f"{helpers()}/request", "RUNNER": str(os.getpid())}
        text = _INTERCEPT
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        put(f"{helpers()}/{name}", text, 0o755)


def restore_power_commands() -> None:
    for name in POWER_COMMANDS:
        os.unlink(f"{helpers()}/{name}")
    # A request that arrived before the commands were restored still counts.
    power_off_if_requested()


def run(name: str, script: str, variables: dict[str, str]) -> int:
    """Run a script, print its output to the serial console, and return its exit status."""
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


def put(path: str, text: str, permissions: int) -> None:
    """Write a file in one step. A file of the host below it cannot be changed in place."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    draft = f"{path}.{os.getpid()}"
    with open(draft, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.chmod(draft, permissions)
    os.replace(draft, path)


def script_environment(host: str, instance: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a script: those of the machine, and those that point at the emulated cloud."""
    new = dict(instance.get("outlast", {}).get("environment", {}))
    variables = {**os.environ, "PATH": f"{helpers()}:{os.environ['PATH']}"}
    if is_shared():
        # A machine that shares its network with others cannot have 169.254.169.254. With the metadata server as a
        # proxy, requests for all its names on Google's machines still arrive there.
        new |= {"http_proxy": f"http://{host}", "GCE_METADATA_ROOT": host}
        new["no_proxy"] = "127.0.0.0/8,127.0.0.1,localhost"
        home = os.environ["HOME"]
        put(f"{home}/.boto", _BOTO, 0o600)
        put(f"{home}/.outlast/environment", exports(new), 0o644)
        source_first(f"{home}/.bashrc", "~/.outlast/environment")
    else:
        # Google's runner is a service of systemd, which sets none of these.
        for name in ("HOME", "USER", "LOGNAME", "PWD", "SHELL"):
            variables.pop(name, None)
        write_for_all_users(new)
    return {**variables, **new}


_BOTO = "[GSUtil]\nuse_gcloud_storage = True\n"
_PROFILE = "/etc/profile.d/outlast-cloud.sh"
_MARK = "# The cloud of this machine:"


def write_for_all_users(variables: dict[str, str]) -> None:
    """Let the programs of every user find the cloud: by ssh, `su`, `sudo`, `runuser` and cron."""
    put("/etc/boto.cfg", _BOTO, 0o644)
    put(_PROFILE, exports(variables), 0o644)
    # A shell that ssh starts for a command reads no profile.
    source_first("/etc/bash.bashrc", _PROFILE)
    if os.path.exists("/etc/bashrc"):
        source_first("/etc/bashrc", _PROFILE)
    # PAM reads it for programs without a shell.
    kept = read("/etc/environment").partition(f"{_MARK}\n")[0]
    lines = [f'{name}="{value}"\n' for name, value in variables.items() if '"' not in value]
    put("/etc/environment", f"{kept}{_MARK}\n{''.join(lines)}", 0o644)


def exports(variables: dict[str, str]) -> str:
    return "".join(f"export {name}='{value}'\n" for name, value in variables.items() if "'" not in value)


def source_first(path: str, profile: str) -> None:
    """Let bash read the variables first, because many such files return early in a non-interactive shell."""
    line, before = f"[ -r {profile} ] && . {profile}\n", read(path)
    if line not in before:
        put(path, line + before, 0o644)


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def main() -> int:
    host = os.environ.get("GCE_METADATA_HOST", "169.254.169.254")
    instance = metadata(host)
    variables = script_environment(host, instance)
    attributes = instance["attributes"]
    if not is_shared():
        os.chdir("/")
    if KIND == "startup":
        intercept_power_commands()
    code = run_all(attributes, variables)
    if KIND == "startup":
        restore_power_commands()
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
