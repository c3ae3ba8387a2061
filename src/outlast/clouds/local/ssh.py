"""ssh access to machines of the local cloud: keys, configuration of sshd, and the entry of a session.

    ssh/host_key, host_key.pub   ssh/keys/<user>   authorized keys        ssh/admitted   keys that were added later
    ssh/session                  the program of a session: it enters the machine         ssh/init   the pid of its init

In modes without their own network no server listens: the client starts `sshd -i` as its ProxyCommand. That needs no
port, leaves no process behind, and only this user can connect.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
from typing import Any

from outlast.clouds.cloud import SshAccess
from outlast.clouds.local.files import wait_lock
from outlast.clouds.local.folder import Folder
from outlast.errors import BadRequest, CloudError

ATTRIBUTE_KEYS = "ssh-keys"
_SSHD_PLACES = ("/usr/sbin/sshd", "/usr/local/sbin/sshd", "/sbin/sshd", "/opt/homebrew/sbin/sshd")
# Inside a machine, sshd reads a user's keys as that user. On this computer the cloud's folder keeps others out.
_PASSABLE = 0o711
_SFTP_PLACES = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
    "/usr/libexec/sftp-server",
)

_CONFIG = """\
HostKey {ssh_dir}/host_key
AuthorizedKeysFile {ssh_dir}/keys/%u
PidFile none
UsePAM no
PermitRootLogin prohibit-password
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
UseDNS no
PrintMotd no
PrintLastLog no
MaxSessions 100
MaxStartups 100
AllowTcpForwarding yes
AcceptEnv LANG LC_* TERM COLORTERM
Subsystem sftp internal-sftp
"""


def find_sshd() -> str:
    return shutil.which("sshd") or next((path for path in _SSHD_PLACES if os.path.exists(path)), "")


def access(folder: Folder) -> SshAccess:
    """Return how to reach a running machine by ssh. The caller holds the cloud's lock."""
    sshd = find_sshd()
    if not sshd:
        raise BadRequest("this computer has no ssh server", hint="install one: apt install openssh-server")
    prepare(folder)
    state = folder.state() or {}
    with open(f"{folder.path}/ssh/host_key.pub", encoding="ascii") as file:
        host_key = " ".join(file.read().split()[:2])
    proxy = ""
    if not state.get("ssh_port"):
        _prepare_client_side(folder)
        proxy = shlex.join([sshd, "-i", "-f", f"{folder.path}/ssh/sshd_config"])
    return SshAccess(
        host=str(state.get("address", "")),
        port=int(state.get("ssh_port") or 22),
        user=login_name(folder),
        proxy_command=proxy,
        host_keys=(host_key,),
    )


def login_name(folder: Folder) -> str:
    """Return the login name: root where the machine runs sshd, else the user of this process."""
    if (folder.facts() or {}).get("mode") == "root":
        return "root"
    return pwd.getpwuid(os.geteuid()).pw_name


def admit(folder: Folder, ssh_key: str) -> None:
    """Add an authorized key. The caller holds the cloud's lock."""
    line = ssh_key.strip()
    if "\n" in line or len(line.split()) < 2 or "\0" in line:
        raise BadRequest(f"invalid public ssh key `{line[:40]}`", hint="expected one line, as in `id_ed25519.pub`")
    os.makedirs(f"{folder.path}/ssh", mode=_PASSABLE, exist_ok=True)
    path = f"{folder.path}/ssh/admitted"
    if line not in _lines(path):
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    write_keys(folder)


def write_keys(folder: Folder) -> None:
    """Write the authorized keys: those from the launch, from the metadata, and those admitted since."""
    own = login_name(folder)
    keys = {own: [*(folder.facts() or {}).get("ssh_keys", []), *_lines(f"{folder.path}/ssh/admitted")]}
    for line in folder.attributes().get(ATTRIBUTE_KEYS, "").splitlines():
        # GCE's form: `ada:ssh-ed25519 AAAA… ada@home`.
        user, colon, key = line.strip().partition(":")
        if colon and " " not in user and len(key.split()) >= 2 and _is_plain(user):
            keys.setdefault(user, []).append(key)
            keys[own] = [*keys[own], key] if user != own else keys[own]
    os.makedirs(f"{folder.path}/ssh/keys", mode=0o755, exist_ok=True)
    for user, lines in keys.items():
        draft = f"{folder.path}/ssh/keys/.{user}.{os.getpid()}"
        with open(draft, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in dict.fromkeys(lines))
        os.replace(draft, f"{folder.path}/ssh/keys/{user}")


