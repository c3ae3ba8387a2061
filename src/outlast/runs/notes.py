"""Notes and tags on runs: one small object per run, which users change at any time, also after the end."""

from __future__ import annotations

import msgspec

from outlast.errors import Damaged, Missing
from outlast.store.bucket import Bucket, Entry
from outlast.store.codec import decoded
from outlast.store.parallel import in_parallel

PREFIX = "notes/"


class RunNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What users wrote about a run, who wrote it last, and when."""

    tags: tuple[str, ...] = ()
    text: str = ""
    by: str = ""
    at: float = 0.0


NO_NOTE = RunNote()


def note_key(run: str) -> str:
    return f"{PREFIX}{run}.json"


def read_note(bucket: Bucket, run: str) -> RunNote:
    """Return the note of a run; an empty one if there is none, or if it is damaged."""
    try:
        return decoded(bucket.get(note_key(run)), RunNote, note_key(run))
    except (Missing, Damaged):
        return NO_NOTE


def write_note(bucket: Bucket, run: str, note: RunNote) -> None:
    """Store a note. Of two users at the same time, the later one wins."""
    bucket.put(note_key(run), msgspec.json.encode(note))


class NoteReader:
    """Reads the notes of all runs, each again only after a change."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._known: dict[str, tuple[Entry, RunNote]] = {}

    def read(self) -> dict[str, RunNote]:
        """Return run → note. One listing."""
        listed = {entry.key.removeprefix(PREFIX).removesuffix(".json"): entry for entry in self.bucket.list(PREFIX)}
        news = [run for run, entry in listed.items() if run not in self._known or self._known[run][0] != entry]
        notes = in_parallel(lambda run: read_note(self.bucket, run), news)
        fresh = {run: (listed[run], note) for run, note in zip(news, notes, strict=True)}
        self._known = {run: fresh.get(run) or self._known[run] for run in listed}
        return {run: note for run, (_, note) in self._known.items()}
