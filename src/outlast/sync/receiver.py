"""The receiver of a sync: writes complete files below one folder, and records which files it created there.

It is sent over ssh and run by the machine's `python3` (3.7 or newer), so it imports the standard library only.
`Pull` uses the same code for the local folder. Requests arrive on stdin: four bytes of length, a JSON header, and
`size` bytes of body. The answer to each is one line of JSON.
"""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import stat
import struct
import sys
import time
from typing import Any

STATE_DIR = ".outlast-sync"
# The sender sends something every few seconds. After this silence it is gone, even if TCP has not noticed.
_SILENCE_S = 120.0
_STALE_S = 600.0
_SKIPPED = (STATE_DIR, ".git", "__pycache__")

_SYSTEM = [
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/sbin",
    "/sys",
    "/usr",
    "/System",
    "/Library",
    "/Applications",
]
_USABLE = ["/usr/local", "/usr/src", "/dev/shm"]
_SHARED = "/ /home /root /media /mnt /opt /run /srv /tmp /usr/local /usr/src /dev/shm /var /var/lib /var/log /var/tmp"
_SHARED += " /private /Users /Volumes"


class SyncRefused(Exception):
    """A request that the receiver refuses: the message for the user, and the next step."""

    def __init__(self, message: str, hint: str = "") -> None:
        Exception.__init__(self, message)
        self.message = message
        self.hint = hint


def forbidden(path: str, home: str) -> str:
    """Return why a sync must not write to this folder; empty if it may."""
    if path in _SHARED.split():
        return "is shared with other users or programs"
    if home == path or home.startswith(path + "/"):
        return "is the home folder" if home == path else "contains the home folder"
    if _below(path, _SYSTEM) and not _below(path, _USABLE):
        return "belongs to the system"
    return ""


