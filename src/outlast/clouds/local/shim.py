"""The process behind a machine: boots it, serves its metadata, ends it. The machine does not outlive it.

    python -m outlast.clouds.local.shim FOLDER LOCK_DESCRIPTOR MODE

The launcher takes the machine's lock and passes it on, so that a starting machine never looks dead. If a program of the
machine reboots it, this process exits with `EXIT_REBOOTED`, and the launcher's shell runs it again. Before init is
forked only cheap modules are imported, because boot time is recovery time.
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

# The longest delay before a request is read if its signal was lost.
_CHECK_EVERY_S = 1.0
# How long a shutdown script may take when the machine is stopped, as on GCE.
_STOP_S_MAX = 90.0
# A machine that was switched off unmounts its disks shortly after its processes end. Only then are they free again.
_DRIVES_S = 3.0
_ATTRIBUTE_KEYS = "ssh-keys"


class PowerOff(NamedTuple):
    """Why a machine ends, whether its disk is deleted with it, and whether it boots again."""

    why: str
    delete: bool = False
    reboot: bool = False


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
        # After an announced notice the shutdown script runs when the time of the notice is over.
        self.announced = False
        self.shutdown_started = False
        # The inputs of the machine's authorized keys when they were last written.
        self.ssh_inputs: tuple[int, str, bool] = (0, "", False)
        self.drives = Drives(folder, mode)
        # The processes to continue when the machine is resumed; None while it is not suspended.
        self.frozen: list[int] | None = None

    def boot(self) -> None:
        """Prepare the disk and fork init; from here on the machine runs."""
        self.wake_reader, wake_writer = os.pipe()
        _install_signal_handlers(wake_writer)
        if not os.path.isdir(self.folder.disk_path):
            # Copying may take long. With the pid in the state a `stop` can reach this process meanwhile.
            self.folder.set_state(shim_pid=os.getpid())
            # Overlays mount the layers, so there is nothing to copy.
            overlay = str(self.facts.get("mode")) in ("root", "userns")
            _copy_image(self.folder, [] if overlay else list(self.facts.get("layers", [])))
        init.write_scripts(self.folder, self.folder.attributes())
        self.drives.attach_requested(timeout_s=_DRIVES_S)
        os.makedirs(f"{self.folder.path}/ssh", mode=0o711, exist_ok=True)
        state = self.folder.state() or {}
        boots = int(state.get("boots", 0)) + 1
        # A reboot does not prolong the life of a machine.
        self.on_since = float(state.get("on_since") or time.time()) if state.get("rebooted") else time.time()
        self.folder.print_serial(f"boot {boots} of {self.folder.name}")
        # Before the boot, which may move this process into a user namespace.
        self.peers = PeerCheck()
        self.running = self.isolation.boot(self.folder, self._run_init)
        self.init_pid = self.running.init_pid
        self.drives.mark_created()
        self._write_init_pid(str(self.init_pid))
        self.folder.set_state(
            phase="running",
            why="",
            boots=boots,
            on_since=self.on_since,
            rebooted=False,
            shim_pid=os.getpid(),
            address=self.running.address,
            ssh_port=self.running.ssh_port,
            metadata=self.running.listener.getsockname()[:2],
        )

    def _run_init(self, inside: Inside, died: Callable[[], bool], end: Callable[[], object]) -> NoReturn:
        """Be the machine's init, to its end. Runs in the child."""
        if self.drives.nodes:
            try:
                self.drives.create_nodes("/dev")
                init.mount_all(inside.variables)
            except OSError as problem:
                init.report(f"could not attach its disks: {problem}")
        init.Init(inside).run(shim_died=died, on_exit=end)

    def _write_init_pid(self, init_pid: str) -> None:
        """Publish the pid of init, through which ssh sessions enter the machine; empty once it is off."""
        with open(f"{self.folder.path}/ssh/init", "w", encoding="ascii") as file:
            file.write(f"{init_pid}\n" if init_pid else "")

    def run(self) -> PowerOff:
        """Serve metadata and handle requests until there is a reason to end."""
        # Imported only now: the machine boots meanwhile.
        from outlast.clouds.local.http_server import WebServer
        from outlast.clouds.local.metadata_server import MetadataServer
        from outlast.clouds.local.preemption_schedule import PreemptionSchedule

        self.schedule = PreemptionSchedule(self.folder, ran_s=max(0.0, time.time() - self.on_since))
        self.service = MetadataServer(self.folder, self.running.address, self.delete_itself)
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
            if self.kill_at is not None and now >= self.kill_at and not self._starts_late_script(now):
                self.power_off = self.power_off or PowerOff("preempted")
            if self.stop_at is not None and now >= self.stop_at:
                self.power_off = self.power_off or PowerOff("stopped")
            if self.power_off is not None:
                break
            schedule_at = None if self.frozen is not None else self.schedule.next_at
            deadlines = (self.kill_at, self.stop_at, schedule_at, web.next_deadline())
            due = [deadline for deadline in deadlines if deadline is not None]
            ready = web.serve(max(0.0, min([check_at, *due]) - now))
            if self.wake_reader in ready:
                os.read(self.wake_reader, 4096)
            if ready or (schedule_at is not None and time.monotonic() >= schedule_at):
                check_at = 0.0
        # The client that requested the end gets its answer first.
        web.flush()
        return self.power_off

    def check(self) -> None:
        """Handle requests, preemption, changed attributes, and the death of init."""
        self.reap()
        if _terminated:
            self.power_off = PowerOff("its shim was terminated")
        if self.folder.requested("stop") is not None and not self._start_shutdown_script(_STOP_S_MAX):
            self.power_off = PowerOff("stopped")
        # A suspended machine uses no capacity of its zone, so it is not preempted.
        verdict = self.schedule.verdict() if self.frozen is None else ""
        conditions = self.schedule.conditions
        grace_s = conditions.grace_s if "grace_s" in conditions.settings else self.service.granted_s
        if (request := self.folder.requested("preempt")) is not None:
            grace_s = float(request.get("grace_s") or grace_s)
            self.preempt(notice=bool(request.get("notice", True)), grace_s=grace_s)
        if verdict == "lifetime over":
            self.power_off = PowerOff("lifetime over", delete=True)
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
        """Stop or continue the machine's processes, as requested. They notice nothing but the time."""
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
        """Attach and detach disks while the machine runs."""
        self.drives.attach_requested()
        try:
            self.drives.create_nodes(f"/proc/{self.init_pid}/root/dev")
        except OSError as problem:
            self.folder.print_serial(f"could not attach its disks: {problem}")

    def _start_shutdown_script(self, timeout_s: float) -> bool:
        """Start the shutdown script; power goes off when it ends. Return False if there is none, or if suspended."""
        if self.frozen is not None or not self.folder.attributes().get("shutdown-script"):
            return False
        if not self.shutdown_started:
            self.shutdown_started = True
            self.stop_at = time.monotonic() + timeout_s
            os.kill(self.init_pid, init.SIGPWR)
        return True

    def _refresh_ssh(self) -> None:
        """Write authorized keys and start sshd if keys were added since the last check."""
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
        """Give the preemption notice and start the grace time; without notice, power off now."""
        if not notice:
            self.kill_at = 0.0
        elif self.kill_at is None:
            self.kill_at = time.monotonic() + grace_s
            self.folder.print_serial(f"notice: preempted, {grace_s:g} s left")
            self.folder.set_state(why="preempted")
            self.service.preempted = True
            self.announced = self.service.announces
            if not self.announced:
                self._start_shutdown_script(grace_s)

    def _starts_late_script(self, now: float) -> bool:
        """Start the shutdown script at the end of an announced notice, as GCE does; return whether it starts now."""
        from outlast.clouds.local.zones import GRACE_S

        announced, self.announced = self.announced, False
        if not announced or not self._start_shutdown_script(GRACE_S):
            return False
        self.kill_at = now + GRACE_S
        return True

    def delete_itself(self) -> None:
        """Handle the machine's request to delete itself and its disk."""
        self.power_off = self.power_off or PowerOff("deleted itself", delete=True)

    def reap(self) -> None:
        try:
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                if reaped[0] == self.init_pid:
                    self.power_off = self.power_off or self._ending(os.waitstatus_to_exitcode(reaped[1]))
        except ChildProcessError:
            pass

    def _ending(self, exit_code: int) -> PowerOff:
        # A machine that powers itself off after the notice still counts as preempted.
        if self.kill_at is not None:
            return PowerOff("preempted")
        if self.stop_at is not None:
            return PowerOff("stopped")
        if exit_code == init.EXIT_REBOOTED:
            return PowerOff("reboots", reboot=True)
        return PowerOff("powered off by itself" if exit_code == init.EXIT_POWERED_OFF else "its init was killed")

    def end(self, ending: PowerOff) -> int:
        """Kill the machine's processes and record why; return the exit code. The lock is released last."""
        self._write_init_pid("")
        if ending.delete:
            self.folder.set_state(phase="stopping", why=ending.why)
        if ending.why == "preempted":
            # A preempted machine disappears without closing its connections, which a killed process would do.
            self.isolation.cut()
        if not self.isolation.kill():
            self.folder.set_state(phase="broken", why="some of its processes could not be killed")
            return 0
        if ending.reboot:
            # It stays `running`, as on GCE, where only the guest's system starts again.
            self.folder.set_state(rebooted=True, shim_pid=None)
            return init.EXIT_REBOOTED
        self.folder.print_serial(f"power is off: {ending.why}")
        if ending.delete:
            remove_tree(self.folder.discard())
        else:
            self.folder.set_state(phase="stopped", why=ending.why, stopped_at=time.time())
        return 0


