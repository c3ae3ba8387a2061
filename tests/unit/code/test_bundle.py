"""Bundles: the same content has the same name, secrets are never packed, and unpacking restores the content."""

from __future__ import annotations

import io
import os
import shutil
import socket
import tarfile
import tempfile
import threading
from pathlib import Path

import pytest
from code_trees import Git, write, zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.code.bundle import CodeRecord, code_key, pack, store, unpack
from outlast.errors import Missing, SpecError, WorkspaceError
from outlast.store.bucket import Bucket
from outlast.store.object_store import ObjectBucket

SEGMENTS = st.text(
    st.characters(exclude_characters="/\x00", exclude_categories=["Cs"]), min_size=1, max_size=12
).filter(lambda name: name != "__pycache__" and not name.startswith(".") and len(name.encode()) < 200)
TREES = st.dictionaries(
    st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join),
    st.tuples(st.binary(max_size=200), st.booleans()),
    max_size=8,
)


def _contents(root: str) -> dict[str, tuple[bytes, bool] | str]:
    found: dict[str, tuple[bytes, bool] | str] = {}
    for folder, folders, names in os.walk(root):
        for name in [*names, *(name for name in folders if os.path.islink(os.path.join(folder, name)))]:
            path = os.path.join(folder, name)
            key = os.path.relpath(path, root)
            if os.path.islink(path):
                found[key] = os.readlink(path)
            else:
                found[key] = (Path(path).read_bytes(), bool(os.stat(path).st_mode & 0o100))
    return found


def _names(folder: Path, bucket: Bucket, tmp_path: Path) -> list[str]:
    record = store(bucket, pack(str(folder)))
    target = tempfile.mkdtemp(dir=tmp_path)
    unpack(bucket, record, target)
    return sorted(_contents(target))


@pytest.mark.full
@settings(max_examples=50, deadline=None)
@given(tree=TREES)
def test_any_tree_packs_the_same_and_unpacks_equal(tree: dict[str, tuple[bytes, bool]]) -> None:
    bucket = ObjectBucket("memory://")
    with tempfile.TemporaryDirectory() as scratch:
        first, second, out = (os.path.join(scratch, name) for name in ("first", "second", "out"))
        os.mkdir(first)
        for path, (body, executable) in tree.items():
            _make(os.path.join(first, path), body, executable)
        shutil.copytree(first, second)
        bundle = pack(first)
        assert pack(second).sha256 == bundle.sha256
        unpack(bucket, store(bucket, bundle), out)
        left_out = tuple(item.path for item in bundle.left_out)
        expected = _contents(first)
        for path in [path for path in expected if path in left_out or path.startswith(_folders(left_out))]:
            del expected[path]
        assert _contents(out) == expected


def _folders(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path for path in paths if path.endswith("/"))


def _make(path: str, body: bytes, executable: bool) -> None:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).write_bytes(body)
        os.chmod(path, 0o755 if executable else 0o644)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        pass  # a file where another path has a folder: the tree goes without it


def test_the_name_does_not_depend_on_machine_time_or_order(tmp_path: Path) -> None:
    write(tmp_path / "one", {"b.py": "2", "a/c.py": "3", "run": "4"})
    write(tmp_path / "two", {"run": "4", "a/c.py": "3", "b.py": "2"})
    for number, name in enumerate(("one", "two")):
        os.chmod(tmp_path / name / "run", (0o700, 0o755)[number])
        os.chmod(tmp_path / name / "b.py", (0o600, 0o664)[number])
        os.utime(tmp_path / name / "b.py", (number, number))
    bundle = pack(str(tmp_path / "one"))
    assert bundle.sha256 == pack(str(tmp_path / "two")).sha256
    # A fixed value: if it changes, equal code of old and new runs has different names.
    assert bundle.sha256 == "d9fe5bf94bf85cc8aaa4443e0c5599a6770ce375d299ee61e6d16f3f731e9ed2"