def _below(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def resolve(given: str, home: str, base: str = "") -> str:
    """Return the real path of the folder. Both the given and the resolved path must be allowed. Raises SyncRefused."""
    path = os.path.expanduser(given) if given.startswith("~") else given
    path = os.path.normpath(os.path.join(home, base, path))
    real = os.path.realpath(path)
    for judged in (path, real):
        why = forbidden(judged, os.path.realpath(home)) or forbidden(judged, home)
        if why:
            shown = f"`{given}`" if judged == given else f"`{given}` is {judged}, which"
            raise SyncRefused(f"{shown} {why}", "use a separate folder, such as `~/project`")
    if os.path.lexists(real) and not os.path.isdir(real):
        raise SyncRefused(f"`{given}` is not a folder", "pass a folder; it is created if it does not exist")
    return real


def parts_of(path: str) -> list[str]:
    """Split a path that stays below the folder. Raises SyncRefused for any other."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts) or parts[0] == STATE_DIR:
        raise SyncRefused(f"{path!r} leads out of the folder")
    return parts


class FileReceiver:
    """One destination folder. It records, for each origin, which paths it created."""

    def __init__(self, root: str, origin: str) -> None:
        self.root = root
        self.origin = origin
        self.created = not os.path.isdir(root)
        os.makedirs(root, exist_ok=True)
        self.state_dir = os.path.join(root, STATE_DIR)
        self.journal = os.path.join(self.state_dir, origin + ".paths")
        self.known = os.path.exists(self.journal)
        self.empty = not any(name != STATE_DIR for name in os.listdir(root))
        self.owned: set[str] = self._read() if self.known else set()
        self.seen: dict[str, list[int]] = {}
        self.number = 0

    def open(self) -> None:
        """Prepare the folder for writing: clean up after dead receivers and compact the journal."""
        os.makedirs(self.state_dir, exist_ok=True)
        with open(os.path.join(self.state_dir, ".gitignore"), "w") as file:
            file.write("*\n")
        for name in os.listdir(self.state_dir):
            if name.startswith("tmp-") and _left_over(os.path.join(self.state_dir, name), name[4:]):
                shutil.rmtree(os.path.join(self.state_dir, name), ignore_errors=True)
        self.scratch = os.path.join(self.state_dir, f"tmp-{os.getpid()}")
        os.makedirs(self.scratch, exist_ok=True)
        fresh = self.journal + ".new"
        with open(fresh, "wb") as compact:
            compact.write(b"".join(b"+" + os.fsencode(path) + b"\0" for path in sorted(self.owned)))
        os.replace(fresh, self.journal)
        self.log = open(self.journal, "ab", 0)  # noqa: SIM115 - open until `close`

    def check_delete(self, given: str) -> None:
        """Raise SyncRefused if the folder has files that this origin never synced."""
        if not self.empty and not self.known:
            raise SyncRefused(
                f"`{given}` has files that this sync did not create, and `--delete` could delete them",
                "use an empty folder, or omit `--delete`",
            )

    def close(self) -> None:
        self.log.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _read(self) -> set[str]:
        with open(self.journal, "rb") as file:
            entries = file.read().split(b"\0")[:-1]
        owned: set[str] = set()
        for entry in entries:
            path = os.fsdecode(entry[1:])
            if entry[:1] == b"+":
                owned.add(path)
            else:
                owned.discard(path)
        return owned

    def claim(self, paths: list[str]) -> None:
        """Record the paths as ours, before they are written: a crash must not leave unrecorded files."""
        new = [path for path in paths if path not in self.owned]
        for path in new:
            parts_of(path)
        if new:
            self.log.write(b"".join(b"+" + os.fsencode(path) + b"\0" for path in new))
            self.owned.update(new)

    def conflicts(self, folders: list[str]) -> dict[str, str]:
        """Return those folders that are files or links here and that we did not create."""
        found: dict[str, str] = {}
        for folder in folders:
            parts_of(folder)
            try:
                mode = os.lstat(os.path.join(self.root, folder)).st_mode
            except OSError:
                continue
            if not stat.S_ISDIR(mode) and folder not in self.owned:
                found[folder] = "a link" if stat.S_ISLNK(mode) else "a file"
        return found

    def put(self, path: str, body: bytes, mode: int, mtime_ns: int) -> None:
        self.number += 1
        fresh = os.path.join(self.scratch, str(self.number))
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(handle, "wb", 0) as file:
                view = memoryview(body)
                while view:
                    view = view[file.write(view) :]
                os.fchmod(handle, mode & 0o777)
            os.utime(fresh, ns=(mtime_ns, mtime_ns))
            self._place(path, fresh)
        finally:
            _unlink(fresh)

    def link(self, path: str, target: str) -> None:
        self.number += 1
        fresh = os.path.join(self.scratch, str(self.number))
        os.symlink(target, fresh)
        try:
            self._place(path, fresh)
        finally:
            _unlink(fresh)

    def _place(self, path: str, fresh: str) -> None:
        """Move a file to its path, through real folders only: a link could lead out of the root."""
        name = parts_of(path)[-1]
        folder = self._folder(path)
        try:
            self.claim([path])
            try:
                os.rename(fresh, name, dst_dir_fd=folder)
            except IsADirectoryError:
                # Usually emptied by us just before. `rmdir` refuses a folder with files of others.
                os.rmdir(name, dir_fd=folder)
                os.rename(fresh, name, dst_dir_fd=folder)
        finally:
            os.close(folder)

    def _folder(self, path: str) -> int:
        handle = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        walked = ""
        for part in parts_of(path)[:-1]:
            walked = walked + "/" + part if walked else part
            try:
                below = self._enter(handle, part, walked)
            finally:
                os.close(handle)
            handle = below
        return handle

    def _enter(self, handle: int, part: str, walked: str) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        try:
            return os.open(part, flags, dir_fd=handle)
        except FileNotFoundError:
            pass
        except OSError as problem:
            if problem.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            if walked not in self.owned:
                raise SyncRefused(f"`{walked}` is a file or link that this sync did not create") from None
            os.unlink(part, dir_fd=handle)
        try:
            os.mkdir(part, dir_fd=handle)
        except FileExistsError:
            pass
        return os.open(part, flags, dir_fd=handle)

    def drop(self, path: str) -> bool:
        """Delete a file of ours and the folders that this leaves empty. Return False if it is not ours."""
        parts = parts_of(path)
        if path not in self.owned:
            return False
        try:
            self._unlink_below(parts)
        except (FileNotFoundError, NotADirectoryError):
            pass  # already deleted
        self.log.write(b"-" + os.fsencode(path) + b"\0")
        self.owned.discard(path)
        return True

    def _unlink_below(self, parts: list[str]) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        handles = [os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)]
        try:
            for part in parts[:-1]:
                handles.append(os.open(part, flags, dir_fd=handles[-1]))
            os.unlink(parts[-1], dir_fd=handles[-1])
            for depth in range(len(parts) - 1, 0, -1):
                try:
                    os.rmdir(parts[depth - 1], dir_fd=handles[depth - 1])
                except OSError:
                    break
        finally:
            for handle in handles:
                os.close(handle)

    def changes(self) -> tuple[list[list[Any]], list[str]]:
        """Return files that changed since the previous call, with size and time, and those that are gone."""
        now: dict[str, list[int]] = {}
        for folder, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if name not in _SKIPPED]
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            for name in names + links:
                whole = os.path.join(folder, name)
                try:
                    info = os.lstat(whole)
                except OSError:
                    continue
                if stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
                    now[os.path.relpath(whole, self.root)] = [info.st_size, info.st_mtime_ns, info.st_mode]
        fresh = [[path, mark[0], mark[1]] for path, mark in now.items() if self.seen.get(path) != mark]
        gone = [path for path in self.seen if path not in now]
        self.seen = now
        return fresh, gone


def _left_over(path: str, pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
        return False
    except ProcessLookupError:
        return time.time() - os.stat(path).st_mtime > _STALE_S
    except (OSError, ValueError):
        return False


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


class FrameReader:
    """Reads frames from a descriptor. Raises EOFError at the end and after a long silence."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.buffer = bytearray()

    def read(self, count: int) -> bytes:
        while len(self.buffer) < count:
            if not select.select([self.handle], [], [], _SILENCE_S)[0]:
                raise EOFError
            body = os.read(self.handle, 1 << 20)
            if not body:
                raise EOFError
            self.buffer += body
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        return taken

    def frame(self) -> tuple[dict[str, Any], bytes]:
        header = json.loads(self.read(struct.unpack(">I", self.read(4))[0]).decode("ascii"))
        return header, self.read(header.get("size", 0))


def hello(request: dict[str, Any]) -> tuple[FileReceiver, dict[str, Any]]:
    """Open the requested folder and describe it. Raises SyncRefused."""
    home = os.path.expanduser("~")
    given = str(request["path"])
    root = resolve(given, home, str(request.get("base") or ""))
    pull = bool(request.get("pull"))
    if pull and not os.path.isdir(root):
        raise SyncRefused(
            f"folder `{given}` does not exist", "check the path, or sync again once the run has created it"
        )
    store = FileReceiver(root, str(request["origin"]))
    if not pull:
        if request.get("delete"):
            store.check_delete(given)
        store.open()
    tools = {"rsync": bool(shutil.which("rsync")), "python": sys.version.split()[0]}
    answer: dict[str, Any] = {"root": root, "home": home, "created": store.created, "tools": tools}
    answer["owned"] = sorted(store.owned) if request.get("delete") else []
    answer["scratch"] = "" if pull else os.path.relpath(store.scratch, root)
    return store, answer


def handle(store: FileReceiver, request: dict[str, Any], body: bytes) -> dict[str, Any]:
    action, path = request["do"], str(request.get("path", ""))
    if action == "put":
        store.put(path, body, request["mode"], request["mtime_ns"])
    elif action == "link":
        store.link(path, str(request["target"]))
    elif action == "drop":
        return {"dropped": store.drop(path)}
    elif action == "claim":
        store.claim(request["paths"])
    elif action == "conflicts":
        return {"found": store.conflicts(request["folders"])}
    elif action == "changes":
        fresh, gone = store.changes()
        return {"fresh": fresh, "gone": gone}
    return {}


def main() -> None:
    frames = FrameReader(0)
    store: FileReceiver | None = None
    try:
        while True:
            request, body = frames.frame()
            answer: dict[str, Any] = {"n": request["n"]}
            try:
                if store is None:
                    store, more = hello(request)
                else:
                    more = handle(store, request, body)
                answer.update(more)
            except SyncRefused as problem:
                answer.update(refused=problem.message, hint=problem.hint)
            except OSError as problem:
                answer.update(refused=problem.strerror or str(problem), hint="")
            sys.stdout.buffer.write(json.dumps(answer).encode("ascii") + b"\n")
            sys.stdout.buffer.flush()
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass
    finally:
        if store is not None and hasattr(store, "scratch"):
            store.close()


if __name__ == "__main__":
    main()
