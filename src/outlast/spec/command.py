"""The command of a spec: parameter substitution, and the script that it runs. No IO."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping

from outlast.spec.resume_option import Newest, fill_argv, fill_text, problems_in
from outlast.spec.spec import ParamValue

_PLACEHOLDER = re.compile(r"(?<!\$)\{(\{)?([A-Za-z_][A-Za-z0-9_.-]*)\}(\})?")
_SHELL = re.compile(r"[&|;<>$`(){}*?\n]")
_INTERPRETERS = re.compile(r"^(?:.*/)?(python[0-9.]*|bash|sh|zsh|node|perl|ruby|Rscript|julia)$")


def render_param(value: ParamValue) -> str:
    """Format a parameter as text, with `true` and `false` in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def argv_of(
    command: str | tuple[str, ...], params: Mapping[str, ParamValue], *, newest: Newest = lambda _: ""
) -> list[str]:
    """Return the argv to execute. Text is a shell command with quoted parameters; a list is used as it is.

    `newest` fills `{resume:…}` and `{newest:…}`; without it nothing is there to resume from.
    """
    if isinstance(command, str):
        return ["/bin/bash", "-c", fill_text(_substitute(command, params, quote=True), newest)]
    return fill_argv([_substitute(word, params, quote=False) for word in command], newest)


def _substitute(text: str, params: Mapping[str, ParamValue], *, quote: bool) -> str:
    if not params:
        return text

    def one(match: re.Match[str]) -> str:
        if match.group(1) and match.group(3):
            return "{" + match.group(2) + "}"  # doubled braces are an escape
        if match.group(2) not in params:
            return match.group(0)
        value = render_param(params[match.group(2)])
        return (match.group(1) or "") + (shlex.quote(value) if quote else value) + (match.group(3) or "")

    return _PLACEHOLDER.sub(one, text)


def check_placeholders(command: str | tuple[str, ...], params: Iterable[str]) -> list[str]:
    """Return a message for each `{name}` that no parameter fills."""
    known = list(params)
    problems = problems_in(command)
    for text in (command,) if isinstance(command, str) else command:
        for doubled, name, closing in _PLACEHOLDER.findall(text):
            if (doubled and closing) or name in known:
                continue
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean `{{{near[0]}}}`?" if near else f"; write {{{{{name}}}}} for literal braces"
            problems.append(f"uses {{{name}}}, but [params] has no `{name}`{hint}")
    return problems


def unused_params(
    given: Iterable[str], *, declared: Iterable[str], commands: Iterable[str | tuple[str, ...]], scripts: Iterable[str]
) -> dict[str, str]:
    """Return each parameter that nothing uses → the known name that it resembles, or "".

    Known are the names of the file and of `{name}` in commands. The text of a script uses the names that occur in it,
    as programs read `OUTLAST_PARAM_NAME`.
    """
    texts = [text for command in commands for text in ((command,) if isinstance(command, str) else command)]
    filled = {name for text in texts for doubled, name, _ in _PLACEHOLDER.findall(text) if not doubled}
    known = sorted({*declared, *filled})
    mentioned = " ".join(scripts)
    found = {}
    for name in given:
        spellings = {re.escape(name), re.escape(re.sub(r"\W", "_", name))}
        if name in known or re.search(rf"(?<![A-Za-z0-9])(?:{'|'.join(spellings)})(?![A-Za-z0-9])", mentioned, re.I):
            continue
        found[name] = next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.7)), "")
    return found


def fills(command: str | tuple[str, ...], name: str) -> bool:
    """Return whether the command has a `{name}` for a parameter."""
    texts = (command,) if isinstance(command, str) else command
    found = (match for text in texts for match in _PLACEHOLDER.findall(text))
    return any(inner == name and not (doubled and closing) for doubled, inner, closing in found)


def is_plain(command: str | tuple[str, ...]) -> bool:
    """Return whether it is one program with arguments, to which more can be appended: no pipe, `&&` or redirection."""
    return not isinstance(command, str) or not _SHELL.search(_plain(command))


def _plain(command: str) -> str:
    return _PLACEHOLDER.sub("", fill_text(command, lambda _: ""))


def script_of(command: str | tuple[str, ...]) -> str:
    """Return the script file that a simple command runs, relative to the code folder; empty if unknown."""
    if isinstance(command, str):
        command = fill_text(command, lambda _: "")
        if _SHELL.search(_plain(command)):
            return ""
        try:
            argv = shlex.split(command)
        except ValueError:
            return ""
    else:
        argv = list(command)
    if not argv:
        return ""
    if _INTERPRETERS.match(argv[0]):
        return _script_argument(argv[1:])
    return argv[0] if argv[0].startswith(("./", "../")) else ""


def _script_argument(argv: list[str]) -> str:
    for word in argv:
        if word in ("-m", "-c", "-e", "-"):
            return ""
        if not word.startswith("-"):
            return word if re.search(r"\.\w+$", word) or "/" in word else ""
    return ""
