"""Output on its way to the workspace: when it goes out."""

from __future__ import annotations

import os

from tests.waiting import eventually

from outlast.agent.output import Mask, OutputPump

LONGER_THAN_ANY_COMPUTER_IS_UP_S = 1e9


def test_the_first_line_goes_out_at_once_however_recently_the_machine_has_booted() -> None:
    reading, writing = os.pipe()
    written: list[bytes] = []
    with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "wb", buffering=0) as program:
        pump = OutputPump(
            pipe, lambda _, body: written.append(body), mask=Mask([]), every_s=LONGER_THAN_ANY_COMPUTER_IS_UP_S
        )
        program.write(b"first\n")
        eventually(lambda: written == [b"first\n"], what="the first line")
        program.write(b"second\n")
        program.close()
        pump.finish(within_s=10)
    assert written == [b"first\n", b"second\n"]