def test_git_and_our_own_reading_give_the_same_bundle(tmp_path: Path, git: Git) -> None:
    root = write(
        tmp_path / "code",
        {
            ".gitignore": "*.log\n!keep.log\n/out/\n",
            "sub/.gitignore": "!deep.log\n",
            "lib/.gitignore": "*.so",
        },
    )
    write(root, {"a.py": "1", "b.log": "2", "keep.log": "3", "out/x": "4", "sub/deep.log": "5", "sub/out/y": "6"})
    write(root, {"lib/a.so": "7", "lib/b.c": "8", "lib/c.log": "9"})
    before = pack(str(root))
    git(root / "lib", "init", "-q")  # a nested repository, which has its own rules
    git(root, "init", "-q")
    with_git = pack(str(root))
    os.rename(root / ".git", tmp_path / "aside")
    without = pack(str(root))
    assert with_git.sha256 == without.sha256 != before.sha256
    assert (before.files, with_git.files) == (8, 9)


def test_tracked_files_stay_although_git_ignores_them(tmp_path: Path, bucket: Bucket, git: Git) -> None:
    root = write(tmp_path / "code", {".gitignore": "*.bin", "kept.bin": "1", "other.bin": "2", "gone.py": "3"})
    git(root, "init", "-q")
    git(root, "add", "-f", "kept.bin", "gone.py")
    os.unlink(root / "gone.py")
    assert _names(root, bucket, tmp_path) == [".gitignore", "kept.bin"]


def test_outlastignore_and_exclude_hold_for_tracked_files_too(tmp_path: Path, bucket: Bucket, git: Git) -> None:
    root = write(
        tmp_path / "code", {".outlastignore": "data/\n*.ckpt\n", "data/x": "1", "a.ckpt": "2", "b.py": "3", "c.py": "4"}
    )
    git(root, "init", "-q")
    git(root, "add", "-A")
    assert _names(root, bucket, tmp_path) == [".outlastignore", "b.py", "c.py"]
    assert pack(str(root), exclude=["c.*", "!a.ckpt"]).files == 3


def test_an_ignored_folder_uses_only_its_own_rules(tmp_path: Path, bucket: Bucket, git: Git) -> None:
    write(tmp_path / "repo", {".gitignore": "scratch/", "scratch/a.py": "1", "scratch/.gitignore": "*.tmp"})
    write(tmp_path / "repo", {"scratch/b.tmp": "2"})
    assert _names(tmp_path / "repo" / "scratch", bucket, tmp_path) == [".gitignore", "a.py"]
    git(tmp_path / "repo", "init", "-q")
    assert _names(tmp_path / "repo" / "scratch", bucket, tmp_path) == [".gitignore", "a.py"]


SECRETS = (
    *(
        ".env",
        ".env.local",
        "server.pem",
        "tls.key",
        "id_rsa",
        "id_rsa.old",
        "id_ed25519",
        ".netrc",
        "credentials.json",
    ),
    *("service-account-7.json", ".aws/credentials", ".ssh/config", "deep/down/.env", "oddly_named.txt", "ID_RSA"),
)


def test_secrets_are_never_packed_and_are_reported(tmp_path: Path, bucket: Bucket, git: Git) -> None:
    root = write(tmp_path / "code", dict.fromkeys(SECRETS, "hush"))
    write(root, {"oddly_named.txt": "-----BEGIN OPENSSH PRIVATE KEY-----\nhush", ".env.example": "KEY=", "a.py": ""})
    git(root, "init", "-q")
    git(root, "add", "-A")  # a committed secret is still a secret
    bundle = pack(str(root))
    assert {item.path.rstrip("/").split("/")[0] for item in bundle.left_out} == {path.split("/")[0] for path in SECRETS}
    assert {item.why for item in bundle.left_out} == {"may contain secrets", "is a private key"}
    assert _names(root, bucket, tmp_path) == [".env.example", "a.py"]
    assert b"hush" not in zstd.decompress(bundle.body)


