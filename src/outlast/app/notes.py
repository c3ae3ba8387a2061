"""Changes to the note and the tags of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from outlast.errors import UsageError
from outlast.runs.notes import RunNote as RunNote
from outlast.runs.notes import read_note, write_note
from outlast.workspace import Workspace

_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,49}")
_TAGS_MAX, _TEXT_MAX = 50, 10_000


def annotate(
    workspace: Workspace, run: str, *, text: str | None = None, tags: Sequence[str] = (), untag: Sequence[str] = ()
) -> RunNote:
    """Change the note and the tags of a run, and return both. Raises UsageError, and NoSuchRun."""
    from outlast.user import current_user

    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise UsageError(f"tag: invalid tag {tag!r}: expected up to 50 letters, digits and . _ / + -")
    if text is not None and len(text) > _TEXT_MAX:
        raise UsageError(f"text: a note has at most {_TEXT_MAX} characters, this one has {len(text)}")
    workspace.request(run)
    before = read_note(workspace.bucket, run)
    kept = tuple(dict.fromkeys(tag for tag in (*before.tags, *tags) if tag not in untag))
    if len(kept) > _TAGS_MAX:
        raise UsageError(f"tag: a run has at most {_TAGS_MAX} tags")
    after = RunNote(tags=kept, text=before.text if text is None else text.strip())
    if after == msgspec.structs.replace(before, by="", at=0.0):
        return before
    after = msgspec.structs.replace(after, by=current_user(), at=workspace.clock())
    write_note(workspace.bucket, run, after)
    return after
