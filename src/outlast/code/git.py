"""Asking the real git: what a work tree holds, in what state it is, what a remote ref stands for.

Refuses to prompt, to change the repository it asks, and to let the credentials of a URL into any message. No git and
no repository are answers, not errors.
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
_ASK_SECONDS = 120
_REMOTE_SECONDS = 30
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY")
# A hook of git runs us with these set to a repository that nobody asked about.
_LOCAL = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")


class WorkTree(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a folder in git; all empty where there is none."""

    commit: str = ""
    dirty: bool = False
    diff: str = ""


def git_environment() -> dict[str, str]:
    """For every git we start: it asks nobody for a password, takes no locks, and speaks the language we parse."""
    environment = {name: value for name, value in os.environ.items() if name not in _LOCAL}
    environment.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=15")
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", "SSH_ASKPASS": ""}
    return environment


def ask(folder: str, *arguments: str) -> bytes | None:
    """What git says about the folder; None if git is not there or says no."""
    try:
        answer = subprocess.run(
            ["git", "-C", folder, *arguments],
            env=git_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_ASK_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


def listed(folder: str) -> frozenset[str] | None:
    """Files of the work tree below the folder, tracked or not ignored; None if git cannot tell.

    A repository within the repository is listed as one name, with or without a `/`.
    """
    answer = ask(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if answer is None or ask(folder, "check-ignore", "-q", "--", ".") is not None:
        return None  # a folder that is ignored as a whole, and is asked for all the same, is judged by its own rules
    return frozenset(os.fsdecode(name).rstrip("/") for name in answer.split(b"\0") if name)


def work_tree(folder: str, *, shown: Callable[[str], bool]) -> WorkTree:
    """Commit, dirtiness and diff of the folder. The diff holds only files that `shown` allows, by relative path."""
    if ask(folder, "rev-parse", "--is-inside-work-tree") != b"true\n":
        return WorkTree()
    commit = (ask(folder, "rev-parse", "--verify", "-q", "HEAD^{commit}") or b"").decode().strip()
    status = ask(folder, "status", "--porcelain", "-z", "--untracked-files=normal", "--", ".")
    if not commit:
        return WorkTree(dirty=bool(status))
    names = ask(folder, "diff", "HEAD", "--name-only", "-z", "--no-renames", "--relative", "--", ".") or b""
    changed = [os.fsdecode(name) for name in names.split(b"\0") if name]
    return WorkTree(commit=commit, dirty=bool(status), diff=_diff(folder, [name for name in changed if shown(name)]))


_DIFF = ("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--relative")
# The user's own settings must not change what is recorded, nor put the insides of a submodule into it.
_DIFF_PLAIN = ("--submodule=short", "--src-prefix=a/", "--dst-prefix=b/")


def _diff(folder: str, names: Sequence[str]) -> str:
    """The diff of just these files. Each is named to git, so that nothing else can slip in."""
    pieces, size = [], 0
    for first in range(0, len(names), 500):
        wanted = [f":(literal){name}" for name in names[first : first + 500]]
        answer = _without_keys(ask(folder, *_DIFF, *_DIFF_PLAIN, "--", *wanted) or b"")
        pieces.append(answer)
        size += len(answer)
        if size > DIFF_BYTES_MAX:
            break
    whole = b"".join(pieces)
    if len(whole) <= DIFF_BYTES_MAX:
        return whole.decode(errors="replace")
    kept = whole[: whole.rfind(b"\n", 0, DIFF_BYTES_MAX) + 1].decode(errors="replace")
    return kept + f"... cut at {DIFF_BYTES_MAX} bytes\n"


def _without_keys(diff: bytes) -> bytes:
    """Without the files in which a private key stands or stood, whatever they are called."""
    sections = re.split(rb"^(?=diff --git )", diff, flags=re.MULTILINE)
    return b"".join(section for section in sections if not _PRIVATE_KEY.search(section))


def public_url(url: str) -> str:
    """The URL without what may be a secret: passwords; for http also the user (often a token) and the query."""
    if not is_url(url):
        return url
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    web = parts.scheme in ("http", "https")
    kept = "" if web or not at else user.split(":")[0] + "@"
    return urlunsplit((parts.scheme, kept + host, parts.path, "" if web else parts.query, ""))


def scrub(text: str, url: str) -> str:
    """The text, in which no credentials of the URL stand any more, however git has written them."""
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
    """Raises SpecError for what git would take for an option."""
    problems = [
        f"[code] {field} = {value!r}: may not begin with `-`"
        for field, value in (("git", public_url(url)), ("ref", ref))
        if value.startswith("-")
    ]
    if not url:
        problems.append("[code] git: is empty")
    if problems:
        raise SpecError(problems)


def is_commit(ref: str) -> bool:
    return bool(_COMMIT.fullmatch(ref))


def resolve(url: str, ref: str) -> str:
    """The commit that the ref (branch, tag, commit; empty: the default branch) stands for at this moment.

    Empty if it cannot be told from here: no git, no network, no access, or a short commit id. Then the machine, which
    may have other credentials, decides. Raises SpecError if the repository answers and has no such ref.
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
    for name in _meanings(ref):
        if name in commits:
            return commits[name]
    if re.fullmatch(r"[0-9a-f]{4,63}", ref):
        return ""
    raise ref_not_found(url, ref)


def _meanings(ref: str) -> list[str]:
    """What a ref may mean, in the order of git. An annotated tag means the commit behind it (`^{}`)."""
    if not ref:
        return ["HEAD"]
    names = [ref, f"refs/{ref}", f"refs/tags/{ref}", f"refs/heads/{ref}"]
    return [meaning for name in names for meaning in (name + "^{}", name)]


def ref_not_found(url: str, ref: str) -> SpecError:
    return SpecError(
        [f"[code] ref = {ref!r}: {public_url(url)} has no such branch, tag or commit"],
        hint="was it pushed? `git ls-remote` lists what is there",
    )
