"""Retention: which checkpoints are kept, and deletion of unreferenced parts. Unreadable objects stay."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.errors import Damaged, Missing
from outlast.runs.manifest import manifest_key, read_keys
from outlast.runs.state import Checkpoint, RunState
from outlast.spec.spec import CheckpointSpec
from outlast.store.bucket import Bucket
from outlast.store.parallel import ParallelMap, in_parallel
from outlast.store.parts import Parts, parts_prefix

# A write that is older than this belongs to a dead process.
_STALE_S = 86400.0


def kept(checkpoints: Sequence[Checkpoint], rule: CheckpointSpec) -> list[Checkpoint]:
    """Return the checkpoints to keep: the newest `keep` (at least two), every `keep_every`-th, and the best.

    A checkpoint among the best has been so since it was committed, so no kept checkpoint was deleted before.
    """
    first = len(checkpoints) - max(2, rule.keep)
    names = {
        c.id for n, c in enumerate(checkpoints) if n >= first or (rule.keep_every and not (n + 1) % rule.keep_every)
    }
    names |= {c.id for c in best(checkpoints, rule)}
    return [c for c in checkpoints if c.id in names]


def best(checkpoints: Sequence[Checkpoint], rule: CheckpointSpec) -> list[Checkpoint]:
    """Return the best `keep_best_count` by the metric of `keep_best`, best first; of equals the oldest.

    Checkpoints without the metric are not included.
    """
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
    pending: frozenset[str] = frozenset(),
    each: ParallelMap = in_parallel,
) -> int:
    """Delete the checkpoints that are not kept, and unused uploads of this attempt; return the number of objects.

    Only for the attempt that has just committed, the only writer. It deletes its own parts and those of earlier, fenced
    attempts. A later attempt uses an earlier one's parts only through the checkpoint that it restored, which is among
    the newest two. `pending` parts belong to a commit that waits for other machines of the run.
    """
    keep = kept(checkpoints, rule)
    names = {checkpoint.id for checkpoint in keep}
    old = _still_there(bucket, run, [checkpoint for checkpoint in checkpoints if checkpoint.id not in names])
    unused = parts.own
    if old or unused:
        # A manifest never changes, so an attempt reads each one once.
        parts.named = {c.id: parts.named.get(c.id) or read_keys(bucket, run, c.id) for c in keep}
    needed = pending.union(*parts.named.values())
    gone = 0
    for checkpoint, keys in old.items():
        gone += _delete(bucket, keys - needed, parts, each)
        # Delete the manifest last: while it exists, the next prune repeats an interrupted one.
        bucket.delete(manifest_key(run, checkpoint))
        gone += 1
    # Our other parts belong to commits that failed.
    return gone + _delete(bucket, parts.own - needed, parts, each)


def _delete(bucket: Bucket, keys: frozenset[str] | set[str], parts: Parts, each: ParallelMap) -> int:
    def delete(key: str) -> None:
        # Forget it first: a failed deletion may have succeeded in the store.
        parts.forget(key)
        bucket.delete(key)

    return len(each(delete, sorted(keys)))


def _still_there(bucket: Bucket, run: str, checkpoints: Sequence[Checkpoint]) -> dict[str, frozenset[str]]:
    """Return the checkpoints that still exist, oldest first, with the keys of their parts."""
    if not checkpoints:
        return {}
    existing = set(bucket.children(f"runs/{run}/checkpoints/"))
    found: dict[str, frozenset[str]] = {}
    for checkpoint in checkpoints:
        if checkpoint.id in existing:
            try:
                found[checkpoint.id] = read_keys(bucket, run, checkpoint.id)
            except (Missing, Damaged):
                continue  # damaged: its parts are unknown
    return found


def collect(bucket: Bucket, run: str, state: RunState) -> int:
    """Delete objects of an ended run that no committed checkpoint needs; return their number.

    Also removes stale partial writes anywhere in the bucket, which are not counted. This is safe because nothing can be
    committed any more. May be repeated, also concurrently. A part that a zombie uploads later stays.
    """
    if not state.ending:
        return 0
    bucket.remove_stale_writes(older_s=_STALE_S)
    committed = {checkpoint.id for checkpoint in state.checkpoints}
    existing = bucket.children(f"runs/{run}/checkpoints/")
    try:
        needed = {key for name in existing if name in committed for key in read_keys(bucket, run, name)}
    except (Missing, Damaged):
        return 0  # damaged: its parts are unknown
    unneeded = [entry.key for entry in bucket.list(parts_prefix(run)) if entry.key not in needed]
    unneeded += [manifest_key(run, name) for name in existing if name not in committed]
    for key in unneeded:
        bucket.delete(key)
    return len(unneeded)
