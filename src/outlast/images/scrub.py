"""What must not get into an image: keys, histories, credentials, personal files, logs. Says first, removes then. Pure.

The builder lists what there is (`listing`), `doomed` decides, and the builder is sent the paths to remove (`removal`).
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterable, Sequence

import msgspec

# Names in a home folder, with what they are.
_AT_HOME = {
    "ssh keys": (".ssh",),
    "history": (
        *(".bash_history", ".zsh_history", ".sh_history", ".python_history", ".node_repl_history", ".lesshst"),
        *(".viminfo", ".wget-hsts", ".mysql_history", ".psql_history", ".sqlite_history", ".rediscli_history"),
        *(".ipython/profile_default/history.sqlite", ".local/share/fish/fish_history", ".julia/logs"),
    ),
    "cloud credentials": (".aws", ".azure", ".config/gcloud", ".boto", ".gsutil", ".oci", ".config/rclone", ".s3cfg"),
    "credentials": (
        *(".netrc", ".git-credentials", ".pypirc", ".npmrc", ".docker/config.json", ".kube", ".gnupg", ".config/gh"),
        *(".kaggle/kaggle.json", ".huggingface/token", ".cache/huggingface/token", ".config/wandb", ".comet.config"),
        *(".cache/huggingface/stored_tokens", ".config/pip/pip.conf", ".pip/pip.conf", ".password-store"),
    ),
    "personal files": (".gitconfig", ".config/git", ".vscode-server", ".local/share/Trash", ".jupyter/runtime"),
}
# Names anywhere below the homes and the places where software is put by hand.
_ANYWHERE = {
    "environment files": (".env", ".env.local", ".env.production", ".envrc"),
    "repositories": (".git", ".hg", ".svn"),
}
_KEY_NAMES = ("*.pem", "*.key", "*.ppk", "id_rsa*", "id_ed25519*", "id_ecdsa*", "id_dsa*", "*.json")
_PLACES = ("/opt", "/srv", "/usr/local", "/data", "/mnt")
# Of the machine as such: paths as a shell's globs.
_SYSTEM = {
    "ssh keys": ("/etc/ssh/ssh_host_*",),
    "traces of the machine": ("/var/lib/cloud/instance*", "/var/lib/dhcp/*", "/var/spool/mail/*", "/var/mail/*"),
    "temporary files": ("/tmp/*", "/tmp/.[!.]*", "/var/tmp/*", "/var/cache/apt/archives/*.deb"),
    "credentials": ("/etc/boto.cfg",),
}
# Where a machine may have a file system of its own.
_OWN_MOUNTS = (
    *("/", "/boot", "/etc", "/home", "/opt", "/root", "/srv", "/tmp", "/usr", "/usr/local", "/var"),
    *("/var/log", "/var/tmp", "/data", "/mnt"),
)
_EMPTIED = ("/etc/machine-id", "/var/lib/dbus/machine-id")


class Find(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that will be removed, and why."""

    path: str
    why: str


def listing(*, own_root: bool, build_folder: str) -> str:
    """A script that prints `why`, a tab and a path for everything there is, ended by a zero byte each. Looks only into
    the machine's own disk: without a root of its own, that is its home and its folder for temporary files."""
    lines = [
        "shopt -s nullglob dotglob",
        # Reads what only root may read, where it may.
        'sudo=""; [ "$(id -u)" = 0 ] || ! sudo -n true 2>/dev/null || sudo="sudo -n"',
        'say() { local why=$1; shift; for path in "$@"; do printf "%s\\t%s\\0" "$why" "$path"; done; }',
        'there() { $sudo test -e "$1" || $sudo test -L "$1"; }',
        'homes=("$HOME")',
        f'say "the build\'s own files" "$HOME/{build_folder}"',
    ]
    if own_root:
        lines.append(
            'for home in /root /home/*; do [ "$home" = "$HOME" ] || ! $sudo test -d "$home" || homes+=("$home"); done'
        )
    lines.append('for home in "${homes[@]}"; do')
    for why, names in _AT_HOME.items():
        for name in names:
            lines.append(f'  ! there "$home/{name}" || say {shlex.quote(why)} "$home/{name}"')
    lines += ["done", 'places=("${homes[@]}")']
    if own_root:
        lines.append(f"for place in {' '.join(_PLACES)}; do [ ! -d $place ] || places+=($place); done")
    for why, names in _ANYWHERE.items():
        lines.append(_search(names, f"-prune -printf '{why}\\t%p\\0'"))
    # Whatever it is called: a file that holds a private key, or the key of a service account.
    keys = ' -type f -size -64k -exec grep -lZE -- \'-----BEGIN [A-Z ]*PRIVATE KEY-----|"private_key": *"\' {} +'
    lines.append(_search(_KEY_NAMES, keys) + " | while IFS= read -r -d '' path; do say 'private keys' \"$path\"; done")
    if own_root:
        for why, globs in _SYSTEM.items():
            lines.append(f'for path in {" ".join(globs)}; do ! there "$path" || say {shlex.quote(why)} "$path"; done')
        # The files alone: many services do not start without their folder for logs.
        lines.append("$sudo find /var/log -xdev -type f -size +0 -printf 'logs\\t%p\\0' 2>/dev/null")
        lines += [f'[ ! -s {path} ] || say "identity of the machine (emptied)" {path}' for path in _EMPTIED]
    else:
        lines.append('[ -z "${TMPDIR:-}" ] || say "temporary files" "$TMPDIR"/*')
    return "\n".join(lines) + "\nexit 0\n"