_terminated = False


def _install_signal_handlers(wake_writer: int) -> None:
    """Let every relevant signal wake the main loop, and none interrupt it."""

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
    """Create the boot disk. It appears in one step, so an interrupted boot starts over."""
    draft = f"{folder.path}/disk.draft"
    remove_tree(draft)
    if not layers:
        os.mkdir(draft)
    else:
        # `cp` shares blocks where the file system supports it; Python's modules do not.
        sharing = ["-a", "--reflink=auto"] if sys.platform == "linux" else ["-c", "-R", "-p"]
        source = f"{folder.root}/layers/{layers[-1]}"
        pid = os.posix_spawnp("cp", ["cp", *sharing, source, draft], os.environ)
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if folder.requested("stop") is not None:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        if os.waitstatus_to_exitcode(ended[1]) != 0:
            raise OSError(f"could not copy its image from {source}")
    os.rename(draft, folder.disk_path)


def main(arguments: list[str]) -> NoReturn:
    folder = Folder(arguments[0])
    # The machine's processes must not inherit the lock: a dead machine would look alive.
    os.set_inheritable(int(arguments[1]), False)
    try:
        machine = Shim(folder, arguments[2])
        machine.boot()
    except OSError as error:
        folder.print_serial(f"boot failed: {error}")
        folder.set_state(phase="broken", why=f"boot failed: {error}")
        os._exit(1)
    # Nothing is left to clean up, and a fast exit makes `stop` fast.
    os._exit(machine.end(machine.run()))


if __name__ == "__main__":
    main(sys.argv[1:])
