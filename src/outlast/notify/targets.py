"""Delivery of one message to one target: a webhook, a command, or a service of `apprise`.

A target is a reference to a variable or file of the process that sends, so a workspace contains neither a URL nor a
command that another computer would run.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping

from outlast.errors import OutlastError
from outlast.notify.messages import Message
from outlast.spec.spec import NotifyTarget

_TIMEOUT_S = 10.0
_COMMAND_S = 30.0


class NotSent(OutlastError):
    """A message was not delivered. Another try may succeed."""


def resolve(target: NotifyTarget, environment: Mapping[str, str]) -> str:
    """Return the URL or command behind a reference; empty if this process does not have it."""
    if target.reference.startswith("file:"):
        try:
            with open(os.path.expanduser(target.reference.removeprefix("file:")), encoding="utf-8") as file:
                return file.read().strip()
        except OSError:
            return ""
    return environment.get(target.reference, "").strip()


def send(target: NotifyTarget, value: str, message: Message, *, workspace: str, identity: str) -> None:
    """Send a message. `identity` is the same in every try, so that a receiver can drop a repetition. Raises NotSent."""
    body = payload(message, workspace=workspace, identity=identity)
    match target.kind:
        case "webhook":
            _post(target, value, body, identity)
        case "command":
            _run(target, value, body)
        case "apprise":
            _apprise(target, value, message)


def payload(message: Message, *, workspace: str, identity: str) -> dict[str, object]:
    """Return the body of a webhook. Slack shows `text`, Discord `content`; both ignore the other fields."""
    return {
        "text": message.text,
        "content": message.text,
        "id": identity,
        "event": message.event,
        "run": message.run,
        "attempt": message.attempt,
        "at": message.at,
        "workspace": workspace,
    }


def _post(target: NotifyTarget, url: str, body: dict[str, object], identity: str) -> None:
    if not url.startswith(("http:", "https:")):
        raise NotSent(f"webhook {target.reference}: expected a URL that starts with https", hint="check its value")
    request = urllib.request.Request(
        url,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": identity, "User-Agent": "outlast"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
            pass
    except urllib.error.HTTPError as problem:
        raise NotSent(f"webhook {target.reference}: the server returned {problem.code}") from problem
    except (OSError, ValueError) as problem:
        # The message of an invalid URL would contain it.
        why = "invalid URL" if isinstance(problem, ValueError) else str(getattr(problem, "reason", problem))
        raise NotSent(f"webhook {target.reference}: {why}") from None


def _run(target: NotifyTarget, command: str, body: dict[str, object]) -> None:
    environment = {**os.environ, "OUTLAST_EVENT": str(body["event"]), "OUTLAST_RUN": str(body["run"])}
    environment["OUTLAST_TEXT"] = str(body["text"])
    try:
        done = subprocess.run(
            command, shell=True, input=json.dumps(body).encode(), env=environment, timeout=_COMMAND_S,
            capture_output=True, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise NotSent(f"command {target.reference}: {type(problem).__name__}") from problem
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise NotSent(f"command {target.reference}: exit code {done.returncode}" + "".join(f": {x}" for x in last))


def _apprise(target: NotifyTarget, url: str, message: Message) -> None:
    try:
        import apprise
    except ImportError as problem:
        raise NotSent(
            f"apprise {target.reference}: apprise is not installed", hint="pip install 'outlast[notify]'"
        ) from problem
    service = apprise.Apprise()
    if not service.add(url):
        raise NotSent(f"apprise {target.reference}: apprise does not know this kind of URL")
    if not service.notify(title=f"outlast: {message.run}", body=message.text):
        raise NotSent(f"apprise {target.reference}: the service did not accept the message")


def show_on_desktop(title: str, text: str) -> bool:
    """Show a notification on this computer; return False where that is not possible."""
    import shutil
    import sys

    if sys.platform == "darwin":
        script = f"display notification {json.dumps(text)} with title {json.dumps(title)}"
        argv = ["osascript", "-e", script]
    else:
        argv = ["notify-send", "--app-name=outlast", "--", title, text]
    if shutil.which(argv[0]) is None:
        return False
    try:
        return subprocess.run(argv, capture_output=True, timeout=_TIMEOUT_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
