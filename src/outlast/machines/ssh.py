"""ssh to a machine over one shared connection, with host keys that the cloud reports.

Each command is sent once. After a lost connection, the caller must find out whether the command was executed.
"""

from __future__ import annotations

import math
import shlex
import subprocess
import time
from collections.abc import Sequence
from tempfile import TemporaryFile

from outlast.clouds.cloud import InteractiveCloud, SshAccess
from outlast.errors import BadRequest, CloudError, CloudUnreachable, Denied, NotFound
from outlast.machines import sshfiles

_PROBE_S = 20.0
_ASK_S = 1.0
# The exit code of a process that SIGKILL ended.
_KILLED = -9
_TAIL = 2000
# ssh's own exit code; a remote command may also exit with it.
_SSH_FAILED = 255


class Link:
    """ssh to one machine through a shared connection that survives between calls.

    The address comes from the cloud at first use, and again after the connection was lost.
    """

    def __init__(self, cloud: InteractiveCloud, name: str, *, patience_s: float | None = None) -> None:
        self.cloud = cloud
        self.name = name
        self.host = sshfiles.alias(name)
        self.patience_s = cloud.traits.ssh_s if patience_s is None else patience_s
        self._socket = ""
        # Between two questions to the cloud while a command runs.
        self._ask_s = max(_ASK_S, cloud.traits.keepalive_poll_s)

    def argv(self, *, tty: bool = False, options: Sequence[str] = ()) -> list[str]:
        """Wait until the machine accepts ssh and return `ssh … outlast-NAME`, to which a command may be appended."""
        self._ready()
        return [*self._ssh(*options), *(["-t"] if tty else []), self.host]

    def run(
        self,
        command: str | Sequence[str],
        *,
        input: bytes | None = None,
        check: bool = True,
        timeout_s: float | None = None,
        label: str = "",
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command on the machine: a string goes to the remote shell, a sequence is quoted for it.

        Raises CloudUnreachable if the connection broke (the command may have been executed) or on a timeout, and
        CloudError if the command failed and `check` is set. Errors show the label, if given, instead of the command.
        """
        text = command if isinstance(command, str) else shlex.join(command)
        shown = label or f"`{_shown(text)}`"
        # `--` ends ssh's options, as a command may start with a dash.
        argv = [*self.argv(), "--", text]
        try:
            answer = self._communicate(argv, input, timeout_s)
        except subprocess.TimeoutExpired as problem:
            raise CloudUnreachable(
                f"{shown} on {self.name} took longer than {timeout_s:g} s",
                hint="it may still be running on the machine",
            ) from problem
        if answer.returncode in (_SSH_FAILED, _KILLED) and not self._alive():
            self.close()
            raise CloudUnreachable(
                f"the connection to {self.name} was lost during {shown}: {_tail(answer.stderr)}",
                hint=f"`outlast machine show {self.name}` shows its status",
            )
        if check and answer.returncode != 0:
            raise CloudError(
                f"{shown} on {self.name} exited with {answer.returncode}: "
                f"{_tail(answer.stderr) or _tail(answer.stdout) or 'no output'}"
            )
        return answer

    def _communicate(
        self, argv: list[str], input: bytes | None, timeout_s: float | None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run ssh; kill it when the cloud reports that the machine stopped, which ssh notices ten seconds later.

        Raises TimeoutExpired.
        """
        ends_at = math.inf if timeout_s is None else time.monotonic() + timeout_s
        # Files instead of pipes: the process of the shared connection would hold a pipe open after the kill.
        with TemporaryFile() as given, TemporaryFile() as stdout, TemporaryFile() as stderr:
            given.write(input or b"")
            given.seek(0)
            with subprocess.Popen(argv, stdin=given, stdout=stdout, stderr=stderr) as process:
                try:
                    self._wait_for(process, ends_at)
                finally:
                    process.kill()  # without effect if it has ended
            for file in (stdout, stderr):
                file.seek(0)
            return subprocess.CompletedProcess(argv, process.returncode, stdout.read(), stderr.read())

    def _wait_for(self, process: subprocess.Popen[bytes], ends_at: float) -> None:
        """Return when the process has ended or its machine does not run. Raises TimeoutExpired."""
        while True:
            try:
                process.wait(min(self._ask_s, max(0.0, ends_at - time.monotonic())))
                return
            except subprocess.TimeoutExpired:
                if time.monotonic() >= ends_at:
                    raise
                if not self._runs():
                    return

    def _runs(self) -> bool:
        """Return whether the machine runs, as far as its cloud reports it."""
        try:
            return self.cloud.machine(self.name).status == "running"
        except NotFound:
            return False
        except CloudError:
            return True

    def rsync_shell(self) -> str:
        """Return the value of `rsync -e`; the destination is `Link.host` and a path."""
        self._ready()
        return f"{sshfiles.need('ssh')} -F {shlex.quote(sshfiles.config_path())}"

    def refresh(self) -> None:
        """Fetch the current address from the cloud, rewrite the ssh files and wait for sshd."""
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
        """Close the shared connection. The next call opens another one."""
        sshfiles.close_connection(self._socket)
        self._socket = ""

    def _ready(self) -> None:
        if not self._socket:
            self.refresh()

    def _ssh(self, *options: str) -> list[str]:
        return [sshfiles.need("ssh"), "-F", sshfiles.config_path(), *options]

    def _wait(self, ends_at: float) -> None:
        """Wait until a login succeeds. Raises the cloud's error for a machine that does not run, or ssh's error."""
        pause_s, error, where = 0.05, "it is still booting", ""
        while True:
            if (access := self._access()) is not None:
                where = f" ({access.user}@{access.host} port {access.port})"
                error = self._try(access) if access.host_keys else "the cloud does not report its host keys"
                if not error:
                    return
            if time.monotonic() + pause_s > ends_at:
                break
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 3.0)
        if "host key verification failed" in error.lower():
            raise Denied(
                f"{self.name} has another host key than its cloud reports: another machine may have its address",
                hint=f"compare with the keys in `outlast machine serial {self.name}`; do not connect if they differ",
            )
        raise CloudUnreachable(
            f"ssh to {self.name}{where} failed for {self.patience_s:g} s: {error}",
            hint=f"`outlast machine serial {self.name}` shows its boot messages",
        )

    def _access(self) -> SshAccess | None:
        """Return the machine's ssh address; None while it boots. Raises BadRequest if it does not run."""
        try:
            return self.cloud.access(self.name)
        except BadRequest:
            # It may have started to run since the first call.
            if self.cloud.machine(self.name).status not in ("pending", "running"):
                raise
            return None

    def _try(self, access: SshAccess) -> str:
        """Try one login and return ssh's error; empty on success."""
        socket = sshfiles.write_machine(self.cloud.name, self.name, access)
        argv = [*self._ssh("-o", "BatchMode=yes", "-o", "ConnectTimeout=5"), self.host, "true"]
        try:
            answer = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_S, check=False)
        except subprocess.TimeoutExpired:
            return f"no answer within {_PROBE_S:g} s"
        if answer.returncode != 0:
            return _tail(answer.stderr) or f"ssh exited with {answer.returncode}"
        self._socket = socket
        return ""

    def _alive(self) -> bool:
        """Return whether the shared connection works: then exit code 255 came from the command."""
        if not self._runs():
            return False
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


def _tail(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip()[-_TAIL:]
