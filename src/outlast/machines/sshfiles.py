"""The files that ssh reads for us: our key pair, pinned host keys, a `Host outlast-NAME` block a machine.

All in one folder of our own. The user's `~/.ssh` gets one line, and only from `include_in_users_config`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator

from outlast import private
from outlast.clouds.cloud import SshAccess
from outlast.errors import OutlastError, UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
# The path of a unix socket ends at 104 bytes (108 on Linux), and ssh adds 17 of its own while it makes one.
_SOCKET_MAX = 104 - 17 - 1
_HEAD = "# Written by outlast; changes are lost. `outlast machine ssh-config` says how it is used.\n"


def folder() -> str:
    """Where our ssh files are: `OUTLAST_SSH_DIR`, or a folder in the user's home. Made on demand, for us alone."""
    path = os.path.abspath(os.path.expanduser(os.environ.get("OUTLAST_SSH_DIR") or "~/.outlast/ssh"))
    try:
        os.makedirs(private.prepare(path), mode=0o700, exist_ok=True)
        if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
            os.chmod(path, 0o700)
    except OSError as problem:
        raise OutlastError(
            f"the folder for ssh keys cannot be used: {problem.strerror}: {path}",
            hint="say with OUTLAST_SSH_DIR where else they may be",
        ) from problem
    return path


def alias(name: str) -> str:
    """What a machine is called in the ssh config. Raises UsageError for what is no name."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"`{name}` is no name of a machine", hint="letters, digits and dashes; see `outlast machine list`"
        )
    return f"outlast-{name}"


def config_path() -> str:
    return os.path.join(folder(), "config")


def known_hosts_path() -> str:
    return os.path.join(folder(), "known_hosts")


def need(program: str) -> str:
    """The path of a program of OpenSSH. Raises with the way to get it."""
    found = shutil.which(program)
    if found is None:
        raise OutlastError(
            f"there is no `{program}` on this computer",
            hint="install the OpenSSH client: `apt-get install openssh-client`, `dnf install openssh-clients`",
        )
    return found


def public_key() -> str:
    """Our public key; the pair is made when it is first asked for."""
    path = os.path.join(folder(), "id_ed25519")
    with _locked():
        if not os.path.exists(path) or not os.path.exists(f"{path}.pub"):
            _make_key(path)
        os.chmod(path, 0o600)
        with open(f"{path}.pub", encoding="utf-8") as file:
            return file.read().strip()


def _make_key(path: str) -> None:
    """Under another name first: whoever is cut short leaves no half of a pair."""
    program = need("ssh-keygen")
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as fresh:
        comment = f"outlast@{os.uname().nodename}"
        argv = [program, "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", f"{fresh}/key"]
        answer = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise OutlastError(f"ssh-keygen could not make a key: {(answer.stderr or answer.stdout).strip()[-300:]}")
        os.replace(f"{fresh}/key.pub", f"{path}.pub")
        os.replace(f"{fresh}/key", path)


def control_path(cloud: str, name: str, access: SshAccess) -> str:
    """The socket of the shared connection. Another address or host key is another socket, so that a connection to the
    machine's former self is never taken for one to the machine."""
    parts = [cloud, name, access.host, str(access.port), access.user, access.proxy_command, *access.host_keys]
    digest = hashlib.sha256("\0".join([folder(), *parts]).encode()).hexdigest()[:12]
    path = os.path.join(folder(), "c")
    if len(os.path.join(path, digest).encode()) > _SOCKET_MAX:
        path = f"/tmp/outlast-ssh-{os.getuid()}"
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise OutlastError(
            f"{path} is not a folder of ours alone", hint="remove it, or set OUTLAST_SSH_DIR to a short path"
        )
    return os.path.join(path, digest)


def write_machine(cloud: str, name: str, access: SshAccess) -> str:
    """Pin the host keys and write the `Host` block; the socket of the shared connection."""
    host = alias(name)
    socket = control_path(cloud, name, access)
    with _locked():
        pins = [line for line in _lines(known_hosts_path()) if line.split(" ", 1)[0] != host]
        pins += [f"{host} {key.strip()}\n" for key in access.host_keys]
        _write(known_hosts_path(), "".join(pins))
        blocks = _blocks()
        former = _socket_in(blocks.get(host, ""))
        blocks[host] = _block(cloud, name, access, socket)
        _write(config_path(), _HEAD + "".join(blocks[key] for key in sorted(blocks)))
    if former != socket:
        close_connection(former)  # to where the machine was before
    return socket


