"""`[notify]` of a project: which targets it has, and a test message to each."""

from __future__ import annotations

from collections.abc import Mapping

from outlast.app.project import Project
from outlast.app.user_config import user_config, with_defaults
from outlast.errors import SpecError, UsageError
from outlast.notify.messages import sample_message
from outlast.notify.outbox import send_now
from outlast.notify.targets import resolve, show_on_desktop
from outlast.spec.notify import read_notify
from outlast.spec.reader import Reader
from outlast.spec.spec import NotifySpec
from outlast.workspace import Workspace

__all__ = ["notify_rule", "send_test", "show_on_desktop", "unset_targets"]


def notify_rule(project: Project) -> NotifySpec:
    """Return the rule that a run of this project would have, the user's defaults included. Raises UsageError."""
    reader = Reader({"notify": with_defaults(project.table, user_config()).get("notify", {})})
    rule = read_notify(reader.section_of("notify"))
    if reader.problems:
        raise SpecError(reader.problems, source=project.source)
    if rule is None:
        hint = 'add `[notify]` with a target, e.g. webhook = "SLACK_WEBHOOK_URL"; see docs/notifications.md'
        raise UsageError(f"{project.source} has no `[notify]`", hint=hint)
    return rule


def unset_targets(rule: NotifySpec, environment: Mapping[str, str]) -> dict[str, str]:
    """Return target → the reason why this computer cannot send to it; empty if it can."""
    names = {f"{target.kind} {target.reference}": resolve(target, environment) for target in rule.targets}
    return {name: "" if value else f"{name}: not set on this computer" for name, value in names.items()}


def send_test(workspace: Workspace, rule: NotifySpec, environment: Mapping[str, str]) -> dict[str, str]:
    """Send a test message to all targets; return target → error, empty if it was sent."""
    results = send_now(rule, sample_message(), workspace=workspace, environment=environment)
    if rule.desktop:
        shown = show_on_desktop("outlast", sample_message().text)
        results["desktop"] = "" if shown else "desktop: neither notify-send nor osascript could show it"
    return results