def prepare(folder: Folder) -> None:
    """Create the host key if necessary, and write the authorized keys. May be repeated."""
    ssh_dir = f"{folder.path}/ssh"
    os.makedirs(ssh_dir, mode=_PASSABLE, exist_ok=True)
    lock = wait_lock(f"{ssh_dir}/.lock")
    try:
        if not os.path.exists(f"{ssh_dir}/host_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", folder.name, "-f", f"{ssh_dir}/.host_key"]
            try:
                subprocess.run(command, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as problem:
                why = f"could not create a host key with ssh-keygen: {problem}"
                raise CloudError(why, hint="install the openssh client") from problem
            os.replace(f"{ssh_dir}/.host_key.pub", f"{ssh_dir}/host_key.pub")
            os.replace(f"{ssh_dir}/.host_key", f"{ssh_dir}/host_key")
        write_keys(folder)
    finally:
        os.close(lock)


def server_config(ssh_dir: str) -> str:
    """Return a configuration of sshd. `ssh_dir` is the machine's `ssh/` folder as sshd sees it."""
    return _CONFIG.format(ssh_dir=ssh_dir)


def _prepare_client_side(folder: Folder) -> None:
    """Write the configuration of a client's `sshd -i`, and the program that enters the machine."""
    ssh_dir = f"{folder.path}/ssh"
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    config = server_config(ssh_dir)
    if (folder.facts() or {}).get("mode") == "userns":
        # This server is not in the machine's network: it would forward ports of this computer.
        config = config.replace("AllowTcpForwarding yes", "AllowTcpForwarding no")
    config += f"ForceCommand {shlex.quote(ssh_dir)}/session\n"
    for name, text, permissions in (("sshd_config", config, 0o600), ("session", _session(folder), 0o700)):
        with open(f"{ssh_dir}/.{name}", "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(f"{ssh_dir}/.{name}", permissions)
        os.replace(f"{ssh_dir}/.{name}", f"{ssh_dir}/{name}")


def _session(folder: Folder) -> str:
    """Return a shell program that enters the machine and runs the session's command, or a shell."""
    from outlast.clouds.local.init import shell

    mode = str((folder.facts() or {}).get("mode"))
    state = folder.state() or {}
    variables = _variables(folder, mode, state)
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    sftp = next((path for path in _SFTP_PLACES if os.path.exists(path)), "sftp-server")
    inside = (
        f'cd "$HOME"; case "$SSH_ORIGINAL_COMMAND" in "") exec {shell()} -l;; '
        f'internal-sftp|*/sftp-server) exec {sftp};; *) exec {shell()} -c "$SSH_ORIGINAL_COMMAND";; esac'
    )
    enter = _enter_command(mode)
    return (
        "#!/bin/sh\n"
        f"read -r init 2>/dev/null < {shlex.quote(folder.path)}/ssh/init || "
        f'{{ echo "outlast: machine {folder.name} is not running" >&2; exit 255; }}\n'
        f"{exports}exec {enter} /bin/sh -c {shlex.quote(inside)}\n"
    )


def _variables(folder: Folder, mode: str, state: dict[str, Any]) -> dict[str, str]:
    if mode in ("root", "userns"):
        from outlast.clouds.local.rootfs import environment

        return environment(folder)
    from outlast.clouds.local import loopback

    return loopback.environment(folder, ":".join(map(str, state.get("metadata", []))))


def _enter_command(mode: str) -> str:
    if mode == "plain" or sys.platform != "linux":
        return ""
    ours = "" if os.geteuid() == 0 else "-U --preserve-credentials "
    network = "-n -r -w " if mode in ("root", "userns") else ""
    return f'nsenter -t "$init" {ours}-m -u -i -p {network}--'


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def _is_plain(user: str) -> bool:
    return user.replace("-", "").replace("_", "").replace(".", "").isalnum() and not user.startswith((".", "-"))
