"""Which checkpoints stay, and the deletion of what none of them names. Refuses to guess: what cannot be read, stays."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.errors import Damaged, Missing
from outlast.runs.manifest import manifest_key, read_keys
from outlast.runs.state import Checkpoint, RunState
from outlast.spec.spec import CheckpointSpec
from outlast.store.bucket import Bucket
from outlast.store.parallel import ParallelMap, in_parallel
from outlast.store.parts import Parts, parts_prefix

# A writer that has worked on one body for so long is dead.
_STALE_S = 86400.0


def kept(checkpoints: Sequence[Checkpoint], rule: CheckpointSpec) -> list[Checkpoint]:
    """The newest `keep`, never fewer than two; for good each `keep_every`-th that was ever committed; and the best.

    Whoever is among the best now was so ever since it was committed: nothing that is kept was deleted before.
    """
    first = len(checkpoints) - max(2, rule.keep)
    names = {
        c.id for n, c in enumerate(checkpoints) if n >= first or (rule.keep_every and not (n + 1) % rule.keep_every)
    }
    names |= {c.id for c in best(checkpoints, rule)}
    return [c for c in checkpoints if c.id in names]


def best(checkpoints: Sequence[Checkpoint], rule: CheckpointSpec) -> list[Checkpoint]:
    """The best `keep_best_count` by the metric of `keep_best`, best first; of equals the oldest. One whose metric is
    not known is not among them."""
    order, _, metric = rule.keep_best.partition(":")
    known = [checkpoint for checkpoint in checkpoints if metric and metric in checkpoint.metrics]
    sign = -1.0 if order == "max" else 1.0
    return sorted(known, key=lambda checkpoint: sign * checkpoint.metrics[metric])[: rule.keep_best_count]


def prune(
    bucket: Bucket,
    run: str,
    checkpoints: Sequence[Checkpoint],
    *,
    rule: CheckpointSpec,
    parts: Parts,
    each: ParallelMap = in_parallel,
) -> int:
    """Delete the checkpoints that are not kept, and what this attempt uploaded in vain; how many objects went.

    Only for the attempt that just committed, which is the one writer. It touches parts of its own and of earlier,
    fenced attempts; a later attempt names an earlier one's parts only through what it restored, and that is among the
    newest two.
    """
    staying = kept(checkpoints, rule)
    names = {checkpoint.id for checkpoint in staying}
    old = _still_there(bucket, run, [checkpoint for checkpoint in checkpoints if checkpoint.id not in names])
    in_vain = parts.own
    if old or in_vain:
        # A manifest never changes: each is read once by an attempt, however many are kept for good.
        parts.named = {c.id: parts.named.get(c.id) or read_keys(bucket, run, c.id) for c in staying}
    needed = frozenset[str]().union(*parts.named.values())
    gone = 0
    for checkpoint, keys in old.items():
        gone += _delete(bucket, keys - needed, parts, each)
        # The manifest goes last: while it is there, a prune that was cut short is taken up again.
        bucket.delete(manifest_key(run, checkpoint))
        gone += 1
    # All that is left has a manifest that is kept: the rest of our own belongs to commits that came to nothing.
    return gone + _delete(bucket, parts.own - needed, parts, each)


def _delete(bucket: Bucket, keys: frozenset[str] | set[str], parts: Parts, each: ParallelMap) -> int:
    def delete(key: str) -> None:
        # Forgotten first: whether a deletion that failed did its work, nobody knows.
        parts.forget(key)
        bucket.delete(key)

    return len(each(delete, sorted(keys)))


def _still_there(bucket: Bucket, run: str, checkpoints: Sequence[Checkpoint]) -> dict[str, frozenset[str]]:
    """The checkpoints that no earlier prune has deleted, oldest first, with the parts that they name."""
    if not checkpoints:
        return {}
    there = set(bucket.children(f"runs/{run}/checkpoints/"))
    found: dict[str, frozenset[str]] = {}
    for checkpoint in checkpoints:
        if checkpoint.id in there:
            try:
                found[checkpoint.id] = read_keys(bucket, run, checkpoint.id)
            except (Missing, Damaged):
                continue  # unreadable: nobody can restore it, and nobody knows what it named
    return found


def collect(bucket: Bucket, run: str, state: RunState) -> int:
    """Delete what the commits of a run that is over left behind and no committed checkpoint names; how many objects.

    Also what writers left half done anywhere in the bucket, which is not counted.

    Safe because nothing can be committed any more. May be repeated, and by several at a time. A part that a zombie
    uploads after it stays.
    """
    if not state.ending:
        return 0
    bucket.remove_stale_writes(older_s=_STALE_S)
    committed = {checkpoint.id for checkpoint in state.checkpoints}
    there = bucket.children(f"runs/{run}/checkpoints/")
    try:
        needed = {key for name in there if name in committed for key in read_keys(bucket, run, name)}
    except (Missing, Damaged):
        return 0  # what it names is not known
    unneeded = [entry.key for entry in bucket.list(parts_prefix(run)) if entry.key not in needed]
    unneeded += [manifest_key(run, name) for name in there if name not in committed]
    for key in unneeded:
        bucket.delete(key)
    return len(unneeded)
