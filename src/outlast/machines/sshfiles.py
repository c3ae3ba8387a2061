"""Our files for ssh: the key pair, pinned host keys, and one `Host outlast-NAME` block per machine.

They are in one folder of ours. Only `include_in_users_config` writes to the user's `~/.ssh`: one line.
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
# The path of a Unix socket has at most 104 bytes (108 on Linux), and ssh appends 17 while it creates one.
_SOCKET_MAX = 104 - 17 - 1
_HEAD = "# Written by outlast; changes are lost. `outlast machine ssh-config` explains its use.\n"


def folder() -> str:
    """Return the private folder of our ssh files, `OUTLAST_SSH_DIR` or one in the user's home; create it if needed."""
    path = os.path.abspath(os.path.expanduser(os.environ.get("OUTLAST_SSH_DIR") or "~/.outlast/ssh"))
    try:
        os.makedirs(private.prepare(path), mode=0o700, exist_ok=True)
        if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
            os.chmod(path, 0o700)
    except OSError as problem:
        raise OutlastError(
            f"cannot use the folder for ssh keys {path}: {problem.strerror}",
            hint="set OUTLAST_SSH_DIR to another folder",
        ) from problem
    return path


def alias(name: str) -> str:
    """Return a machine's host name in the ssh config. Raises UsageError for an invalid name."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"invalid machine name `{name}`", hint="use letters, digits and dashes; see `outlast machine list`"
        )
    return f"outlast-{name}"


def config_path() -> str:
    return os.path.join(folder(), "config")


def known_hosts_path() -> str:
    return os.path.join(folder(), "known_hosts")


def need(program: str) -> str:
    """Return the path of an OpenSSH program. Raises OutlastError if it is not installed."""
    found = shutil.which(program)
    if found is None:
        raise OutlastError(
            f"`{program}` is not installed on this computer",
            hint="install the OpenSSH client: `apt-get install openssh-client`, `dnf install openssh-clients`",
        )
    return found


def public_key() -> str:
    """Return our public key; create the pair if needed."""
    path = os.path.join(folder(), "id_ed25519")
    with _locked():
        if not os.path.exists(path) or not os.path.exists(f"{path}.pub"):
            _make_key(path)
        os.chmod(path, 0o600)
        with open(f"{path}.pub", encoding="utf-8") as file:
            return file.read().strip()


def _make_key(path: str) -> None:
    """Create the pair under another name first, so that a kill leaves no half of a pair."""
    program = need("ssh-keygen")
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as fresh:
        comment = f"outlast@{os.uname().nodename}"
        argv = [program, "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", f"{fresh}/key"]
        answer = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise OutlastError(f"ssh-keygen could not create a key: {(answer.stderr or answer.stdout).strip()[-300:]}")
        os.replace(f"{fresh}/key.pub", f"{path}.pub")
        os.replace(f"{fresh}/key", path)


def control_path(cloud: str, name: str, access: SshAccess) -> str:
    """Return the socket of the shared connection. It depends on address and host keys, so that an old connection to
    another machine is never reused."""
    parts = [cloud, name, access.host, str(access.port), access.user, access.proxy_command, *access.host_keys]
    digest = hashlib.sha256("\0".join([folder(), *parts]).encode()).hexdigest()[:12]
    path = os.path.join(folder(), "c")
    if len(os.path.join(path, digest).encode()) > _SOCKET_MAX:
        path = f"/tmp/outlast-ssh-{os.getuid()}"
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise OutlastError(f"other users can access {path}", hint="remove it, or set OUTLAST_SSH_DIR to a short path")
    return os.path.join(path, digest)


def write_machine(cloud: str, name: str, access: SshAccess) -> str:
    """Pin the host keys, write the `Host` block and return the socket of the shared connection."""
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
        close_connection(former)  # to the machine's former address
    return socket


def forget_machine(name: str) -> None:
    """Remove a machine's block and pins, and close its shared connection. May be repeated."""
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
    """Close the shared connection of a socket, if it exists."""
    if not socket or not os.path.exists(socket):
        return
    argv = ["ssh", "-F", "none", "-o", f"ControlPath={_quoted(socket)}", "-O", "exit", "outlast"]
    try:
        subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False)
    except (subprocess.TimeoutExpired, FileNotFoundError):
        pass  # a connection to a deleted machine ends by itself; or ssh is not installed


def _socket_in(block: str) -> str:
    for line in block.splitlines():
        word, _, value = line.strip().partition(" ")
        if word == "ControlPath":
            return value.strip('"').replace("%%", "%")
    return ""


def machines_written(cloud: str = "") -> list[str]:
    """Return the machines with a block, of one cloud or of all."""
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
    # Keys come from the cloud, so any other key is an error. Short intervals detect a dead connection soon.
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
    """Return host → block of our config."""
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
    """Return whether the user's ssh config includes ours."""
    return any(line.strip() == include_line() for line in _lines(_users_config()))


def include_in_users_config() -> bool:
    """Add one line to the top of `~/.ssh/config`, so that ssh, scp, rsync and editors find our machines.

    Return False if it was there. The rest of the file, its permissions and a symbolic link stay.
    """
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
    """Replace a file atomically, as ssh may read it at any time."""
    handle, fresh = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".new-")
    try:
        with open(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        os.chmod(fresh, permissions)
        os.replace(fresh, path)
    finally:
        with contextlib.suppress(FileNotFoundError):  # it was renamed
            os.unlink(fresh)


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Hold the lock against other processes of this user."""
    with open(os.path.join(folder(), "lock"), "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
