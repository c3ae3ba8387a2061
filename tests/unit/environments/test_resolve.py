"""The lock of a project: outlast itself is left out, and other files or settings mean another resolution."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.wheels import index_of, served, write_wheel

from outlast.code.environment import record_of
from outlast.environments.detect import detect
from outlast.environments.project import project_environment
from outlast.environments.resolve import resolve, without_outlast
from outlast.errors import SpecError
from outlast.spec.spec import EnvironmentSpec
from outlast.store.bucket import open_bucket


@pytest.mark.parametrize(
    ("listed", "kept"),
    [
        ("outlast\nnumpy\n", "numpy\n"),
        ("Outlast >= 0.1  # ours\nnumpy\n", "numpy\n"),
        ("outlast==0.1; python_version > '3'\n", ""),
        ("outlast-plugin\noutlasting==1\n", "outlast-plugin\noutlasting==1\n"),
        ("outlast[sweep]\n", "optuna>=5.0\n"),
    ],
)
def test_outlast_itself_is_not_resolved(listed: str, kept: str) -> None:
    assert without_outlast(listed) == kept


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    wheels = tmp_path / "wheels"
    for name in ("greeting", "friend"):
        write_wheel(wheels, name)
    for name, value in {**index_of(wheels), "HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def test_an_included_file_changes_the_resolution(project: Path) -> None:
    (project / "requirements.txt").write_text("-r more.txt\n")
    (project / "more.txt").write_text("greeting\n")
    first, _ = resolve(str(project), detect(str(project)))
    (project / "more.txt").write_text("greeting\nfriend\n")
    second, _ = resolve(str(project), detect(str(project)))
    assert "friend==1.0" not in first
    assert "friend==1.0" in second


def test_an_old_resolution_is_used_if_the_index_does_not_answer(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_NO_CACHE", "1")
    (project / "requirements.txt").write_text("greeting\n")
    detected = detect(str(project))
    with served(project.parent / "wheels") as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{url}/simple")
        lock, _ = resolve(str(project), detected)
    assert resolve(str(project), detected) == (lock, [])
    for path in (project.parent / "home/.outlast/cache/resolutions").iterdir():
        os.utime(path, (0, 0))
    again, remarks = resolve(str(project), detected)
    assert again == lock
    assert "the package index does not answer" in remarks[0]
    (project / "requirements.txt").write_text("greeting>=1\n")
    with pytest.raises(SpecError, match=r"requirements\.txt: resolving") as problem:
        resolve(str(project), detected)
    assert "check your network" in problem.value.hint


def test_a_backend_of_pytorch_is_another_environment() -> None:
    given = {"lock": "torch==2.9\n", "file": "requirements.txt", "python": "3.12", "python_min": "3.11"}
    digests = {record_of("requirements", torch=torch, **given).digest for torch in ("", "cpu", "cu128")}
    assert len(digests) == 3
    assert "PyTorch for cu128" in record_of("requirements", torch="cu128", **given).describe()


def test_a_conda_file_needs_an_image_with_conda(project: Path) -> None:
    (project / "environment.yml").write_text("name: x\n")
    bucket = open_bucket("memory://")
    with pytest.raises(SpecError, match="neither micromamba nor conda"):
        project_environment(bucket, str(project), EnvironmentSpec(), base="default", report=lambda _: None)
    record = project_environment(bucket, str(project), EnvironmentSpec(), base="chosen", report=lambda _: None)
    assert record is not None
    assert record.kind == "conda"
