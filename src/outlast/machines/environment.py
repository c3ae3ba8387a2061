"""The packages of a project on a machine that a user created: installed over ssh, first on the PATH of its shells."""

from __future__ import annotations

import io
import shlex
import tarfile
from collections.abc import Callable
from importlib import resources

from outlast.code.environment import EnvironmentRecord
from outlast.errors import CloudError, OutlastError
from outlast.kit.libraries import uv_archive
from outlast.kit.uv import reason_of
from outlast.machines.ssh import Link

# Where images (`images/steps.py`) and machines by hand have their packages. A machine that shares this computer's root
# file system has only its home folder to itself.
SHELL_LINE = (
    'for folder in /opt/outlast/env "$HOME/.outlast/env"; do [ ! -x "$folder/bin/python" ] || '
    'case ":$PATH:" in *":$folder/bin:"*) ;; *) PATH="$folder/bin:$PATH"; export PATH ;; esac; done # outlast'
)
# Shells that ssh starts for a command read .bashrc, login shells reset the PATH and read the profile.
SHELL_PATHS = f"""
line={shlex.quote(SHELL_LINE)}
for file in "$HOME/.bashrc" "$HOME/.profile"; do
    grep -qs ' # outlast$' "$file" || {{
        {{ printf '%s\\n' "$line"; cat "$file" 2>/dev/null || :; }} > "$file.outlast" && mv "$file.outlast" "$file"; }}
done
"""
_INSTALL = """
set -e
build="$HOME/.outlast/environment" place=/opt/outlast/env
if ! mkdir -p "$place" 2>/dev/null || [ ! -w "$place" ]; then
    sudo -n mkdir -p "$place" 2>/dev/null && sudo -n chown "$(id -u):$(id -g)" "$place" || place="$HOME/.outlast/env"
fi
[ ! -x "$place/bin/python" ] || { echo "@image@"; exit 0; }
mkdir -p "$place/bin"
tar -xzf "$build/uv.tar.gz" -C "$build"
uv="$build/bin/uv"
export UV_PYTHON_INSTALL_DIR="${place%/*}/python" UV_NO_CACHE=1 UV_NO_CONFIG=1 UV_LINK_MODE=copy
export UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1
python="$("$uv" python find --system --no-python-downloads "@WANTED@" 2>/dev/null ||
    "$uv" python find --system --no-python-downloads ">=@OLDEST@,<3.15" 2>/dev/null || echo "@WANTED@")"
"$uv" venv --quiet --allow-existing --relocatable --python "$python" "$place"
cp "$uv" "$place/bin/uv"
"$uv" pip install --no-deps --python "$place/bin/python" --requirement "$build/lock" @TORCH@
for packages in "$place"/lib/python3*/site-packages; do
    [ -e "$packages/pip" ] || { mkdir "$packages/pip"; touch "$packages/pip/__init__.py"
        cp "$build/pip_program.py" "$packages/pip/__main__.py"; cp "$build/pip" "$place/bin/pip"; }
done
rm -rf "$build"
"""


def pip_files() -> dict[str, str]:
    """Return `bin/pip` of an environment and the module that it runs, by the names that the scripts use."""
    program = resources.files("outlast.environments").joinpath("pip_program.py").read_text("utf-8")
    command = '#!/bin/sh\nexec "$(dirname -- "$(realpath -- "$0")")/python" -m pip "$@"\n'
    return {"pip": command, "pip_program.py": program}


def with_packages(command: str) -> str:
    """Return a command for the remote shell that finds the machine's packages first."""
    return f"{SHELL_LINE}\n{command}"


def install_environment(link: Link, record: EnvironmentRecord, lock: bytes, *, report: Callable[[str], None]) -> None:
    """Install packages on a machine, unless its image has some. Raises OutlastError with uv's reason."""
    report(f"environment: {record.describe()}: building on {link.name}")
    architecture = link.run(["uname", "-m"], timeout_s=60.0).stdout.decode().strip()
    pip = {name: text.encode() for name, text in pip_files().items()}
    files = {"uv.tar.gz": uv_archive(architecture=architecture), "lock": lock, **pip}
    folder = '"$HOME/.outlast/environment"'
    link.run(f"mkdir -p {folder} && tar -x -C {folder}", input=_packed(files))
    torch = f"--torch-backend {shlex.quote(record.torch)}" if record.torch else ""
    script = _INSTALL.replace("@WANTED@", record.python).replace("@OLDEST@", record.python_min)
    done = link.run(["bash", "-c", script.replace("@TORCH@", torch)], check=False)
    if done.returncode:
        raise OutlastError(
            f"installing {record.file} on {link.name}: {reason_of(done.stderr.decode('utf-8', 'replace'))}",
            hint=f"the machine runs; delete it with `outlast machine delete {link.name}`, or use `--environment none`",
        )
    if b"@image@" in done.stdout:
        report(f"environment: {record.file} is not used: the image has its own packages")
    _put_first(link)


def link_environment(link: Link, path: str) -> None:
    """Use an environment of this computer on a machine that shares its files. Raises CloudError."""
    linked = f'mkdir -p "$HOME/.outlast" && ln -sfn {shlex.quote(path)} "$HOME/.outlast/env"'
    link.run(f"[ -x /opt/outlast/env/bin/python ] || {{ {linked}; }}")
    _put_first(link)


def _put_first(link: Link) -> None:
    done = link.run(["sh", "-c", SHELL_PATHS], check=False)
    if done.returncode:
        raise CloudError(f"could not change the PATH on {link.name}: {done.stderr.decode('utf-8', 'replace')[-300:]}")


def _packed(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, body in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(body), 0o755
            archive.addfile(entry, io.BytesIO(body))
    return packed.getvalue()
