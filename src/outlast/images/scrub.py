"""Removal of keys, histories, credentials, personal files and logs before an image is created. Pure.

The builder runs `listing`, `to_remove` decides, and the builder runs `removal` with the paths.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterable, Sequence

import msgspec

# Reason → names in a home folder.
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
# Names anywhere below home folders and folders for manually installed software.
_ANYWHERE = {
    "environment files": (".env", ".env.local", ".env.production", ".envrc"),
    "repositories": (".git", ".hg", ".svn"),
}
_KEY_NAMES = ("*.pem", "*.key", "*.ppk", "id_rsa*", "id_ed25519*", "id_ecdsa*", "id_dsa*", "*.json")
_PLACES = ("/opt", "/srv", "/usr/local", "/data", "/mnt")
# System paths, as shell globs.
_SYSTEM = {
    "ssh keys": ("/etc/ssh/ssh_host_*",),
    "traces of the machine": ("/var/lib/cloud/instance*", "/var/lib/dhcp/*", "/var/spool/mail/*", "/var/mail/*"),
    "temporary files": ("/tmp/*", "/tmp/.[!.]*", "/var/tmp/*", "/var/cache/apt/archives/*.deb"),
    "credentials": ("/etc/boto.cfg",),
}
# Mount points at which a machine may have separate file systems.
_OWN_MOUNTS = (
    *("/", "/boot", "/etc", "/home", "/opt", "/root", "/srv", "/tmp", "/usr", "/usr/local", "/var"),
    *("/var/log", "/var/tmp", "/data", "/mnt"),
)
OF_THE_BUILD = "files of the build"
_EMPTIED = ("/etc/machine-id", "/var/lib/dbus/machine-id")


class ScrubItem(msgspec.Struct, frozen=True, kw_only=True):
    """A path to remove, and the reason."""

    path: str
    why: str


def listing(*, own_root: bool, build_folder: str) -> str:
    """Return a script that prints reason, tab, path and a zero byte for each candidate on the machine's own disk.

    Without `own_root`, that disk is only the home folder and the temporary folder.
    """
    lines = [
        "shopt -s nullglob dotglob",
        # Use sudo where it needs no password, to see files of root.
        'sudo=""; [ "$(id -u)" = 0 ] || ! sudo -n true 2>/dev/null || sudo="sudo -n"',
        'emit() { local why=$1; shift; for path in "$@"; do printf "%s\\t%s\\0" "$why" "$path"; done; }',
        'exists() { $sudo test -e "$1" || $sudo test -L "$1"; }',
        'homes=("$HOME")',
        f'emit "{OF_THE_BUILD}" "$HOME/{build_folder}"',
    ]
    if own_root:
        lines.append(
            'for home in /root /home/*; do [ "$home" = "$HOME" ] || ! $sudo test -d "$home" || homes+=("$home"); done'
        )
    lines.append('for home in "${homes[@]}"; do')
    for why, names in _AT_HOME.items():
        for name in names:
            lines.append(f'  ! exists "$home/{name}" || emit {shlex.quote(why)} "$home/{name}"')
    lines += ["done", 'places=("${homes[@]}")']
    if own_root:
        lines.append(f"for place in {' '.join(_PLACES)}; do [ ! -d $place ] || places+=($place); done")
    for why, names in _ANYWHERE.items():
        lines.append(_search(names, f"-prune -printf '{why}\\t%p\\0'"))
    # By content: files with a private key, or the key of a service account.
    keys = ' -type f -size -64k -exec grep -lZE -- \'-----BEGIN [A-Z ]*PRIVATE KEY-----|"private_key": *"\' {} +'
    lines.append(_search(_KEY_NAMES, keys) + " | while IFS= read -r -d '' path; do emit 'private keys' \"$path\"; done")
    if own_root:
        for why, globs in _SYSTEM.items():
            lines.append(f'for path in {" ".join(globs)}; do ! exists "$path" || emit {shlex.quote(why)} "$path"; done')
        # Only files: many services do not start without their log folder.
        lines.append("$sudo find /var/log -xdev -type f -size +0 -printf 'logs\\t%p\\0' 2>/dev/null")
        lines += [f'[ ! -s {path} ] || emit "identity of the machine (emptied)" {path}' for path in _EMPTIED]
    else:
        lines.append('[ -z "${TMPDIR:-}" ] || emit "temporary files" "$TMPDIR"/*')
    return "\n".join(lines) + "\nexit 0\n"


def _search(names: Sequence[str], action: str) -> str:
    tests = " -o ".join(f"-name {shlex.quote(name)}" for name in names)
    return f'$sudo find "${{places[@]}}" -xdev \\( {tests} \\) {action} 2>/dev/null'


def parse_listing(body: bytes) -> list[ScrubItem]:
    """Return each path once, with its first reason."""
    found: dict[str, str] = {}
    for record in body.decode("utf-8", "surrogateescape").split("\0"):
        why, tab, path = record.partition("\t")
        if tab and path.startswith("/"):
            found.setdefault(path, why)
    return [ScrubItem(path=path, why=why) for path, why in found.items()]


class DiskMount(msgspec.Struct, frozen=True, kw_only=True):
    """A mount of the machine. `whole`: the root of a file system, not a folder of one."""

    point: str
    whole: bool


def parse_mounts(text: str) -> list[DiskMount]:
    """Parse `/proc/self/mountinfo`, in which special characters are octal escapes."""
    found: list[DiskMount] = []
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) > 4:
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), fields[4])
            found.append(DiskMount(point=point, whole=fields[3] == "/" or point == "/"))
    return found


def on_the_disk(path: str, mounts: Sequence[DiskMount], *, home: str) -> bool:
    """Return whether a path is on the disk that becomes the image. Shared folders and other mounts must not change."""
    if any(mount.point.startswith(path + "/") for mount in mounts):
        return False
    return _own(_mount_of(path, mounts), mounts, home=home)


def _own(mount: DiskMount, mounts: Sequence[DiskMount], *, home: str) -> bool:
    return mount == _mount_of(home, mounts) or (mount.whole and mount.point in _OWN_MOUNTS)


def foreign_mounts(mounts: Sequence[DiskMount], *, home: str) -> list[str]:
    """Return the mount points of everything that is not on the disk."""
    return [mount.point for mount in mounts if not _own(mount, mounts, home=home)]


def _mount_of(path: str, mounts: Sequence[DiskMount]) -> DiskMount:
    above = {path, "/", *_above(path)}
    # The last mount at a path hides earlier ones.
    fits = [mount for mount in mounts if mount.point in above]
    return max(reversed(fits), key=lambda mount: len(mount.point), default=DiskMount(point="", whole=False))


def to_remove(
    found: Iterable[ScrubItem], *, keep: Sequence[str], home: str, mounts: Sequence[DiskMount]
) -> list[ScrubItem]:
    """Return the paths to remove: those on the disk, without kept ones and those below another one."""
    on_disk = (item for item in found if on_the_disk(item.path, mounts, home=home))
    removed = [item for item in on_disk if not kept(item.path, keep=keep, home=home)]
    folders = {item.path for item in removed}
    return [item for item in removed if not any(above in folders for above in _above(item.path))]


def kept(path: str, *, keep: Sequence[str], home: str) -> bool:
    """Return whether a pattern matches the path, one of its parents, or a path below it.

    A pattern is a full path, one in the home (`~/…`), or the end of a path; `*` matches any text.
    """
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
    """Return a script that removes the zero-terminated paths on stdin.

    It empties the machine's identity files instead: without them some systems do not boot.
    """
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


def to_open(paths: Sequence[str], *, own_root: bool, home: str, mounts: Sequence[DiskMount]) -> list[str]:
    """Return the folders and files on the disk that other users of the image need: the home, and installed software."""
    wanted = [home, *_PLACES, *(path for path in paths if path.startswith("/"))] if own_root else [home]
    own = (path for path in dict.fromkeys(wanted) if _own(_mount_of(path, mounts), mounts, home=home))
    return list(own)


def opening(paths: Sequence[str], *, shared: Sequence[str], skip: Sequence[str]) -> str:
    """Return a script that makes `paths` readable for all users, except those in `skip`.

    The content of `shared` becomes writable for the group as well. Those folders themselves do not: sshd refuses the
    keys of a home that others may write to.
    """
    lines = ['sudo=""; [ "$(id -u)" = 0 ] || ! sudo -n true 2>/dev/null || sudo="sudo -n"']
    pruned = " -o ".join(f"-path {shlex.quote(_literal(path))}" for path in skip)
    prune = f"\\( {pruned} \\) -prune -o " if pruned else ""
    # Change only files that need it: on an overlay each change copies the file.
    unreadable = "! -perm -a+r -o ! -perm -a+x \\( -type d -o -perm /a+x \\)"
    for path, tests, change in (
        *((path, unreadable, "a+rX") for path in paths),
        *((path, "! -perm -g+w", "g+w") for path in shared),
    ):
        top = shlex.quote(path)
        inner = "-mindepth 1 " if change == "g+w" else ""
        lines.append(
            f"! $sudo test -e {top} || "
            f"$sudo find {top} {inner}-xdev {prune}! -type l \\( {tests} \\) -exec chmod {change} -- {{}} +"
        )
    return "\n".join(lines) + "\n"


def _literal(path: str) -> str:
    """Escape a path for `find -path`, which takes a pattern."""
    return re.sub(r"([\\*?\[])", r"\\\1", path)


def summary(items: Sequence[ScrubItem], *, home: str, most: int = 60) -> list[str]:
    """Return the lines of the log, sorted by reason."""
    ordered = sorted(items, key=lambda item: (item.why, item.path))
    lines = [f"  {shown(item.path, home)}  ({item.why})" for item in ordered]
    return lines if len(lines) <= most else [*lines[:most], f"  … and {len(lines) - most} more"]


def shown(path: str, home: str) -> str:
    return "~" + path.removeprefix(home) if path.startswith(home + "/") else path
