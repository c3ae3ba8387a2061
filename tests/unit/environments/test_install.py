"""Environments on a machine, built with the real uv: several package indexes, repositories, a missing Python."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.support.wheels import index_of, served, write_wheel

from outlast.code.environment import EnvironmentRecord, record_of, store_lock
from outlast.environments.archive import prune
from outlast.environments.detect import detect
from outlast.environments.install import Installer, Tools
from outlast.environments.resolve import resolve
from outlast.kit.uv import find_uv, run_uv
from outlast.store.bucket import Bucket, open_bucket

OURS = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def bucket() -> Bucket:
    return open_bucket("memory://")


@pytest.fixture(autouse=True)
def _no_other_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HOME": str(tmp_path / "home"), "UV_NO_CACHE": "1", "UV_HTTP_RETRIES": "0"}.items():
        monkeypatch.setenv(name, value)


def installer(bucket: Bucket, record: EnvironmentRecord, root: Path, **settings: str) -> tuple[Installer, list[str]]:
    said: list[str] = []
    own = {"UV_NO_CONFIG": "1", **settings}
    calls = Tools(uv=find_uv, uv_path=find_uv, library=lambda _: [], git=lambda: said.append("git"), settings=own)
    return Installer(bucket, record, root=str(root), tools=calls, report=said.append), said


def recorded(bucket: Bucket, project: Path) -> EnvironmentRecord:
    found = detect(str(project))
    lock, _ = resolve(str(project), found)
    record = record_of(found.kind, lock=lock, file=found.file, python=found.python, python_min=found.python_min)
    return store_lock(bucket, record, lock)


def python_of(path: str, program: str) -> str:
    return subprocess.run([f"{path}/bin/python", "-c", program], capture_output=True, text=True, check=True).stdout


def test_a_lock_with_an_index_for_one_package_is_built_from_both(bucket: Bucket, tmp_path: Path) -> None:
    # As for PyTorch: its own index has a build that PyPI lacks, and old copies of other packages.
    main, torch = tmp_path / "indexes/main", tmp_path / "indexes/torch"
    write_wheel(main, "learner", version="1.5")
    write_wheel(main, "plain", version="2.0")
    write_wheel(torch, "learner", version="2.0+cu128")
    write_wheel(torch, "plain", version="0.5")
    index_of(main), index_of(torch)
    (project := tmp_path / "project").mkdir()
    with served(tmp_path / "indexes") as url:
        (project / "pyproject.toml").write_text(f"""
[project]
name = "study"
version = "1"
requires-python = ">=3.11"
dependencies = ["learner", "plain"]
[tool.uv.sources]
learner = {{ index = "torch" }}
[[tool.uv.index]]
name = "torch"
url = "{url}/torch/simple"
explicit = true
[[tool.uv.index]]
name = "main"
url = "{url}/main/simple"
default = true
""")
        run_uv(["lock", "--quiet"], what="locking", cwd=str(project))
        path = installer(bucket, recorded(bucket, project), tmp_path / "machine")[0].install()
    about = "from importlib.metadata import version; print(version('learner'), version('plain'))"
    assert python_of(path, about).split() == ["2.0+cu128", "2.0"]


def test_a_requirement_from_a_repository_brings_git(bucket: Bucket, tmp_path: Path) -> None:
    (source := tmp_path / "source").mkdir()
    (source / "tool.py").write_text("WHERE = 'a repository'\n")
    (source / "pyproject.toml").write_text(
        '[project]\nname = "tool"\nversion = "1"\n[build-system]\nrequires = []\n'
        'build-backend = "backend"\nbackend-path = ["."]\n'
    )
    (source / "backend.py").write_text(f"""
import shutil
def build_wheel(folder, *_):
    return shutil.copy({str(write_wheel(tmp_path, "tool", version="1"))!r}, folder).rpartition("/")[2]
""")
    for argv in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        subprocess.run(["git", *argv], cwd=source, check=True)
    (project := tmp_path / "project").mkdir()
    (project / "requirements.txt").write_text(f"tool @ git+file://{source}\n")
    made, said = installer(bucket, recorded(bucket, project), tmp_path / "machine")
    assert python_of(made.install(), "import tool; print(tool.NAME)").strip() == "tool"
    assert "git" in said


def write_python(folder: Path) -> None:
    """Write a mirror with one Python: this one, without packages and tests."""
    name = f"python{OURS}"
    left_out = ("site-packages", "test", "idlelib", "tkinter", "ensurepip", "__pycache__", "lib2to3")

    def chosen(one: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = one.name.split("/")
        unwanted = any(part in left_out or part.startswith("config-") for part in parts)
        return None if unwanted else one

    with tarfile.open(folder / "python.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(os.path.realpath(sys.executable), f"python/bin/{name}")
        archive.add(os.path.dirname(os.__file__), f"python/lib/{name}", filter=chosen)
        for library in Path(sys.base_prefix, "lib").glob("libpython3*.so*"):
            archive.add(library, f"python/lib/{library.name}")


def mirror(folder: Path, url: str) -> str:
    major, minor, patch = sys.version_info[:3]
    about = {
        "name": "cpython",
        "arch": {"family": platform.machine(), "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": major,
        "minor": minor,
        "patch": patch,
        "prerelease": "",
        "variant": None,
        "url": f"{url}/python.tar.gz",
        "sha256": None,
        "build": "20260101",
    }
    key = f"cpython-{major}.{minor}.{patch}-linux-{platform.machine()}-gnu"
    (folder / "pythons.json").write_text(json.dumps({key: about}))
    return f"{url}/pythons.json"


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="machines run Linux")
def test_a_python_that_the_image_lacks_is_downloaded_once(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "wheels", "greeting")
    (project := tmp_path / "project").mkdir()
    (project / "requirements.txt").write_text("greeting\n")
    (project / ".python-version").write_text(f"{OURS}\n")
    (pythons := tmp_path / "pythons").mkdir()
    write_python(pythons)
    root = tmp_path / "machine"
    settings = index_of(tmp_path / "wheels")
    monkeypatch.setenv("UV_DEFAULT_INDEX", settings["UV_DEFAULT_INDEX"])
    record = recorded(bucket, project)
    # The image has no Python.
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    with served(pythons) as url:
        settings["UV_PYTHON_DOWNLOADS_JSON_URL"] = mirror(pythons, url)
        first, said = installer(bucket, record, root, **settings)
        path = first.install()
        assert f"environment: this image has no Python {OURS}: downloading it" in said
        assert first.is_new
        first.store()
        assert not first.is_new
    root.rename(tmp_path / "first-machine")
    # Neither the mirror nor the index answers any more.
    second, said = installer(bucket, record, root, **{**settings, "UV_DEFAULT_INDEX": "http://127.0.0.1:1"})
    assert second.install() == path
    assert [line.partition(", ")[0] for line in said] == [
        f"environment: Python {OURS}: cached in the workspace",
        f"environment: {record.describe()}: cached in the workspace".partition(", ")[0],
    ]
    assert not second.is_new
    where = python_of(path, "import greeting, sys; print(sys.base_prefix)").strip()
    assert where.startswith(str(root / "python"))
    second.mark_used()
    used = [entry.key for entry in bucket.list("environments/") if entry.key.endswith(".used")]
    assert len(used) == 2
    assert prune(bucket, unused_s=1e9) == []
    assert len(prune(bucket, unused_s=-1.0)) == 2
