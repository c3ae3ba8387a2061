"""The process that is a machine's power supply: boots it, serves its metadata, ends it. Without it the machine dies.

    python -m outlast.clouds.local.shim FOLDER LOCK_DESCRIPTOR MODE

The lock comes with the process, taken by the launcher: there is no instant at which a starting machine looks dead.
Before init is forked only cheap modules are imported, because boot time is recovery time.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from outlast.clouds.local import init
from outlast.clouds.local.drives import Drives
from outlast.clouds.local.files import remove_tree
from outlast.clouds.local.folder import SUSPENDED, Folder
from outlast.clouds.local.isolation import Inside, isolation
from outlast.clouds.local.peer_credentials import PeerCheck

# How long a wish may lie unseen when its signal was lost.
_CHECK_EVERY_S = 1.0
# How long a shutdown script may take when the machine is stopped, as on GCE.
_STOP_S_MAX = 90.0
# The mounts of a machine that was switched off go a moment after its processes, and only then can it have its disks.
_DRIVES_S = 3.0
_ATTRIBUTE_KEYS = "ssh-keys"


class PowerOff(NamedTuple):
    why: str
    delete: bool = False


class Shim:
    """One boot of one machine."""

    def __init__(self, folder: Folder, mode: str) -> None:
        self.folder = folder
        self.facts = folder.facts() or {}
        self.isolation = isolation(mode)
        self.init_pid = 0
        self.power_off: PowerOff | None = None
        self.kill_at: float | None = None
        self.stop_at: float | None = None
        self.shutdown_started = False
        # Who may come in, as far as the door is opened: nobody.
        self.ssh_inputs: tuple[int, str, bool] = (0, "", False)
        self.drives = Drives(folder, mode)
        # Whom to wake when the machine is resumed; None while it is awake.
        self.frozen: list[int] | None = None

    def boot(self) -> None:
        """Bring up init; from here on the machine runs."""
        self.wake_reader, wake_writer = os.pipe()
        _install_signal_handlers(wake_writer)
        if not os.path.isdir(self.folder.disk_path):
            # It may take long, and whoever cannot wait must be able to find us.
            self.folder.set_state(shim_pid=os.getpid())
            # Where layers are seen through, there is nothing to copy.
            seen_through = str(self.facts.get("mode")) in ("root", "userns")
            _copy_image(self.folder, [] if seen_through else list(self.facts.get("layers", [])))
        init.write_scripts(self.folder, self.folder.attributes())
        self.drives.attach_requested(timeout_s=_DRIVES_S)
        os.makedirs(f"{self.folder.path}/ssh", mode=0o711, exist_ok=True)
        boots = int((self.folder.state() or {}).get("boots", 0)) + 1
        self.folder.print_serial(f"boot {boots} of {self.folder.name}")
        # Before the boot, which may take this process into a user namespace.
        self.peers = PeerCheck()
        self.running = self.isolation.boot(self.folder, self._run_init)
        self.init_pid = self.running.init_pid
        self.drives.mark_created()
        self._write_init_pid(str(self.init_pid))
        self.folder.set_state(
            phase="running",
            why="",
            boots=boots,
            shim_pid=os.getpid(),
            address=self.running.address,
            ssh_port=self.running.ssh_port,
            metadata=self.running.listener.getsockname()[:2],
        )

    def _run_init(self, inside: Inside, died: Callable[[], bool], end: Callable[[], object]) -> NoReturn:
        """In the machine, to its end."""
        if self.drives.nodes:
            try:
                self.drives.create_nodes("/dev")
                init.mount_all(inside.variables)
            except OSError as problem:
                init.report(f"its disks cannot be seen: {problem}")
        init.Init(inside).run(shim_died=died, on_exit=end)

    def _write_init_pid(self, init_pid: str) -> None:
        """Where whoever logs in finds the machine; nowhere once it is off."""
        with open(f"{self.folder.path}/ssh/init", "w", encoding="ascii") as file:
            file.write(f"{init_pid}\n" if init_pid else "")

    def run(self) -> PowerOff:
        """Serve and watch until there is a reason to end."""
        # Imported only now: the machine boots while we read these.
        from outlast.clouds.local.http_server import WebServer
        from outlast.clouds.local.metadata_server import MetadataService
        from outlast.clouds.local.preemption_schedule import PreemptionSchedule

        self.schedule = PreemptionSchedule(self.folder)
        self.service = MetadataService(self.folder, self.running.address, self.delete_itself)
        peers = None if self.running.private else self.peers
        web = WebServer(self.running.listener, self.service.reply, peers=peers, log=self.folder.print_serial)
        web.selector.register(self.wake_reader, selectors.EVENT_READ)
        check_at = 0.0
        while True:
            now = time.monotonic()
            if now >= check_at:
                check_at = now + _CHECK_EVERY_S
                self.check()
                web.wake()
            if self.kill_at is not None and now >= self.kill_at:
                self.power_off = self.power_off or PowerOff("preempted")
            if self.stop_at is not None and now >= self.stop_at:
                self.power_off = self.power_off or PowerOff("stopped")
            if self.power_off is not None:
                break
            schedule_at = None if self.frozen is not None else self.schedule.next_at
            moments = (self.kill_at, self.stop_at, schedule_at, web.next_deadline())
            due = [moment for moment in moments if moment is not None]
            ready = web.serve(max(0.0, min([check_at, *due]) - now))
            if self.wake_reader in ready:
                os.read(self.wake_reader, 4096)
            if ready or (schedule_at is not None and time.monotonic() >= schedule_at):
                check_at = 0.0
        # Whoever asked for the end is told that it comes.
        web.flush()
        return self.power_off

    def check(self) -> None:
        """See what was asked for, what the zone is up to, and whether init still lives."""
        self.reap()
        if _terminated:
            self.power_off = PowerOff("its shim was told to end")
        if self.folder.requested("stop") is not None and not self._start_shutdown_script(_STOP_S_MAX):
            self.power_off = PowerOff("stopped")
        # Nobody takes back what nobody has: a machine that is suspended is on no computer.
        verdict = self.schedule.verdict() if self.frozen is None else ""
        grace_s = self.schedule.conditions.grace_s
        if (request := self.folder.requested("preempt")) is not None:
            grace_s = float(request.get("grace_s") or grace_s)
            self.preempt(notice=bool(request.get("notice", True)), grace_s=grace_s)
        if verdict == "life over":
            self.power_off = PowerOff("life over", delete=True)
        elif verdict == "preempted":
            self.preempt(notice=True, grace_s=grace_s)
        changed = self.service.refresh(grace_s=grace_s)
        if changed:
            init.write_scripts(self.folder, self.folder.attributes())
        if changed or self.drives.incomplete:
            self._update_drives()
        self._refresh_ssh()
        self._apply_suspend()

    def _apply_suspend(self) -> None:
        """Stand still and go on, as is wanted. The machine's programs notice nothing but the time."""
        wanted = self.folder.requested("suspend") is not None
        if wanted == (self.frozen is not None):
            return
        from outlast.clouds.local.processes import freeze, thaw

        if self.frozen is None:
            self.frozen = freeze(self.init_pid, init.marker(self.folder))
        else:
            thaw(self.frozen)
            self.frozen = None
        self.folder.print_serial("suspended" if wanted else "resumed")
        self.folder.set_state(why=SUSPENDED if wanted else "")

    def _update_drives(self) -> None:
        """Disks come and go while the machine runs."""
        self.drives.attach_requested()
        try:
            self.drives.create_nodes(f"/proc/{self.init_pid}/root/dev")
        except OSError as problem:
            self.folder.print_serial(f"its disks cannot be seen: {problem}")

    def _start_shutdown_script(self, timeout_s: float) -> bool:
        """Let the machine run its shutdown script, which ends with its power. False when it has none, or is asleep."""
        if self.frozen is not None or not self.folder.attributes().get("shutdown-script"):
            return False
        if not self.shutdown_started:
            self.shutdown_started = True
            self.stop_at = time.monotonic() + timeout_s
            os.kill(self.init_pid, init.SIGPWR)
        return True

    def _refresh_ssh(self) -> None:
        """Whoever was admitted since the last look can come in now."""
        try:
            newest = os.stat(f"{self.folder.path}/ssh/admitted").st_mtime_ns
        except FileNotFoundError:
            newest = 0
        wanted = (newest, self.folder.attributes().get(_ATTRIBUTE_KEYS, ""), bool(self.facts.get("ssh_keys")))
        if wanted == self.ssh_inputs:
            return
        self.ssh_inputs = wanted
        from outlast.clouds.local import ssh

        ssh.prepare(self.folder)
        if self.running.ssh_port:
            os.kill(self.init_pid, signal.SIGUSR2)

    def preempt(self, *, notice: bool, grace_s: float) -> None:
        """Begin the machine's last seconds, or end them."""
        if not notice:
            self.kill_at = 0.0
        elif self.kill_at is None:
            self.kill_at = time.monotonic() + grace_s
            self.folder.print_serial(f"notice: preempted, {grace_s:g} s left")
            self.folder.set_state(why="preempted")
            self.service.preempted = True
            self._start_shutdown_script(grace_s)

    def delete_itself(self) -> None:
        """The machine asked for its own end, disk and all."""
        self.power_off = self.power_off or PowerOff("deleted itself", delete=True)

    def reap(self) -> None:
        try:
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                if reaped[0] == self.init_pid:
                    self.power_off = self.power_off or PowerOff(self._exit_reason(os.waitstatus_to_exitcode(reaped[1])))
        except ChildProcessError:
            pass

    def _exit_reason(self, exit_code: int) -> str:
        # Whoever switches itself off after the notice has been preempted all the same.
        if self.kill_at is not None:
            return "preempted"
        if self.stop_at is not None:
            return "stopped"
        return "powered off by itself" if exit_code == init.EXIT_POWERED_OFF else "its init was killed"

    def end(self, ending: PowerOff) -> None:
        """Cut the power. The lock goes last, with this process."""
        self._write_init_pid("")
        if ending.delete:
            self.folder.set_state(phase="stopping", why=ending.why)
        if ending.why == "preempted":
            # A machine that vanishes says no goodbye: its peers hear nothing, where a killed process closes its lines.
            self.isolation.cut()
        if not self.isolation.kill():
            self.folder.set_state(phase="broken", why="some of its processes could not be killed")
            return
        self.folder.print_serial(f"power is off: {ending.why}")
        if ending.delete:
            remove_tree(self.folder.discard())
        else:
            self.folder.set_state(phase="stopped", why=ending.why, stopped_at=time.time())


