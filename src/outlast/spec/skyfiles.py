"""The conversion of SkyPilot's `file_mounts` to `[data]`, with links at the paths that the task uses. No IO."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from outlast.spec.convert import Section, shown
from outlast.store.traits import is_url

# The folder for files that the task expects outside its code folder.
FOLDER = "mounts"
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_STORES = ("gs://", "s3://")
# Files with credentials. Data is stored in the workspace, where others may read it.
_KEYS = re.compile(
    r"~/(\.ssh|\.aws|\.config/gcloud|\.azure|\.kube|\.docker|\.gnupg|\.netrc|\.git-credentials|\.pgpass)(/|$)"
    r"|~/\.(cache/)?huggingface/token$"
)


def files_of(section: Section, env: Mapping[str, Any], place: Callable[[str], str]) -> tuple[dict[str, str], list[str]]:
    """Return `[data]`, and the first commands of the setup. `place` makes a local path relative to `outlast.toml`."""
    data: dict[str, str] = {}
    links: list[str] = []
    for there in section.table:
        value = section.take(there)
        source = _source(section, str(there), value)
        if not source:
            continue
        filled = _filled(source, env)
        if missing := _VARIABLE.search(filled):
            section.left_out(str(there), f"`{missing.group()}` in its source has no value in `envs`")
            continue
        if is_url(filled) and not filled.startswith(_STORES):
            section.left_out(str(there), f"`{filled.partition('://')[0]}://` is not supported as a source of data")
            continue
        if _KEYS.match(filled) and not filled.endswith(".pub"):
            why = f"`{filled}` may contain credentials, which are not sent as data: pass them as `[secrets]`"
            section.left_out(str(there), f"{why}, and write the file in `setup`")
            continue
        inside = _inside(str(there))
        if not inside:
            section.left_out(str(there), "is not supported as a target of data")
            continue
        data[inside] = filled if is_url(filled) else place(filled)
        if isinstance(value, Mapping) and (mode := _mode(value)) != "COPY":
            why = f"{mode}: copied before the command starts; changes are not written back"
            section.otherwise(str(there), why)
        if str(there).startswith(("/", "~/")):
            links.append(_link(str(there), inside))
            section.otherwise(
                str(there), f"a link to `{inside}` in the code folder; read-only, recreated in each attempt"
            )
    return data, links


def _source(section: Section, there: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        section.wrong(there, f"expected a path or a table, got {shown(value)}")
        return ""
    inner = Section(value, section.name(there), section.findings)
    source, bucket, store = inner.take("source"), inner.take("name"), inner.take("store")
    inner.take("mode")
    persistent = inner.take("persistent")
    inner.drop(
        {
            "type": "data is copied before the command starts",
            "config": "data is copied before the command starts",
            "mount_options": "data is copied before the command starts",
            "_is_sky_managed": "internal to SkyPilot",
            "_bucket_sub_path": "internal to SkyPilot",
            "_force_delete": "internal to SkyPilot",
        }
    )
    inner.finish("SkyPilot's storage")
    if isinstance(source, list):
        inner.left_out("source", "several sources; give each a separate path in `[data]`")
        return ""
    if not source:
        why = "a bucket for results: write results to `outputs`, checkpoints to the folder of `[checkpoint]`"
        section.left_out(there, f"{why}; the workspace stores both")
        return ""
    for field, given in (("name", bucket), ("store", store), ("persistent", persistent)):
        if given is not None:
            inner.otherwise(field, "no bucket is created: the workspace stores local files")
    return str(source)


def _mode(value: Mapping[str, Any]) -> str:
    return str(value.get("mode") or "MOUNT").upper()


def _filled(text: str, env: Mapping[str, Any]) -> str:
    def value(match: re.Match[str]) -> str:
        found = env.get(match[1] or match[2])
        return match.group() if found is None else str(found)

    return _VARIABLE.sub(value, text)


def _inside(there: str) -> str:
    """Return the path in the code folder; empty if there is none."""
    pieces = [piece for piece in there.split("/") if piece not in ("", ".")]
    if not pieces or ".." in pieces or pieces == ["~"]:
        return ""
    if pieces[0] == "~":
        return "/".join([FOLDER, "home", *pieces[1:]])
    return "/".join([FOLDER, *pieces] if there.startswith("/") else pieces)


def _link(there: str, inside: str) -> str:
    there = there.rstrip("/")
    target, parent = _quoted(there), _quoted(there.rpartition("/")[0] or "/")
    return f'test -e {target} || {{ mkdir -p {parent} && ln -sn "$PWD"/{shlex.quote(inside)} {target}; }}'


def _quoted(path: str) -> str:
    """Quote for bash, except a leading `~`, which bash expands."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else path if path == "~" else shlex.quote(path)
