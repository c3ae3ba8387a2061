"""`outlast handover`."""

from __future__ import annotations

import secrets
import time

import click

from outlast.cli.options import run_argument, workspace_option
from outlast.cli.terminal import find_workspace
from outlast.errors import UsageError
from outlast.runs.events import OwnerChanged


@click.command()
@run_argument
@click.argument("user", metavar="USER")
@workspace_option
def handover(run_name: str, user: str, workspace_url: str) -> int:
    """Give a run that lives to USER: listings, costs and limits are theirs from now on. Its story says so."""
    from outlast.user import current_user

    if not user.strip() or not user.isprintable() or len(user) > 100:
        raise UsageError(f"USER: {user!r} is no name of a user")
    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    story = workspace.story(run)
    if story.refresh().who == user:
        click.echo(f"{run} is {user}'s already")
        return 0
    event = OwnerChanged(who=user, at=time.time(), by=current_user())
    if not story.append(event, nonce=secrets.token_hex(8)):
        raise UsageError(f"{run} is over: {story.state.ending}; whose it was stays as it is")
    # Whoever supervises counts it for another from now on.
    workspace.wake(run)
    click.echo(f"{run} is {user}'s now")
    return 0
