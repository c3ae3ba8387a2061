"""A builder's shell: runs the steps over ssh, hands on their output as it comes, and ends when time is up."""

from __future__ import annotations

import io
import os
import secrets
import shlex
import subprocess
import tarfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from outlast.clouds.cloud import InteractiveCloud
from outlast.errors import CloudError, CloudUnreachable, OutlastError
from outlast.images import steps
from outlast.images.steps import Step
from outlast.machines.ssh import Link
from outlast.spec.quantity import describe_s

_TAIL = 15
_PENDING_S = {"local": 60.0}
_PENDING_ELSEWHERE_S = 600.0
_ENDING_S = 1.0


class StepFailed(OutlastError):
    """A step of the recipe did not work; `step` says which."""

    def __init__(self, message: str, *, step: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.step = step


class TimeIsUp(StepFailed):
    pass


class Remote:
    """One builder. `deadline` is by the monotonic clock and for everything that is done there."""

    def __init__(self, cloud: InteractiveCloud, name: str, *, deadline: float, write: Callable[[str], None]) -> None:
        self.cloud = cloud
        self.name = name
        self.deadline = deadline
        self.write = write
        self.link = Link(cloud, name)
        self.shares_software = False

    def wait(self) -> None:
        """Until the machine runs and lets us in."""
        patience_s = _PENDING_S.get(self.cloud.name, _PENDING_ELSEWHERE_S)
        ends_at = min(self.deadline, time.monotonic() + patience_s)
        while (machine := self.cloud.machine(self.name)).status == "pending":
            if time.monotonic() > ends_at:
                raise CloudUnreachable(f"the builder {self.name} did not boot within {describe_s(patience_s)}")
            time.sleep(0.05 if self.cloud.name == "local" else 2.0)
        if machine.status != "running":
            raise CloudError(f"the builder {self.name} is {machine.status}: {machine.why or 'nobody says why'}")
        self.link.argv()
        self.shares_software = self._shares_our_root()

    def _shares_our_root(self) -> bool:
        """Whether what looks like the machine's root is this computer's own. Asked by trying, for nothing that is done
        to the root of a machine may ever be done to ours."""
        if self.cloud.name != "local":
            return False
        probe = f"/var/tmp/outlast-probe-{secrets.token_hex(8)}"
        self.link.run(["touch", "--", probe])
        shared = os.path.exists(probe)
        self.link.run(["rm", "-f", "--", probe])
        return shared

    def send(self, texts: Mapping[str, str]) -> None:
        """Files of our own making into the build folder."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, body in texts.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(body.encode()), 0o700
                archive.addfile(entry, io.BytesIO(body.encode()))
        folder = f'"$HOME/{steps.BUILD_FOLDER}"'
        self.link.run(f"umask 077 && mkdir -p {folder} && tar -x -C {folder}", input=packed.getvalue())

    def copy(self, source: str, place: str) -> None:
        """A file or folder of this computer to its place on the machine; a relative one is in the home folder."""
        source = os.path.realpath(source)
        folder, name = os.path.split(place)
        if folder.startswith("/") and self.shares_software:
            raise StepFailed(
                f"`{place}` would be a file of this computer: its machines share its file system",
                step="files",
                hint="give a path in the home folder, as in `data/model.bin`, or use mode `root` or `userns`",
            )
        target = shlex.quote(folder) if folder.startswith("/") else f'"$HOME"/{shlex.quote(folder)}'
        there = (
            f'sudo=""; [ -w {target} ] || mkdir -p {target} 2>/dev/null && [ -w {target} ] || sudo="sudo -n"; '
            f"$sudo mkdir -p {target} && $sudo tar -x --no-same-owner -C {target}"
        )
        argv = [*self.link.argv(), "--", there]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdin is not None
        try:
            with tarfile.open(fileobj=process.stdin, mode="w|") as archive:
                archive.add(source, arcname=name, filter=_nobodys)
            process.stdin.close()
        except BrokenPipeError:
            pass  # it ended, and says why
        assert process.stdout is not None
        said = process.stdout.read().decode("utf-8", "replace").strip()
        if process.wait() != 0:
            raise StepFailed(f"`{source}` could not be copied to `{place}`: {said[-500:]}", step="files")

    def run(self, step: Step) -> None:
        """A step whose script was sent, its output handed on line by line. Raises StepFailed with the line that
        failed, TimeIsUp."""
        folder = f"$HOME/{steps.BUILD_FOLDER}"
        setting = steps.preamble(shares_software=self.shares_software)
        # The marks of our own, and nothing of the user's own start-up files, which would be taken for a part of it.
        command = f'{setting} && exec bash --noprofile --norc "{folder}/wrapper.sh" "{folder}/{step.name}.sh"'
        argv = [*self.link.argv(), "--", f"bash -c {shlex.quote(command)}"]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        tail: deque[str] = deque(maxlen=_TAIL)
        failed: list[tuple[int, int]] = []
        reader = threading.Thread(target=self._hand_on, args=(process, tail, failed), daemon=True)
        reader.start()
        try:
            code = process.wait(timeout=max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeIsUp(
                f"time is up in {step.title}" + (f"; the last output:\n    {tail[-1]}" if tail else ""),
                step=step.name,
                hint="raise `[image] timeout`, or give the builder more `cpus`",
            ) from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        # What it started in the background may hold the other end open; its words are not waited for.
        reader.join(5.0)
        if code == 0:
            return
        # Killed: by itself, by want of memory, or with its machine, where a session is a process of this computer.
        if code in (255, 137) and not failed:
            self._say_what_became_of_it(step)
        line, code = failed[-1] if failed else (0, code)
        raise StepFailed(steps.explain(step, line, code, list(tail)), step=step.name)

    def _hand_on(self, process: subprocess.Popen[bytes], tail: deque[str], failed: list[tuple[int, int]]) -> None:
        assert process.stdout is not None
        for raw in process.stdout:
            # Programs draw their progress over and over in one line: the last picture is enough.
            line = raw.decode("utf-8", "replace").rstrip("\r\n").rpartition("\r")[2]
            told = steps.failure_of(line)
            if told is not None:
                failed.append(told)
                # A program may have left its last line without an end.
                line = line.partition(steps.MARK)[0]
                if not line:
                    continue
            tail.append(line)
            self.write(line)

    def _say_what_became_of_it(self, step: Step) -> None:
        give_up_at = time.monotonic() + _ENDING_S
        while (machine := self.cloud.machine(self.name)).status in ("running", "stopping"):
            # It may be about to end: its processes go first.
            if time.monotonic() > give_up_at:
                break
            time.sleep(0.05)
        if machine.status != "running":
            why = machine.why or "it stopped"
            spot = "build again; `[image] spot = false` gives a builder that nobody takes away"
            raise CloudError(
                f"the builder {self.name} is {machine.status} in the middle of {step.title}: {why}",
                hint=spot if machine.spot else "build again",
            )
        self.link.close()
        self.link.run(["true"])

    def ask(self, script: str, *, input: bytes = b"") -> bytes:
        """The output of a script of ours. Raises CloudError with what it said."""
        left_s = max(1.0, self.deadline - time.monotonic())
        # As an argument, for its input is data.
        return self.link.run(["bash", "--noprofile", "--norc", "-c", script], input=input, timeout_s=left_s).stdout

    def home(self) -> str:
        return self.ask('printf %s "$HOME"').decode()

    def close(self) -> None:
        self.link.close()


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the names and numbers of whoever has it here."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def paths(finds: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in finds)