def forget_machine(name: str) -> None:
    """Take a machine's block and pins out, and end its shared connection. Repeating is fine."""
    host = alias(name)
    with _locked():
        blocks = _blocks()
        former = _socket_in(blocks.get(host, ""))
        if blocks.pop(host, None) is not None:
            _write(config_path(), _HEAD + "".join(blocks[key] for key in sorted(blocks)))
        pins = _lines(known_hosts_path())
        left = [line for line in pins if line.split(" ", 1)[0] != host]
        if left != pins:
            _write(known_hosts_path(), "".join(left))
    close_connection(former)


def close_connection(socket: str) -> None:
    """End the shared connection behind a socket; fine if there is none."""
    if not socket or not os.path.exists(socket):
        return
    argv = ["ssh", "-F", "none", "-o", f"ControlPath={_quoted(socket)}", "-O", "exit", "outlast"]
    try:
        subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False)
    except (subprocess.TimeoutExpired, FileNotFoundError):
        pass  # it hangs on a machine that is gone, and gives up by itself; or there is no ssh


def _socket_in(block: str) -> str:
    for line in block.splitlines():
        word, _, value = line.strip().partition(" ")
        if word == "ControlPath":
            return value.strip('"').replace("%%", "%")
    return ""


def machines_written(cloud: str = "") -> list[str]:
    """The machines that have a block, of one cloud or of all."""
    with _locked():
        found = _blocks()
    marks = {host: block.splitlines()[1].strip() for host, block in found.items()}
    return [host.removeprefix("outlast-") for host, mark in marks.items() if not cloud or mark == f"# on {cloud}"]


def _block(cloud: str, name: str, access: SshAccess, socket: str) -> str:
    here = folder()
    lines = [
        f"Host {alias(name)}",
        f"  # on {cloud}",
        f"  HostName {access.host}",
        f"  Port {access.port}",
        f"  User {access.user}",
        f"  HostKeyAlias {alias(name)}",
        f"  IdentityFile {_quoted(os.path.join(here, 'id_ed25519'))}",
        f"  UserKnownHostsFile {_quoted(known_hosts_path())}",
        f"  ControlPath {_quoted(socket)}",
    ]
    if access.proxy_command:
        lines.append(f"  ProxyCommand {access.proxy_command}")
    # Keys come from the cloud, so an unknown or another one is an error; a connection that is dead is given up soon.
    lines += """\
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  UpdateHostKeys no
  CheckHostIP no
  IdentitiesOnly yes
  PreferredAuthentications publickey
  ControlMaster auto
  ControlPersist 5m
  ConnectTimeout 10
  ServerAliveInterval 3
  ServerAliveCountMax 3
  TCPKeepAlive yes
  LogLevel ERROR
""".splitlines()
    return "\n".join(lines) + "\n\n"


def _quoted(path: str) -> str:
    return '"' + path.replace("%", "%%") + '"'


def _blocks() -> dict[str, str]:
    """The blocks of our config by host."""
    blocks: dict[str, str] = {}
    host = ""
    for line in _lines(config_path()):
        if line.startswith("Host "):
            host = line.split()[1]
            blocks[host] = ""
        if host:
            blocks[host] += line
    return blocks


def include_line() -> str:
    return f'Include "{config_path()}"'


def included() -> bool:
    """Whether the user's own ssh config reads ours."""
    return any(line.strip() == include_line() for line in _lines(_users_config()))


def include_in_users_config() -> bool:
    """Put one line at the top of `~/.ssh/config`, so that `ssh`, `scp`, `rsync` and editors know our machines; False if
    it was there. What the file says otherwise, its permissions, and a symbolic link in its place stay."""
    with _locked():
        if included():
            return False
        path = os.path.realpath(_users_config())
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if not os.path.exists(config_path()):
            _write(config_path(), _HEAD)
        permissions = stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else 0o600
        _write(path, f"{include_line()}\n\n{''.join(_lines(path))}", permissions=permissions)
        return True


def _users_config() -> str:
    return os.path.expanduser("~/.ssh/config")


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.readlines()
    except FileNotFoundError:
        return []


def _write(path: str, text: str, *, permissions: int = 0o600) -> None:
    """All or nothing: ssh may read at any moment."""
    handle, fresh = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".new-")
    try:
        with open(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        os.chmod(fresh, permissions)
        os.replace(fresh, path)
    finally:
        with contextlib.suppress(FileNotFoundError):  # it has its name
            os.unlink(fresh)


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One writer at a time, over all processes of this user."""
    with open(os.path.join(folder(), "lock"), "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