_terminated = False


def _install_signal_handlers(wake_writer: int) -> None:
    """Every signal that concerns us makes the shim look around; none interrupts what it does."""

    def remember(number: int, _frame: object) -> None:
        global _terminated
        _terminated = _terminated or number == signal.SIGTERM

    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    for number in (signal.SIGUSR1, signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, remember)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


def _copy_image(folder: Folder, layers: list[str]) -> None:
    """Make the boot disk. It appears in one step, so a boot that was cut short begins it anew."""
    draft = f"{folder.path}/disk.draft"
    remove_tree(draft)
    if not layers:
        os.mkdir(draft)
    else:
        # `cp` shares the blocks where the file system can, which no module of Python does.
        sharing = ["-a", "--reflink=auto"] if sys.platform == "linux" else ["-c", "-R", "-p"]
        source = f"{folder.root}/layers/{layers[-1]}"
        pid = os.posix_spawnp("cp", ["cp", *sharing, source, draft], os.environ)
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if folder.requested("stop") is not None:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        if os.waitstatus_to_exitcode(ended[1]) != 0:
            raise OSError("its image could not be copied")
    os.rename(draft, folder.disk_path)


def main(arguments: list[str]) -> NoReturn:
    folder = Folder(arguments[0])
    # The machine's processes must not hold the lock: they would keep a dead machine looking alive.
    os.set_inheritable(int(arguments[1]), False)
    try:
        machine = Shim(folder, arguments[2])
        machine.boot()
    except OSError as error:
        folder.print_serial(f"boot failed: {error}")
        folder.set_state(phase="broken", why=f"boot failed: {error}")
        os._exit(1)
    machine.end(machine.run())
    # Nothing is left to tidy up, and a quick end is a quick `stop`.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