def test_leaves_out_environments_caches_and_our_own_state(tmp_path: Path, bucket: Bucket) -> None:
    root = write(tmp_path / "code", {"env/pyvenv.cfg": "", "env/lib/x.py": "", "a/__pycache__/a.pyc": "", "a/b.py": ""})
    write(root, {".outlast/state": "", ".git/config": "", "venv/notes.md": "looks like an environment"})
    assert _names(root, bucket, tmp_path) == ["a/b.py", "venv/notes.md"]
    assert [(item.path, item.why) for item in pack(str(root)).left_out] == [("env/", "virtual environment")]


def test_keeps_inner_links_and_omits_all_others(tmp_path: Path, bucket: Bucket) -> None:
    root = write(tmp_path / "code", {"real/file": "x"})
    (tmp_path / "outside").mkdir()
    links = {"in": "real/file", "real/up": "../real", "dangling": "nowhere", "loop": "loop"}
    bad = {"out": "../outside", "rooted": str(root / "real"), "real/far": "../../outside", "through": "real/far/x"}
    for name, target in (links | bad).items():
        os.symlink(target, root / name)
    bundle = pack(str(root))
    assert [item.path for item in bundle.left_out] == sorted(bad)
    unpack(bucket, store(bucket, bundle), str(tmp_path / "target"))
    assert _contents(str(tmp_path / "target")) == {"real/file": (b"x", False), **links}


def test_leaves_out_special_files(tmp_path: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path / "code", {"a.py": ""})
    os.mkfifo(root / "pipe")
    monkeypatch.chdir(root)  # the name of a socket may not be long
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")
        for _ in range(2):
            assert [item.path for item in pack(str(root)).left_out] == ["pipe", "sock"]
            git(root, "init", "-q")


def test_a_too_large_bundle_lists_size_and_largest_files(tmp_path: Path) -> None:
    root = write(tmp_path / "code", {f"file{number:02d}": "x" * number * 1000 for number in range(20)})
    with pytest.raises(SpecError) as raised:
        pack(str(root), bytes_max=100_000)
    assert "0.2 MB of code, at most 0.1 MB" in raised.value.message
    assert [f"file{number:02d}" in raised.value.message for number in range(20)] == [False] * 10 + [True] * 10
    assert ".outlastignore" in raised.value.hint
    assert "[data]" in raised.value.hint


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no-such-folder` does not exist"):
        pack(str(tmp_path / "no-such-folder"))
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="file` is not a folder"):
        pack(str(tmp_path / "file"))


def test_an_empty_folder_and_a_linked_one(tmp_path: Path, bucket: Bucket) -> None:
    (tmp_path / "empty").mkdir()
    assert _names(tmp_path / "empty", bucket, tmp_path) == []
    write(tmp_path / "code", {"a.py": "1"})
    os.symlink("code", tmp_path / "link")
    assert pack(str(tmp_path / "link")).sha256 == pack(str(tmp_path / "code")).sha256


def test_names_that_are_not_utf8(tmp_path: Path, bucket: Bucket, git: Git) -> None:
    root = write(tmp_path / "code", {"a.py": "1"})
    name = os.fsdecode(b"caf\xe9")
    (root / name).write_text("2")
    first = pack(str(root))
    git(root, "init", "-q")
    assert pack(str(root)).sha256 == first.sha256
    assert _names(root, bucket, tmp_path) == ["a.py", name]


def test_an_unreadable_file_is_named() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to drop the permission to read")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        write(Path(folder), {"a.py": "1", "b/hidden.py": "2"})
        os.chmod(Path(folder) / "b" / "hidden.py", 0o000)
        os.seteuid(65534)
        try:
            with pytest.raises(SpecError, match=r"could not read `b/hidden.py`: Permission denied"):
                pack(folder)
        finally:
            os.seteuid(0)


def test_files_that_change_and_vanish_while_they_are_packed(tmp_path: Path, bucket: Bucket) -> None:
    root = write(tmp_path / "code", {f"file{number:03d}": "x" * 100 for number in range(100)})
    over = threading.Event()

    def disturb() -> None:
        number = 0
        while not over.is_set():
            number = (number + 1) % 100
            path = root / f"file{number:03d}"
            path.write_text("y" * (number * 50))
            (root / f"file{(number + 50) % 100:03d}").unlink(missing_ok=True)

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        for number in range(10):
            bundle = pack(str(root))
            unpack(bucket, store(bucket, bundle), str(tmp_path / f"out{number}"))
            assert len(_contents(str(tmp_path / f"out{number}"))) == bundle.files
    finally:
        over.set()
        disturber.join()


