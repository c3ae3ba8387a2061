"""Output of the command on its way to the workspace, and the agent's remarks."""

from __future__ import annotations

import os

import pytest
from tests.support.waiting import eventually

from outlast.agent.output import Mask, OutputPump, Remarks

LONGER_THAN_ANY_UPTIME_S = 1e9


def test_the_first_line_is_written_at_once_even_right_after_the_boot() -> None:
    reading, writing = os.pipe()
    written: list[bytes] = []
    with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "wb", buffering=0) as program:
        pump = OutputPump(pipe, lambda _, body: written.append(body), mask=Mask([]), every_s=LONGER_THAN_ANY_UPTIME_S)
        program.write(b"first\n")
        eventually(lambda: written == [b"first\n"], what="the first line")
        program.write(b"second\n")
        program.close()
        pump.finish(within_s=10)
    assert written == [b"first\n", b"second\n"]


@pytest.mark.full
def test_remarks_are_separate_lines_without_secrets() -> None:
    reading, writing = os.pipe()
    written: list[bytes] = []
    remarks = Remarks()
    with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "wb", buffering=0) as program:
        pump = OutputPump(
            pipe, lambda _, body: written.append(body), mask=Mask(["hunter2"]), every_s=0.0, remarks=remarks
        )
        remarks.add("`hunter2.db` stays open")
        eventually(lambda: written == [b"outlast: `***.db` stays open\n"], what="the remark")
        program.write(b"50 %")
        eventually(lambda: written[-1] == b"50 %", what="half a line")
        remarks.add("no room")
        eventually(lambda: written[-1] == b"\noutlast: no room\n", what="the next remark")
        program.close()
        pump.finish(within_s=10)
        remarks.add("not copied: hunter2")
        pump.write_remarks()
        pump.write_remarks()
    assert written[3:] == [b"outlast: not copied: ***\n"]


def test_a_remark_waits_for_the_end_of_the_line_that_the_program_is_writing() -> None:
    reading, writing = os.pipe()
    written: list[bytes] = []
    remarks = Remarks(clock=lambda: 0.0)
    with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "wb", buffering=0) as program:
        pump = OutputPump(pipe, lambda _, body: written.append(body), mask=Mask([]), every_s=0.0, remarks=remarks)
        program.write(b'{"loss": ')
        eventually(lambda: bool(written), what="half a line")
        remarks.add("no room")
        program.write(b"0.5")
        eventually(lambda: b"".join(written).endswith(b"0.5"), what="more of it")
        program.write(b"}\n")
        eventually(lambda: b"room" in b"".join(written), what="the remark")
        program.write(b"then")
        eventually(lambda: b"".join(written).endswith(b"then"), what="a line without an end")
        remarks.add("no room at all")
        program.close()
        pump.finish(within_s=10)
    assert b"".join(written) == b'{"loss": 0.5}\noutlast: no room\nthen\noutlast: no room at all\n'


def test_a_remark_that_repeats_every_second_is_logged_rarely() -> None:
    now = 0.0
    remarks = Remarks(clock=lambda: now)
    for second in range(1200):
        now = float(second)
        remarks.add("the disk is full")
    assert remarks.take() == b"outlast: the disk is full\n" * 2
    assert remarks.take() == b""


def test_the_number_of_remarks_is_limited() -> None:
    remarks = Remarks()
    for number in range(1000):
        remarks.add(f"file {number}\udcff")
    lines = remarks.take().splitlines()
    assert lines[0] == b"outlast: file 0\\udcff"
    assert len(lines) == 201
    assert b"serial console" in lines[-1]
