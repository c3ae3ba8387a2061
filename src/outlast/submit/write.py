"""Writing of a prepared run, in an order that survives a crash between any two writes."""

from __future__ import annotations

from collections.abc import Mapping

import outlast
from outlast.clouds.cloud import Cloud
from outlast.errors import BeingCollected
from outlast.notify.outbox import open_outbox
from outlast.runs.deleted import split_number, used_up_to
from outlast.runs.events import Submitted
from outlast.store import access
from outlast.store.shared import check_references
from outlast.submit.prepare import PreparedRun
from outlast.workspace import RunRequest, Workspace


def write_run(workspace: Workspace, clouds: Mapping[str, Cloud], prepared: PreparedRun, *, run: str = "") -> RunRequest:
    """Write a run under the next free number of its name. With a name (`run`) the call may be repeated."""
    request = workspace.reserve(
        prepared.spec, prepared.code, who=prepared.who, version=outlast.__version__, path=prepared.path, run=run
    )
    _announce(workspace, clouds, prepared, request, repeated=bool(run))
    return request


def write_member(workspace: Workspace, clouds: Mapping[str, Cloud], prepared: PreparedRun, *, run: str) -> RunRequest:
    """Write a run of a group under its own name. Raises Exists."""
    request = write_request(workspace, prepared, run)
    _announce(workspace, clouds, prepared, request)
    return request


def write_request(workspace: Workspace, prepared: PreparedRun, run: str) -> RunRequest:
    """Write the request alone: no supervisor starts the run before it is announced. Raises Exists."""
    request = RunRequest(
        run=run,
        spec=prepared.spec,
        code=prepared.code,
        who=prepared.who,
        submitted_at=workspace.clock(),
        version=outlast.__version__,
        path=prepared.path,
    )
    return workspace.write_request(request)


def _announce(
    workspace: Workspace,
    clouds: Mapping[str, Cloud],
    prepared: PreparedRun,
    request: RunRequest,
    *,
    repeated: bool = False,
) -> None:
    """Make a run whose request is written visible to supervisors: wakeup, secrets, `Submitted`."""
    _check_name(workspace, request.run)
    check_references(workspace.bucket, request.code.shared_keys, each=workspace.each)
    if request.spec.notify is not None and request.spec.notify.targets:
        open_outbox(workspace, request.run)
    # The wakeup goes first: if we crash right after `Submitted`, supervisors find the run by it.
    workspace.wake(request.run, durable=True)
    name = workspace.secrets_name(request.run)
    for cloud_name in request.spec.machine.clouds:
        if prepared.secrets:
            clouds[cloud_name].put_secrets(name, prepared.secrets)
        if cloud_name in prepared.store_keys:
            clouds[cloud_name].put_secrets(access.key_name(name), prepared.store_keys[cloud_name])
    submitted = Submitted(who=request.who, at=workspace.clock(), by=request.who)
    story, nonce = workspace.story(request.run), workspace.ids()
    if repeated:
        story.append(submitted, nonce=nonce)  # has no effect if an earlier call appended it
    else:
        story.append_or_raise(submitted, nonce=nonce, new=True)
    # A supervisor that read the wakeup before the event found no run.
    workspace.hint_wakeup()


def _check_name(workspace: Workspace, run: str) -> None:
    """Raise BeingCollected if a run of this name was submitted, ended and deleted since its number was chosen."""
    name, number = split_number(run)
    if number and number <= used_up_to(workspace.bucket, name):
        raise BeingCollected(f"`{run}` is the name of a deleted run", hint="nothing was started; submit it again")