def test_a_repeated_store_keeps_the_first_object(tmp_path: Path, bucket: Bucket) -> None:
    bundle = pack(str(write(tmp_path / "code", {"a.py": "1"})))
    record = store(bucket, bundle)
    time = bucket.head(code_key(bundle.sha256)).modified_at
    assert store(bucket, bundle) == record
    assert bucket.head(code_key(bundle.sha256)).modified_at == time
    assert record == CodeRecord(kind="bundle", sha256=bundle.sha256, bytes=1, files=1)


def test_unpacks_completely_or_not_at_all(tmp_path: Path, bucket: Bucket) -> None:
    bundle = pack(str(write(tmp_path / "code", {"a.py": "1" * 100_000, "b.py": "2"})))
    target = tmp_path / "target"
    with pytest.raises(Missing):
        unpack(bucket, bundle.sha256, str(target))
    other = zstd.compress(zstd.decompress(bundle.body).replace(b"1", b"3"))
    for body in (b"", b"nonsense", bundle.body[: len(bundle.body) // 2], other):
        bucket.put(code_key(bundle.sha256), body)
        with pytest.raises(WorkspaceError, match="corrupt"):
            unpack(bucket, bundle.sha256, str(target))
        assert sorted(os.listdir(tmp_path)) == ["code", "workspace"]
    bucket.put(code_key(bundle.sha256), bundle.body)
    unpack(bucket, bundle.sha256, str(target))
    with pytest.raises(WorkspaceError, match="is not empty"):
        unpack(bucket, bundle.sha256, str(target))
    assert sorted(os.listdir(tmp_path)) == ["code", "target", "workspace"]


def _crafted(bucket: Bucket, *members: tuple[str, str, bytes]) -> str:
    import hashlib

    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as tar:
        for name, link, kind in members:
            header = tarfile.TarInfo(name)
            header.type, header.linkname = kind, link
            tar.addfile(header)
    sha256 = hashlib.sha256(body.getvalue()).hexdigest()
    bucket.put(code_key(sha256), zstd.compress(body.getvalue()))
    return sha256


@pytest.mark.parametrize(
    "members",
    [
        [("../escaped", "", tarfile.REGTYPE)],
        [("/tmp/escaped", "", tarfile.REGTYPE)],
        [("a/../../escaped", "", tarfile.REGTYPE)],
        [("link", "/etc", tarfile.SYMTYPE)],
        [("link", "..", tarfile.SYMTYPE)],
        [("link", "..", tarfile.SYMTYPE), ("link/escaped", "", tarfile.REGTYPE)],
        [("a/up", "../b", tarfile.SYMTYPE), ("b/c", "", tarfile.REGTYPE), ("out", "a/up/../..", tarfile.SYMTYPE)],
        [("hard", "/etc/passwd", tarfile.LNKTYPE)],
        [("device", "", tarfile.CHRTYPE)],
        [("pipe", "", tarfile.FIFOTYPE)],
        [("twice", "", tarfile.REGTYPE), ("twice", "", tarfile.REGTYPE)],
        [("twice", "", tarfile.REGTYPE), ("twice", "a", tarfile.SYMTYPE)],
        [("file", "", tarfile.REGTYPE), ("file/below", "", tarfile.REGTYPE)],
    ],
)
def test_refuses_bundles_with_paths_outside(
    tmp_path: Path, bucket: Bucket, members: list[tuple[str, str, bytes]]
) -> None:
    sha256 = _crafted(bucket, *members)
    with pytest.raises(WorkspaceError):
        unpack(bucket, sha256, str(tmp_path / "deep" / "target"))
    assert os.listdir(tmp_path / "deep") == []
    assert not os.path.exists(tmp_path / "escaped")
