"""Code and git: the recorded state of a folder, and code fetched from a URL at one commit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from code_trees import Git, write

from outlast.agent.code import fetch_code, fetch_git
from outlast.code.bundle import CodeRecord, git_record, pack, store
from outlast.code.git import public_url, resolve, scrub
from outlast.errors import OutlastError, SpecError
from outlast.store.bucket import Bucket


@pytest.fixture
def remote(tmp_path: Path, git: Git) -> Path:
    """A repository with two commits on `main`, a branch `side`, an annotated and a plain tag."""
    root = write(tmp_path / "remote", {"a.py": "1"})
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    git(root, "tag", "-a", "v1", "-m", "annotated")
    git(root, "checkout", "-qb", "side")
    write(root, {"a.py": "side"})
    git(root, "commit", "-qam", "side")
    git(root, "checkout", "-q", "main")
    write(root, {"a.py": "2"})
    git(root, "commit", "-qam", "second")
    git(root, "tag", "v2")
    return root


def test_records_commit_and_diff_of_a_folder(tmp_path: Path, bucket: Bucket, git: Git) -> None:
    root = write(tmp_path / "code", {"a.py": "old\n", "b.py": "b\n", "c.py": "c\n"})
    assert pack(str(root)).commit == ""
    git(root, "init", "-q")
    assert (pack(str(root)).commit, pack(str(root)).dirty) == ("", True)
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    clean = pack(str(root))
    assert (clean.commit, clean.dirty, clean.diff) == (git(root, "rev-parse", "HEAD"), False, "")
    assert store(bucket, clean).diff == ""
    write(root, {"a.py": "new\n", "b.py": "staged\n"})
    git(root, "add", "b.py")
    os.unlink(root / "c.py")
    bundle = pack(str(root))
    assert bundle.dirty
    assert all(line in bundle.diff for line in ("-old", "+new", "+staged", "-c"))
    record = store(bucket, bundle)
    assert bucket.get(f"blobs/{record.diff}").decode() == bundle.diff
    assert (record.commit, record.dirty) == (clean.commit, True)


def test_an_untracked_file_makes_it_dirty(tmp_path: Path, remote: Path) -> None:
    write(remote, {"new.py": ""})
    assert pack(str(remote)).dirty


def test_the_diff_never_contains_secrets(tmp_path: Path, git: Git) -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nhush\n"
    files = [".env", "gone.pem", "moved.key", "deep/.aws/config", "notes.txt", "was_key.txt", "big.csv", "a.py"]
    root = write(tmp_path / "code", {**dict.fromkeys(files, "hush\n"), "was_key.txt": key, ".outlastignore": "*.csv"})
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    write(
        root,
        {".env": "hush2\n", "deep/.aws/config": "hush2\n", "notes.txt": key, "was_key.txt": "-", "big.csv": "hush2"},
    )
    write(root, {"a.py": "fine\n"})
    git(root, "rm", "-q", "gone.pem")
    git(root, "mv", "moved.key", "moved.txt")
    diff = pack(str(root)).diff
    assert "+fine" in diff
    shown = [line.split(" b/")[-1] for line in diff.splitlines() if line.startswith("diff --git")]
    assert shown == ["a.py", "moved.txt"]  # the new name is an ordinary file of the bundle


def test_the_diff_of_a_part_of_a_repository_is_of_that_part(tmp_path: Path, git: Git) -> None:
    root = write(tmp_path / "repo", {"part/a.py": "1\n", "other/b.py": "1\n"})
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    write(root, {"other/b.py": "2\n"})
    assert not pack(str(root / "part")).dirty
    write(root, {"part/a.py": "2\n"})
    bundle = pack(str(root / "part"))
    assert bundle.dirty
    assert "b/a.py" in bundle.diff
    assert "b.py" not in bundle.diff


def test_a_huge_diff_is_truncated(tmp_path: Path, remote: Path) -> None:
    write(remote, {"a.py": "x = 1\n" * 400_000})
    diff = pack(str(remote)).diff
    assert diff.endswith("... truncated at 1048576 bytes\n")
    assert len(diff) < 1_100_000


def test_the_repository_of_a_git_hook_is_ignored(
    tmp_path: Path, remote: Path, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path / "code", {"mine.py": ""})
    monkeypatch.setenv("GIT_DIR", str(remote / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(remote))
    bundle = pack(str(root))
    assert (bundle.files, bundle.commit) == (1, "")


@pytest.mark.parametrize("ref", ["main", "side", "v1", "v2", "", "refs/heads/side", "heads/side"])
def test_resolves_the_same_refs_as_git(remote: Path, git: Git, ref: str, tmp_path: Path) -> None:
    commit = git(remote, "rev-parse", (ref or "HEAD") + "^{commit}")
    assert resolve(str(remote), ref) == commit
    assert fetch_git(str(remote), ref, "", str(tmp_path / "target")) == commit
    assert (tmp_path / "target" / "a.py").read_text() == git(remote, "show", f"{commit}:a.py")


def test_unresolvable_refs_are_left_to_the_machine(remote: Path, git: Git, tmp_path: Path) -> None:
    commit = git(remote, "rev-parse", "v1^{commit}")
    assert resolve("/no/such/place", commit) == commit
    assert resolve("/no/such/place", "main") == ""
    assert resolve(str(remote), commit[:8]) == ""
    assert fetch_git(str(remote), commit[:8], "", str(tmp_path / "target")) == commit
    with pytest.raises(SpecError, match=r"ref = 'nope': .* has no such branch, tag or commit"):
        resolve(str(remote), "nope")


def test_the_recorded_commit_wins_over_a_branch_that_moved_on(remote: Path, git: Git, tmp_path: Path) -> None:
    commit = resolve(str(remote), "main")
    write(remote, {"a.py": "3"})
    git(remote, "commit", "-qam", "third")
    assert fetch_git(f"file://{remote}", "main", commit, str(tmp_path / "target")) == commit
    assert (tmp_path / "target" / "a.py").read_text() == "2"
    assert (tmp_path / "target" / ".git" / "shallow").exists()


def test_falls_back_to_everything_when_the_server_refuses_a_commit(remote: Path, git: Git, tmp_path: Path) -> None:
    commit = git(remote, "rev-parse", "v1^{commit}")
    git(remote, "config", "uploadpack.allowAnySHA1InWant", "false")
    # The old protocol, which still has servers, gives only the tips of branches.
    os.environ.update(GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="protocol.version", GIT_CONFIG_VALUE_0="0")
    try:
        git(remote, "tag", "-d", "v1")
        assert fetch_git(f"file://{remote}", "", commit, str(tmp_path / "target")) == commit
    finally:
        for name in ("GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0"):
            del os.environ[name]
    assert (tmp_path / "target" / "a.py").read_text() == "1"
    assert not (tmp_path / "target" / ".git" / "shallow").exists()


def test_fetches_submodules(remote: Path, git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.file.allow")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "always")
    outer = write(tmp_path / "outer", {"main.py": ""})
    git(outer, "init", "-q", "-b", "main")
    git(outer, "submodule", "add", "-q", "../remote", "lib")
    git(outer, "add", "-A")
    git(outer, "commit", "-qm", "with a submodule")
    fetch_git(f"file://{outer}", "main", "", str(tmp_path / "target"))
    assert (tmp_path / "target" / "lib" / "a.py").read_text() == "2"
    assert pack(str(tmp_path / "target")).files == 3


@pytest.mark.parametrize("ref", ["nope", "deadbeef", "0" * 40])
def test_a_missing_ref_is_named(remote: Path, tmp_path: Path, ref: str) -> None:
    with pytest.raises(SpecError, match=f"ref = '{ref}'"):
        fetch_git(str(remote), ref, "", str(tmp_path / "target"))
    assert not (tmp_path / "target").exists()


def test_a_missing_repository_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such repository"):
        fetch_git(str(tmp_path / "nowhere"), "main", "", str(tmp_path / "target"))
    assert not (tmp_path / "target").exists()


def test_a_machine_without_git_reports_it(remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OutlastError, match="the machine has no `git`"):
        fetch_git(str(remote), "main", "", str(tmp_path / "target"))
    assert resolve(str(remote), "main") == ""
    assert pack(str(remote)).files == 1


@pytest.mark.parametrize(("url", "ref"), [("--upload-pack=touch x", "main"), ("", "main"), ("/x", "--output=x")])
def test_urls_and_refs_are_never_parsed_as_options(tmp_path: Path, url: str, ref: str) -> None:
    with pytest.raises(SpecError):
        fetch_git(url, ref, "", str(tmp_path / "target"))
    with pytest.raises(SpecError):
        resolve(url, ref)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://someone:hush@example.org/a.git", "https://example.org/a.git"),
        ("https://hush@example.org:8443/a.git?key=hush", "https://example.org:8443/a.git"),
        ("ssh://git:hush@example.org/a.git", "ssh://git@example.org/a.git"),
        ("git@example.org:a/b.git", "git@example.org:a/b.git"),
        ("/a/folder", "/a/folder"),
    ],
)
def test_no_credentials_are_shown(url: str, shown: str) -> None:
    assert public_url(url) == shown
    said = scrub(f"fatal: unable to access '{url}/': hush was refused", url)
    assert said == f"fatal: unable to access '{shown}/': {'***' if 'hush' in url else 'hush'} was refused"


def test_no_credentials_in_the_record() -> None:
    commit = "0" * 40
    record = git_record("https://someone:hush@127.0.0.1:9/a.git", commit)
    assert record == CodeRecord(kind="git", url="https://127.0.0.1:9/a.git", ref=commit, commit=commit)


def test_no_credentials_in_the_error_of_a_fetch(tmp_path: Path) -> None:
    # Port 9 of this computer: no process listens, and no packet leaves the computer.
    with pytest.raises(OutlastError) as raised:
        fetch_git("http://someone:h%75sh@127.0.0.1:9/hush.git", "main", "", str(tmp_path / "target"))
    seen = f"{raised.value!r} {raised.value.message} {raised.value.hint} {raised.value.__cause__!r}"
    assert "h%75sh" not in seen
    assert "someone" not in seen
    assert raised.value.__suppress_context__


def test_fetches_every_kind_and_starts_clean(tmp_path: Path, bucket: Bucket, remote: Path) -> None:
    target = tmp_path / "machine" / "code"
    bundle = store(bucket, pack(str(write(tmp_path / "code", {"b.py": "bundle"}))))
    by_git = git_record(str(remote), "side")
    write(target, {"left/over": "of an attempt before"})
    write(target.parent / "code.fetched", {"half": "fetched"})
    assert fetch_code(bucket, bundle, str(target)) == bundle
    assert os.listdir(target) == ["b.py"]
    fetched = fetch_code(bucket, by_git, str(target))
    assert fetched == by_git
    assert fetched.commit == resolve(str(remote), "side")
    assert sorted(os.listdir(target)) == [".git", "a.py"]
    assert fetch_code(bucket, CodeRecord(kind="none"), str(target)).kind == "none"
    assert os.listdir(target) == []
    assert os.listdir(target.parent) == ["code"]
