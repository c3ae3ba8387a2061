"""The first process of a machine: runs the startup script, reaps orphans, powers the machine off. Isolates nothing.

It is forked from the shim, not executed, because another interpreter would double the boot time. Its signals:

    SIGUSR1   a program powers off    SIGUSR2   keys were added: create the accounts, start sshd
    SIGHUP    a program reboots       SIGPWR    power goes off soon

Each of them but SIGUSR2 runs the shutdown script first, if there is one.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from outlast.clouds.local import power_commands, sudo
from outlast.clouds.local.folder import Folder
from outlast.clouds.local.isolation import Inside

# The exit codes of init after the machine powered itself off, and after it rebooted itself.
EXIT_POWERED_OFF, EXIT_REBOOTED = 64, 65
# How long a shutdown script may take if a program of the machine switches it off, as on GCE.
_SHUTDOWN_S_MAX = 90

BASIC_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELLS = ("/bin/bash", "/bin/sh")
# macOS has no such signal, and there it is never sent.
SIGPWR = getattr(signal, "SIGPWR", signal.SIGUSR2)


def marker(folder: Folder) -> str:
    """Return the value of OUTLAST_MACHINE in the environment of this machine's processes."""
    return f"{folder.name}.{(folder.facts() or {}).get('id')}"


def write_scripts(folder: Folder, attributes: dict[str, str]) -> None:
    """Write the scripts that init runs: before init is forked, and when the attributes change."""
    os.makedirs(f"{folder.path}/scripts", exist_ok=True)
    for name in ("startup-script", "shutdown-script"):
        write_program(f"{folder.path}/scripts/{name}", attributes.get(name, ""))


class Init:
    """The init process of one boot."""

    def __init__(self, inside: Inside) -> None:
        self.inside = inside
        self.scripts: dict[int, str] = {}
        self.sshd = 0
        self.rebooting = False

    def run(self, *, shim_died: Callable[[], bool], on_exit: Callable[[], object]) -> NoReturn:
        """Run until the machine is powered off or its shim dies."""
        requests = {signal.SIGUSR1, signal.SIGHUP, SIGPWR, signal.SIGALRM}
        watched = {signal.SIGCHLD, signal.SIGUSR2, signal.SIGTERM, *requests}
        # Blocked before one can be sent, then taken one by one: none is lost, and no handler interrupts.
        signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        _write_commands(self.inside)
        self.start_script("startup-script")
        self.start_sshd()
        while not shim_died():
            number = signal.sigwait(watched)
            if number == signal.SIGALRM:
                self.power_off()
            elif number in requests:
                self.shut_down(number)
            elif number == signal.SIGUSR2:
                self.start_sshd()
            elif number == signal.SIGCHLD:
                self.reap()
        on_exit()
        os._exit(1)

    def start_script(self, name: str) -> bool:
        path = f"{self.inside.scripts_dir}/{name}"
        if not os.path.exists(path) or os.path.getsize(path) == 0:
            return False
        if (pid := os.fork()) != 0:
            self.scripts[pid] = name
            return True
        try:
            os.setsid()
            os.chdir(self.inside.home)
            reset_signals()
            _execute(path, self.inside.variables)
        except OSError as error:
            report(f"could not run {name}: {error}")
        os._exit(127)

    def shut_down(self, number: int) -> None:
        """Run the shutdown script, if there is one, then power off or reboot."""
        if "shutdown-script" in self.scripts.values():
            return
        self.rebooting = number == signal.SIGHUP
        if not self.start_script("shutdown-script"):
            self.power_off()
        if number != SIGPWR:  # the shim limits the time of requests from outside
            signal.alarm(_SHUTDOWN_S_MAX)

    def power_off(self) -> NoReturn:
        report("reboot" if self.rebooting else "power off")
        os._exit(EXIT_REBOOTED if self.rebooting else EXIT_POWERED_OFF)

    def reap(self) -> None:
        try:
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                if (name := self.scripts.pop(reaped[0], "")) != "":
                    report(f"{name} exit status {os.waitstatus_to_exitcode(reaped[1])}")
                    if name == "shutdown-script":
                        self.power_off()
                elif reaped[0] == self.sshd:
                    self.sshd = 0
        except ChildProcessError:
            pass

    def start_sshd(self) -> None:
        """Create accounts for new keys, and start sshd once there are keys."""
        if not self.inside.ssh:
            return
        from outlast.clouds.local import sshd

        sshd.create_accounts(self.inside)
        if not self.sshd:
            self.sshd = sshd.start(self.inside)


def report(line: str) -> None:
    """Write a line to the serial output, which is this process's standard error."""
    now_s = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s)) + f".{int(now_s * 1000) % 1000:03d}Z"
    try:
        os.write(2, f"{stamp} outlast: {line}\n".encode())
    except OSError:
        pass  # a full disk must not end a machine


def reset_signals() -> None:
    # Python ignores SIGPIPE, and a shell ignores SIGINT for background processes; programs expect neither.
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _execute(path: str, variables: dict[str, str]) -> NoReturn:
    try:
        os.execve(path, [path], variables)
    except OSError:
        # No `#!` line, or a disk mounted noexec: run it as a shell script, as GCE does.
        os.execve(shell(), [shell(), path], variables)


def shell() -> str:
    return next((shell for shell in _SHELLS if os.path.exists(shell)), "/bin/sh")


def mount_all(variables: dict[str, str]) -> None:
    """Mount the machine's /etc/fstab."""
    try:
        with open("/etc/fstab", encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if line.strip() and not line.lstrip().startswith("#")]
        if lines:
            os.waitpid(os.posix_spawnp("mount", ["mount", "-a"], variables), 0)
    except OSError as problem:
        report(f"/etc/fstab: {problem}")


def _write_commands(inside: Inside) -> None:
    """Write the commands that act on the machine and not on the user's computer, and sudo where it is missing."""
    power_commands.forget_scheduled(inside.scripts_dir)
    text = power_commands.script(init_pid=os.getpid(), state=inside.scripts_dir)
    for folder in inside.power_dirs:
        for name in power_commands.NAMES:
            write_program(f"{folder}/{name}", text)
    # A machine with its own files has its own users.
    if inside.home == "/root":
        os.makedirs("/usr/local/bin", exist_ok=True)
        if not os.path.exists("/usr/bin/sudo"):
            write_program("/usr/local/bin/sudo", sudo.program(own_users=True))
    else:
        write_program(f"{inside.power_dirs[0]}/sudo", sudo.program(own_users=False))


def write_program(path: str, text: str) -> None:
    """Write a program in one step as a new file, never through an existing link: the real `shutdown` is one."""
    draft = f"{path}.draft"
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(draft, 0o755)
    os.replace(draft, path)
