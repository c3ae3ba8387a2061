"""Proving outlast on a cloud account: the runner of the steps, and deleting what a verification left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from outlast.app.clouds import clouds
from outlast.clouds.cloud import HasVerification
from outlast.clouds.traits import BUILT_IN, known_clouds
from outlast.errors import UsageError

if TYPE_CHECKING:
    from outlast.verify.result import VerifyResult
    from outlast.verify.runner import Runner

Report = Callable[[str], None]


def accounts() -> list[str]:
    """Return the clouds with an account: those that `outlast setup` prepares, and those of other distributions."""
    return [name for name in known_clouds() if name not in BUILT_IN or BUILT_IN[name].setup_command]


def _verifiable(cloud_name: str) -> Any:
    """Return a cloud that is both a `Cloud` and `HasVerification`, for which Python has no type."""
    cloud = clouds()[cloud_name]
    if not isinstance(cloud, HasVerification):
        why = f"--cloud: `{cloud_name}` has no account to verify"
        raise UsageError(why, hint="`outlast drill` tests a training on it")
    return cloud


def bucket_of(cloud_name: str, given: str = "") -> str:
    """Return the bucket of a verification: the given one, or that of `outlast setup`. Raises UsageError."""
    cloud = _verifiable(cloud_name)
    return given or str(cloud.default_bucket())


def new_verification(
    cloud_name: str,
    bucket: str,
    *,
    region: str = "",
    gpu: str = "",
    gpus: int = 0,
    max_usd: float = 0.0,
    report: Report,
    done: Callable[[VerifyResult], None],
) -> Runner:
    """Return the runner of the steps; nothing is done yet."""
    from outlast.verify.runner import Runner

    return Runner(
        _verifiable(cloud_name),
        bucket_url=bucket,
        region=region,
        gpu=gpu,
        gpus=gpus,
        max_usd=max_usd,
        environment=os.environ,
        report=report,
        done=done,
    )


def recording(runner: Runner, folder: str) -> AbstractContextManager[Any]:
    """Save the answers to a runner in the block, scrubbed; without a folder nothing is saved."""
    from outlast.verify.recorder import recorded

    return recorded(runner.cloud, folder) if folder else nullcontext()


def clean_up(id: str, cloud_name: str, bucket: str, *, report: Report) -> Iterator[tuple[str, str]]:
    """Delete what a verification left, by its id or `all`; yield each id with a sentence."""
    from outlast.verify.clean import clean
    from outlast.verify.record import find

    for record in find(id, bucket):
        if record.cloud == cloud_name:
            yield record.id, clean(record, clouds()[record.cloud], report=report)
