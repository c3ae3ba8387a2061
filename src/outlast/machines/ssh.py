"""ssh to a machine: one shared connection, host keys from the cloud's own channel. Refuses to trust a key on sight.

A command is sent once: whether one whose connection broke was carried out is the caller's to find out.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Sequence

from outlast.clouds.cloud import InteractiveCloud, SshAccess
from outlast.errors import BadRequest, CloudError, CloudUnreachable, Denied, NotFound
from outlast.machines import sshfiles

_PROBE_S = 20.0
_TAIL = 2000
# What `ssh` itself says with, besides a remote command that happens to end with it.
_SSH_FAILED = 255


class Link:
    """ssh to one machine, through one shared connection that survives between calls and is found again after the
    machine moved. The cloud is asked for the address at the first use, and again after the connection was lost."""

    def __init__(self, cloud: InteractiveCloud, name: str, *, patience_s: float | None = None) -> None:
        self.cloud = cloud
        self.name = name
        self.host = sshfiles.alias(name)
        self.patience_s = cloud.traits.ssh_s if patience_s is None else patience_s
        self._socket = ""

    def argv(self, *, tty: bool = False, options: Sequence[str] = ()) -> list[str]:
        """`ssh … outlast-NAME`; a remote command may be appended. The machine answers when this returns."""
        self._ready()
        return [*self._ssh(*options), *(["-t"] if tty else []), self.host]

    def run(
        self,
        command: str | Sequence[str],
        *,
        input: bytes | None = None,
        check: bool = True,
        timeout_s: float | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command there: text is for the remote shell, a sequence arrives as it is, word for word.

        Raises CloudUnreachable when the connection was lost (the command may have been carried out, or not) or time
        was up, CloudError when the command failed and `check` is on.
        """
        text = command if isinstance(command, str) else shlex.join(command)
        # ssh takes the rest for its own options if the command begins with a dash; `--` ends them.
        argv = [*self.argv(), "--", text]
        try:
            answer = subprocess.run(
                argv,
                input=input,
                stdin=subprocess.DEVNULL if input is None else None,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as problem:
            raise CloudUnreachable(
                f"`{_shown(text)}` on {self.name} took longer than {timeout_s:g} s",
                hint="it may still be running there",
            ) from problem
        if answer.returncode == _SSH_FAILED and not self._alive():
            self.close()
            raise CloudUnreachable(
                f"the connection to {self.name} was lost during `{_shown(text)}`: {_tail(answer.stderr)}",
                hint=f"`outlast machine show {self.name}` says what became of it",
            )
        if check and answer.returncode != 0:
            raise CloudError(
                f"`{_shown(text)}` on {self.name} ended with {answer.returncode}: "
                f"{_tail(answer.stderr) or _tail(answer.stdout) or 'it said nothing'}"
            )
        return answer

    def rsync_shell(self) -> str:
        """For `rsync -e`; the destination is `Link.host` and a path."""
        self._ready()
        return f"{sshfiles.need('ssh')} -F {shlex.quote(sshfiles.config_path())}"

    def refresh(self) -> None:
        """Ask the cloud for the address again (the machine came back elsewhere), rewrite the files, wait for sshd."""
        self.close()
        sshfiles.need("ssh")
        ends_at = time.monotonic() + self.patience_s
        try:
            self.cloud.admit(self.name, sshfiles.public_key())
            self._wait(ends_at)
        except NotFound:
            sshfiles.forget_machine(self.name)
            raise

    def close(self) -> None:
        """End the shared connection. The next call makes another one."""
        sshfiles.close_connection(self._socket)
        self._socket = ""

    def _ready(self) -> None:
        if not self._socket:
            self.refresh()

    def _ssh(self, *options: str) -> list[str]:
        return [sshfiles.need("ssh"), "-F", sshfiles.config_path(), *options]

    def _wait(self, ends_at: float) -> None:
        """Until sshd lets us in. Raises what the cloud says of a machine that is not running, or what ssh said."""
        pause_s, said, where = 0.05, "it is still booting", ""
        while True:
            if (access := self._access()) is not None:
                where = f" ({access.user}@{access.host} port {access.port})"
                said = self._try(access) if access.host_keys else "the cloud does not tell its host keys"
                if not said:
                    return
            if time.monotonic() + pause_s > ends_at:
                break
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 3.0)
        if "host key verification failed" in said.lower():
            raise Denied(
                f"{self.name} answers with another host key than its cloud told: somebody else may be at its address",
                hint=f"`outlast machine serial {self.name}` prints the keys that it made; do not go on if they differ",
            )
        raise CloudUnreachable(
            f"ssh to {self.name}{where} did not work for {self.patience_s:g} s: {said}",
            hint=f"`outlast machine serial {self.name}` shows what it printed while it booted",
        )

    def _access(self) -> SshAccess | None:
        """The machine's door; None while it boots. Raises BadRequest for one that does not."""
        try:
            return self.cloud.access(self.name)
        except BadRequest:
            # It may have come up between the two questions.
            if self.cloud.machine(self.name).status not in ("pending", "running"):
                raise
            return None

    def _try(self, access: SshAccess) -> str:
        """One login; what ssh said if it did not work."""
        socket = sshfiles.write_machine(self.cloud.name, self.name, access)
        argv = [*self._ssh("-o", "BatchMode=yes", "-o", "ConnectTimeout=5"), self.host, "true"]
        try:
            answer = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_S, check=False)
        except subprocess.TimeoutExpired:
            return f"no answer within {_PROBE_S:g} s"
        if answer.returncode != 0:
            return _tail(answer.stderr) or f"ssh ended with {answer.returncode}"
        self._socket = socket
        return ""

    def _alive(self) -> bool:
        """Whether the shared connection still carries: then 255 was the command's own."""
        for argv in (["-O", "check", self.host], ["-o", "ControlMaster=no", self.host, "true"]):
            try:
                answer = subprocess.run(
                    self._ssh(*argv), stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_S, check=False
                )
            except subprocess.TimeoutExpired:
                return False
            if answer.returncode != 0:
                return False
        return True


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 120 else line[:119] + "…"


def _tail(said: bytes) -> str:
    return said.decode("utf-8", "replace").strip()[-_TAIL:]
