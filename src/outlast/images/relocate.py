"""Rewrite the first lines of an environment's programs, so that the environment works at another path.

Run on the builder with the `bin` folder as the argument: each program then finds its Python next to itself.
"""

from __future__ import annotations

import os
import sys

_HEAD = b'#!/bin/sh\n\'\'\'exec\' "$(dirname -- "$(realpath -- "$0")")"/%s "$0" "$@"\n\' \'\'\'\n'


def relocate(folder: str) -> None:
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.islink(path) or not os.path.isfile(path):
            continue
        with open(path, "rb") as file:
            body = file.read()
        first, _, rest = body.partition(b"\n")
        program = first[2:].strip()
        if body.startswith(b"#!/bin/sh\n'''exec' "):  # pip writes this if the path is too long for a first line
            second, _, rest = rest.split(b"\n", 2)
            program = second.split(b" ", 1)[1].rsplit(b' "$0"', 1)[0].strip(b'"')
        if not first.startswith(b"#!") or os.path.dirname(program) != os.fsencode(folder):
            continue
        with open(path, "wb") as file:
            file.write(_HEAD % os.path.basename(program) + rest)


if __name__ == "__main__":
    relocate(sys.argv[1])
