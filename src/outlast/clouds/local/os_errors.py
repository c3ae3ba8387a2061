"""Translates errors of the operating system into errors of a cloud, for the modules that store files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from outlast.errors import CloudUnreachable, Denied

P = ParamSpec("P")
R = TypeVar("R")


def with_os_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Raise Denied for an unusable folder, and the temporary CloudUnreachable for other OS errors (a full disk)."""

    @functools.wraps(method)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return method(*arguments, **options)
        except (PermissionError, NotADirectoryError, FileExistsError) as problem:
            why = f"the local cloud cannot use {problem.filename or 'its folder'}: {problem.strerror}"
            raise Denied(why, hint="check its owner, or set OUTLAST_LOCAL_CLOUD to another folder") from problem
        except OSError as problem:
            why = f"the local cloud: {problem.strerror or problem}: {problem.filename or ''}".rstrip(": ")
            raise CloudUnreachable(why, hint="check the free space of the disk") from problem

    return call
