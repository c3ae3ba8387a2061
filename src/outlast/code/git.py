"""Queries to git: the files and the state of a work tree, and the commit of a remote ref.

git never prompts and never changes the repository, and credentials of a URL never appear in a message. A missing git or
repository is not an error.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from outlast.errors import SpecError
from outlast.store.traits import is_url

DIFF_BYTES_MAX = 1 << 20
_QUERY_SECONDS = 120
_REMOTE_SECONDS = 30
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY")
# A git hook that runs outlast sets these to its own repository.
_LOCAL = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")


class WorkTree(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a folder in git; empty outside a repository."""

    commit: str = ""
    dirty: bool = False
    diff: str = ""


def git_environment() -> dict[str, str]:
    """Return the environment of git: no password prompts, no locks, untranslated output."""
    environment = {name: value for name, value in os.environ.items() if name not in _LOCAL}
    environment.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=15")
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", "SSH_ASKPASS": ""}
    return environment


def run_git(folder: str, *arguments: str) -> bytes | None:
    """Return the output of a git command in a folder; None if git is missing or fails."""
    try:
        answer = subprocess.run(
            ["git", "-C", folder, *arguments],
            env=git_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_QUERY_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


def listed(folder: str) -> frozenset[str] | None:
    """Return the files below the folder that are tracked or not ignored; None without git or a repository.

    A nested repository is listed as one name, with or without a `/`.
    """
    answer = run_git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if answer is None or run_git(folder, "check-ignore", "-q", "--", ".") is not None:
        return None  # the folder itself is ignored: use only the rules inside it
    return frozenset(os.fsdecode(name).rstrip("/") for name in answer.split(b"\0") if name)


def work_tree(folder: str, *, shown: Callable[[str], bool]) -> WorkTree:
    """Return commit, dirty flag and diff of the folder. The diff is limited to files for which `shown` is true."""
    if run_git(folder, "rev-parse", "--is-inside-work-tree") != b"true\n":
        return WorkTree()
    commit = (run_git(folder, "rev-parse", "--verify", "-q", "HEAD^{commit}") or b"").decode().strip()
    status = run_git(folder, "status", "--porcelain", "-z", "--untracked-files=normal", "--", ".")
    if not commit:
        return WorkTree(dirty=bool(status))
    names = run_git(folder, "diff", "HEAD", "--name-only", "-z", "--no-renames", "--relative", "--", ".") or b""
    changed = [os.fsdecode(name) for name in names.split(b"\0") if name]
    return WorkTree(commit=commit, dirty=bool(status), diff=_diff(folder, [name for name in changed if shown(name)]))


_DIFF = ("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--relative")
# The user's git settings must not change the diff, nor include the content of submodules.
_DIFF_PLAIN = ("--submodule=short", "--src-prefix=a/", "--dst-prefix=b/")


def _diff(folder: str, names: Sequence[str]) -> str:
    """Return the diff of exactly these files."""
    pieces, size = [], 0
    for first in range(0, len(names), 500):
        wanted = [f":(literal){name}" for name in names[first : first + 500]]
        answer = _without_keys(run_git(folder, *_DIFF, *_DIFF_PLAIN, "--", *wanted) or b"")
        pieces.append(answer)
        size += len(answer)
        if size > DIFF_BYTES_MAX:
            break
    whole = b"".join(pieces)
    if len(whole) <= DIFF_BYTES_MAX:
        return whole.decode(errors="replace")
    kept = whole[: whole.rfind(b"\n", 0, DIFF_BYTES_MAX) + 1].decode(errors="replace")
    return kept + f"... truncated at {DIFF_BYTES_MAX} bytes\n"


def _without_keys(diff: bytes) -> bytes:
    """Remove the files that contain or contained a private key."""
    sections = re.split(rb"^(?=diff --git )", diff, flags=re.MULTILINE)
    return b"".join(section for section in sections if not _PRIVATE_KEY.search(section))


def public_url(url: str) -> str:
    """Return the URL without passwords; for http also without the user (often a token) and the query."""
    if not is_url(url):
        return url
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    web = parts.scheme in ("http", "https")
    kept = "" if web or not at else user.split(":")[0] + "@"
    return urlunsplit((parts.scheme, kept + host, parts.path, "" if web else parts.query, ""))


def scrub(text: str, url: str) -> str:
    """Replace all credentials of the URL in a text, in every form that git may print."""
    text = text.replace(url, public_url(url))
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets(url: str) -> Iterable[str]:
    if not is_url(url):
        return set()
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    name, _, password = user.partition(":")
    found = {password, unquote(password), parts.query}
    if parts.scheme in ("http", "https"):
        found |= {user, name, unquote(name)}
    return {secret for secret in found if secret}


def check_remote(url: str, ref: str) -> None:
    """Raise SpecError if git would parse URL or ref as an option."""
    problems = [
        f"[code] {field} = {value!r}: must not begin with `-`"
        for field, value in (("git", public_url(url)), ("ref", ref))
        if value.startswith("-")
    ]
    if not url:
        problems.append("[code] git: is empty")
    if problems:
        raise SpecError(problems)


def remote_url(folder: str) -> str:
    """Return the URL of the remote `origin` of the repository at a folder; empty if there is none."""
    return (run_git(folder, "remote", "get-url", "origin") or b"").decode(errors="replace").strip()


def is_commit(ref: str) -> bool:
    return bool(_COMMIT.fullmatch(ref))


def resolve(url: str, ref: str) -> str:
    """Return the current commit of a ref (branch, tag, commit; empty: the default branch).

    Empty without git, network or access, or for a short commit id; the machine, which may have other credentials, then
    resolves it. Raises SpecError if the repository has no such ref.
    """
    check_remote(url, ref)
    if is_commit(ref):
        return ref
    try:
        answer = subprocess.run(
            ["git", "ls-remote", "--", url],
            env=git_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_REMOTE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if answer.returncode != 0:
        return ""
    lines = answer.stdout.decode(errors="replace").splitlines()
    commits = {name: commit for commit, _, name in (line.partition("\t") for line in lines)}
    for name in _full_names(ref):
        if name in commits:
            return commits[name]
    if re.fullmatch(r"[0-9a-f]{4,63}", ref):
        return ""
    raise ref_not_found(url, ref)


def _full_names(ref: str) -> list[str]:
    """Return the full names that a ref may have, in git's order. An annotated tag means its commit (`^{}`)."""
    if not ref:
        return ["HEAD"]
    names = [ref, f"refs/{ref}", f"refs/tags/{ref}", f"refs/heads/{ref}"]
    return [full for name in names for full in (name + "^{}", name)]


def ref_not_found(url: str, ref: str) -> SpecError:
    return SpecError(
        [f"[code] ref = {ref!r}: {public_url(url)} has no such branch, tag or commit"],
        hint="was it pushed? `git ls-remote` lists the refs",
    )