def _search(names: Sequence[str], action: str) -> str:
    tests = " -o ".join(f"-name {shlex.quote(name)}" for name in names)
    return f'$sudo find "${{places[@]}}" -xdev \\( {tests} \\) {action} 2>/dev/null'


def parse_listing(body: bytes) -> list[Find]:
    """Each path once, with the first reason that was given for it."""
    found: dict[str, str] = {}
    for record in body.decode("utf-8", "surrogateescape").split("\0"):
        why, tab, path = record.partition("\t")
        if tab and path.startswith("/"):
            found.setdefault(path, why)
    return [Find(path=path, why=why) for path, why in found.items()]


class DiskMount(msgspec.Struct, frozen=True, kw_only=True):
    """A file system where the machine sees it. `whole`: all of it, not a folder of one that is at home elsewhere."""

    point: str
    whole: bool


def parse_mounts(text: str) -> list[DiskMount]:
    """From `/proc/self/mountinfo`, in which odd characters are octal numbers."""
    found: list[DiskMount] = []
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) > 4:
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), fields[4])
            found.append(DiskMount(point=point, whole=fields[3] == "/" or point == "/"))
    return found


def on_the_disk(path: str, mounts: Sequence[DiskMount], *, home: str) -> bool:
    """Whether a path is on the disk that becomes the image: only then may it be removed. What a machine has from
    elsewhere (folders that it shares with others, above all) does not get into the image, and is not ours."""
    if any(mount.point.startswith(path + "/") for mount in mounts):
        return False
    mount = _mount_of(path, mounts)
    return mount == _mount_of(home, mounts) or (mount.whole and mount.point in _OWN_MOUNTS)


def _mount_of(path: str, mounts: Sequence[DiskMount]) -> DiskMount:
    above = {path, "/", *_above(path)}
    # The last of those at one place is on top of the others.
    fits = [mount for mount in mounts if mount.point in above]
    return max(reversed(fits), key=lambda mount: len(mount.point), default=DiskMount(point="", whole=False))


def doomed(found: Iterable[Find], *, keep: Sequence[str], home: str, mounts: Sequence[DiskMount]) -> list[Find]:
    """What will be removed: all that was found on the disk, but for what is kept and what goes with its folder."""
    here = (find for find in found if on_the_disk(find.path, mounts, home=home))
    wanted = [find for find in here if not kept(find.path, keep=keep, home=home)]
    folders = {find.path for find in wanted}
    return [find for find in wanted if not any(above in folders for above in _above(find.path))]


def kept(path: str, *, keep: Sequence[str], home: str) -> bool:
    """Whether a pattern names it: a full path, one in the home (`~/…`), or one that ends like it. `*` is any text. What
    is inside of something that is kept, and what holds it, is kept, too."""
    for pattern in keep:
        full = home + pattern[1:] if pattern.startswith("~/") else pattern
        full = full.rstrip("/") if full.startswith("/") else f"*/{full.rstrip('/')}"
        if any(fnmatch.fnmatchcase(part, full) for part in (path, *_above(path))):
            return True
        if full.startswith(path + "/"):
            return True
    return False


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts) - 1, 1, -1)]


def removal() -> str:
    """A script that removes the paths that it reads, each ended by a zero byte. What identifies a machine is emptied:
    without that file some systems do not boot."""
    emptied = " | ".join(_EMPTIED)
    return (
        'sudo=""; [ "$(id -u)" = 0 ] || ! sudo -n true 2>/dev/null || sudo="sudo -n"\n'
        "failed=0\n"
        "while IFS= read -r -d '' path; do\n"
        f'  case "$path" in {emptied}) $sudo truncate -s 0 -- "$path" ;;\n'
        '    *) $sudo rm -rf --one-file-system -- "$path" ;; esac || failed=1\n'
        "done\n"
        "exit $failed\n"
    )


def opening(places: Sequence[str], *, own_root: bool, place: str) -> str:
    """A script that lets the team read and use what was put on the disk: others read, the group writes."""
    lines = ['sudo=""; [ "$(id -u)" = 0 ] || ! sudo -n true 2>/dev/null || sudo="sudo -n"']
    quoted = [f'"{place}"', '"$HOME"'] if own_root else ['"$HOME"']
    quoted += [shlex.quote(path) for path in places if path.startswith("/") and own_root]
    lines.append(f"for path in {' '.join(quoted)}; do")
    # Folders of others that are mounted below are not ours to open.
    lines.append('  [ ! -e "$path" ] || $sudo find "$path" -xdev ! -type l -exec chmod a+rX,g+w -- {} +')
    lines.append("done")
    return "\n".join(lines) + "\n"


def told(finds: Sequence[Find], *, home: str, most: int = 60) -> list[str]:
    """The list for people, by reason."""
    ordered = sorted(finds, key=lambda find: (find.why, find.path))
    lines = [f"  {shown(find.path, home)}  ({find.why})" for find in ordered]
    return lines if len(lines) <= most else [*lines[:most], f"  … and {len(lines) - most} more"]


def shown(path: str, home: str) -> str:
    return "~" + path.removeprefix(home) if path.startswith(home + "/") else path
