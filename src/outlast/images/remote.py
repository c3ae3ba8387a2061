"""The shell of a builder: runs steps over ssh, forwards their output, and enforces the deadline."""

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
_ENDING_S = 1.0


class StepFailed(OutlastError):
    """A step of the recipe failed; `step` is its name."""

    def __init__(self, message: str, *, step: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.step = step


class BuildTimeout(StepFailed):
    pass


class Remote:
    """One builder. `deadline` applies to all of its work, by the monotonic clock."""

    def __init__(self, cloud: InteractiveCloud, name: str, *, deadline: float, write: Callable[[str], None]) -> None:
        self.cloud = cloud
        self.name = name
        self.deadline = deadline
        self.write = write
        self.link = Link(cloud, name)
        self.shares_software = False

    def wait(self) -> None:
        """Wait until the machine runs and accepts ssh."""
        patience_s = self.cloud.traits.pending_s
        ends_at = min(self.deadline, time.monotonic() + patience_s)
        while (machine := self.cloud.machine(self.name)).status == "pending":
            if time.monotonic() > ends_at:
                raise CloudUnreachable(f"the builder {self.name} did not boot within {describe_s(patience_s)}")
            time.sleep(self.cloud.traits.poll_s)
        if machine.status != "running":
            raise CloudError(f"the builder {self.name} is {machine.status}: {machine.why or 'unknown reason'}")
        self.link.argv()
        self.shares_software = self._shares_our_root()

    def _shares_our_root(self) -> bool:
        """Return whether the machine's root is this computer's. Test it, as a mistake would damage this computer."""
        if not self.cloud.traits.shares_host_files:
            return False
        probe = f"/var/tmp/outlast-probe-{secrets.token_hex(8)}"
        self.link.run(["touch", "--", probe])
        shared = os.path.exists(probe)
        self.link.run(["rm", "-f", "--", probe])
        return shared

    def send(self, texts: Mapping[str, str | bytes]) -> None:
        """Write texts and archives as files to the build folder."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, text in texts.items():
                body = text.encode() if isinstance(text, str) else text
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(body), 0o700
                archive.addfile(entry, io.BytesIO(body))
        folder = f'"$HOME/{steps.BUILD_FOLDER}"'
        self.link.run(f"umask 077 && mkdir -p {folder} && tar -x -C {folder}", input=packed.getvalue())

    def copy(self, source: str, path: str) -> None:
        """Copy a file or folder to the machine; a relative `path` is in the home folder."""
        source = os.path.realpath(source)
        folder, name = os.path.split(path)
        if folder.startswith("/") and self.shares_software:
            raise StepFailed(
                f"cannot copy to `{path}`: machines in this mode share this computer's file system",
                step="files",
                hint="use a path in the home folder, such as `data/model.bin`, or use mode `root` or `userns`",
            )
        target = shlex.quote(folder) if folder.startswith("/") else f'"$HOME"/{shlex.quote(folder)}'
        receive = (
            f'sudo=""; [ -w {target} ] || mkdir -p {target} 2>/dev/null && [ -w {target} ] || sudo="sudo -n"; '
            f"$sudo mkdir -p {target} && $sudo tar -x --no-same-owner -C {target}"
        )
        argv = [*self.link.argv(), "--", receive]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdin is not None
        try:
            with tarfile.open(fileobj=process.stdin, mode="w|") as archive:
                archive.add(source, arcname=name, filter=_without_owner)
            process.stdin.close()
        except BrokenPipeError:
            pass  # the remote command failed; its output has the reason
        assert process.stdout is not None
        output = process.stdout.read().decode("utf-8", "replace").strip()
        if process.wait() != 0:
            raise StepFailed(f"could not copy `{source}` to `{path}`: {output[-500:]}", step="files")

    def run(self, step: Step) -> None:
        """Run a step whose script was sent. Raises StepFailed with the failed line, BuildTimeout."""
        folder = f"$HOME/{steps.BUILD_FOLDER}"
        setting = steps.preamble(shares_software=self.shares_software)
        # Skip the user's start-up files: their errors would count as the script's.
        command = f'{setting} && exec bash --noprofile --norc "{folder}/wrapper.sh" "{folder}/{step.name}.sh"'
        argv = [*self.link.argv(), "--", f"bash -c {shlex.quote(command)}"]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        tail: deque[str] = deque(maxlen=_TAIL)
        failed: list[tuple[int, int]] = []
        reader = threading.Thread(target=self._read_output, args=(process, tail, failed), daemon=True)
        reader.start()
        try:
            code = process.wait(timeout=max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise BuildTimeout(
                f"the build timed out in {step.title}" + (f"; the last output:\n    {tail[-1]}" if tail else ""),
                step=step.name,
                hint="increase `[image] timeout`, or give the builder more `cpus`",
            ) from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        # A background process of the step may keep the pipe open; do not wait for it.
        reader.join(5.0)
        if code == 0:
            return
        # Killed: by itself, for lack of memory, or together with its machine.
        if code in (255, 137) and not failed:
            self._check_machine(step)
        line, code = failed[-1] if failed else (0, code)
        raise StepFailed(steps.explain(step, line, code, list(tail)), step=step.name)

    def _read_output(self, process: subprocess.Popen[bytes], tail: deque[str], failed: list[tuple[int, int]]) -> None:
        assert process.stdout is not None
        for raw in process.stdout:
            # Programs redraw progress bars in one line; keep the last version.
            line = raw.decode("utf-8", "replace").rstrip("\r\n").rpartition("\r")[2]
            failure = steps.failure_of(line)
            if failure is not None:
                failed.append(failure)
                # The program's last line may lack a newline.
                line = line.partition(steps.MARK)[0]
                if not line:
                    continue
            tail.append(line)
            self.write(line)

    def _check_machine(self, step: Step) -> None:
        give_up_at = time.monotonic() + _ENDING_S
        while (machine := self.cloud.machine(self.name)).status in ("running", "stopping"):
            # A machine's processes end before its status changes.
            if time.monotonic() > give_up_at:
                break
            time.sleep(0.05)
        if machine.status != "running":
            why = machine.why or "unknown reason"
            spot = "build again; with `[image] spot = false` the builder cannot be preempted"
            raise CloudError(
                f"the builder {self.name} is {machine.status} during {step.title}: {why}",
                hint=spot if machine.spot else "build again",
            )
        self.link.close()
        self.link.run(["true"])

    def output_of(self, script: str, *, input: bytes = b"") -> bytes:
        """Run a script of ours and return its output. Raises CloudError with its errors."""
        left_s = max(1.0, self.deadline - time.monotonic())
        # Pass the script as an argument, because stdin is its data.
        return self.link.run(["bash", "--noprofile", "--norc", "-c", script], input=input, timeout_s=left_s).stdout

    def home(self) -> str:
        return self.output_of('printf %s "$HOME"').decode()

    def close(self) -> None:
        self.link.close()


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the local owner from an entry."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def paths(finds: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in finds)
