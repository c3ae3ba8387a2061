"""The conformance suite of `Bucket`: subclass `BucketConformance` and define a fixture `bucket`, always empty.

It applies to every store. `tests/conformance` runs it for a folder, GCS, S3 and memory.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from outlast.errors import Exists, Missing, WorkspaceError
from outlast.store.bucket import Bucket

ODD_KEYS = (
    *("plain", "with space", "percent%20sign", "%", "hash#tag", "plus+plus", "question?", "a&b=c", "semi;colon"),
    *(
        "ümläut",
        "日本語",
        "🙂",
        "dots..inside",
        ".hidden",
        "trailing.",
        "tilde~",
        "back\\slash",
        "quote'\"",
        "*",
        "[x]",
    ),
)
BAD_KEYS = ("", "/", "/rooted", "a//b", "a/", "..", "a/../b", "a/./b", ".", "nul\x00", "x" * 256, "y/" * 600 + "y")


def _at_once(count: int, work: Callable[[int], object]) -> list[object]:
    """Return the results of `count` threads that start together."""
    gate = threading.Barrier(count)

    def started(number: int) -> object:
        gate.wait(timeout=30)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(started, range(count)))


class BucketConformance:
    """One test per promise of the protocol."""

    def test_get_returns_the_body_that_was_put(self, bucket: Bucket) -> None:
        bucket.put("a/b/c", b"body")
        assert bucket.get("a/b/c") == b"body"
        entry = bucket.head("a/b/c")
        assert (entry.key, entry.bytes) == ("a/b/c", 4)

    def test_put_overwrites(self, bucket: Bucket) -> None:
        bucket.put("key", b"a longer first body")
        bucket.put("key", b"second", durable=True)
        assert bucket.get("key") == b"second"
        assert bucket.head("key").bytes == 6

    def test_keeps_empty_bodies(self, bucket: Bucket, tmp_path: Path) -> None:
        bucket.put("put", b"")
        bucket.create("created", b"")
        bucket.write("written", b"")
        (tmp_path / "file").write_bytes(b"")
        bucket.upload("uploaded", str(tmp_path / "file"))
        for key in ("put", "created", "written", "uploaded"):
            assert bucket.get(key) == b""
            assert bucket.head(key).bytes == 0
            bucket.download(key, str(tmp_path / key))
            assert (tmp_path / key).read_bytes() == b""

    def test_keeps_every_byte(self, bucket: Bucket) -> None:
        body = bytes(range(256)) * 4 + b"\r\n\x00"
        bucket.create("bytes", body)
        assert bucket.get("bytes") == body

    def test_a_range_of_a_body_is_read(self, bucket: Bucket) -> None:
        body = bytes(range(256)) * 40
        bucket.put("a", body)
        assert bucket.get_range("a", 0, 10) == body[:10]
        assert bucket.get_range("a", 5000, 3000) == body[5000:8000]
        assert bucket.get_range("a", len(body) - 5, 5) == body[-5:]
        with pytest.raises(Missing):
            bucket.get_range("b", 0, 1)

    @pytest.mark.parametrize("size", [0, 1, 4096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (5 << 20) + 4097])
    def test_written_bodies_are_complete_durable_and_read_into_any_memory(self, bucket: Bucket, size: int) -> None:
        page = memoryview(mmap.mmap(-1, (6 << 20)))
        body = os.urandom(size)
        page[:size] = body
        # Aligned and unaligned memory; the caller reuses it at once.
        bucket.write("a/even", page[:size])
        bucket.write("a/odd", memoryview(b"x" + body)[1:])
        page[:size] = bytes(size)
        bucket.make_durable(["a/even", "a/odd"])
        for key in ("a/even", "a/odd"):
            assert bucket.get(key) == body
            for room in (page, memoryview(bytearray(size + 1))[1:], page[: size // 2]):
                assert bucket.read_into(key, room) == min(size, len(room))
                assert room[: min(size, len(room))] == body[: len(room)]
        with pytest.raises(Missing):
            bucket.read_into("a", page)
        bucket.make_durable([])

    def test_remove_stale_writes_keeps_stored_objects(self, bucket: Bucket) -> None:
        bucket.remove_stale_writes(older_s=-60.0)
        bucket.put("a/b", b"x")
        assert bucket.remove_stale_writes(older_s=-60.0) == 0
        assert bucket.get("a/b") == b"x"

    def test_write_overwrites(self, bucket: Bucket) -> None:
        bucket.write("deep/key", b"a longer first body" * 1000)
        bucket.write("deep/key", b"second")
        assert bucket.get("deep/key") == b"second"

    def test_create_refuses_an_existing_key_and_changes_nothing(self, bucket: Bucket) -> None:
        bucket.create("key", b"first")
        with pytest.raises(Exists):
            bucket.create("key", b"second")
        bucket.put("other", b"first")
        with pytest.raises(Exists):
            bucket.create("other", b"second", durable=False)
        assert (bucket.get("key"), bucket.get("other")) == (b"first", b"first")

    def test_create_works_again_after_delete(self, bucket: Bucket) -> None:
        bucket.create("key", b"first")
        bucket.delete("key")
        bucket.create("key", b"second")
        assert bucket.get("key") == b"second"

    def test_exactly_one_of_many_creators_wins(self, bucket: Bucket) -> None:
        for number in range(10):
            key = f"races/{number}/deep/er"

            def attempt(writer: int, key: str = key) -> bool:
                try:
                    bucket.create(key, b"writer %d" % writer)
                except Exists:
                    return False
                return True

            won = _at_once(8, attempt)
            assert won.count(True) == 1
            assert bucket.get(key) == b"writer %d" % won.index(True)

    def test_readers_never_see_a_partial_body(self, bucket: Bucket) -> None:
        bodies = {bytes([65 + number]) * (400_000 - number) for number in range(4)}
        over = threading.Event()
        bucket.put("key", next(iter(bodies)))

        def work(number: int) -> bool:
            if number == 0:
                try:
                    for _ in range(5):
                        for body in bodies:
                            bucket.put("key", body)
                finally:
                    over.set()
                return True
            seen = [bucket.get("key")]
            while not over.is_set():
                seen.append(bucket.get("key"))
            return all(body in bodies for body in seen)

        assert all(_at_once(4, work))

    def test_listed_objects_can_be_read_completely(self, bucket: Bucket) -> None:
        over = threading.Event()

        def work(number: int) -> bool:
            if number == 0:
                try:
                    for count in range(40):
                        bucket.create(f"log/{count:04d}", b"%04d" % count * 20_000)
                finally:
                    over.set()
                return True
            complete = True
            while not over.is_set():
                for entry in bucket.list("log/"):
                    complete &= entry.bytes == 80_000 and len(bucket.get(entry.key)) == 80_000
            return complete

        assert all(_at_once(3, work))

    def test_missing_objects_raise_missing(self, bucket: Bucket, tmp_path: Path) -> None:
        bucket.put("folder/file", b"x")
        for key in ("nothing", "no/such/folder", "folder", "folder/file/below", "folder/fil"):
            with pytest.raises(Missing):
                bucket.get(key)
            with pytest.raises(Missing):
                bucket.head(key)
            with pytest.raises(Missing):
                bucket.download(key, str(tmp_path / "target"))
        assert os.listdir(tmp_path) == []

    def test_a_failed_download_leaves_the_old_file(self, bucket: Bucket, tmp_path: Path) -> None:
        (tmp_path / "target").write_bytes(b"old")
        with pytest.raises(Missing):
            bucket.download("nothing", str(tmp_path / "target"))
        assert (tmp_path / "target").read_bytes() == b"old"

    def test_delete_may_be_repeated(self, bucket: Bucket) -> None:
        bucket.put("a/b", b"x")
        bucket.put("a/c", b"y")
        for _ in range(2):
            bucket.delete("a/b")
        bucket.delete("never/there")
        bucket.delete("a/c/below")
        assert [entry.key for entry in bucket.list("")] == ["a/c"]

    def test_many_objects_are_deleted_at_once(self, bucket: Bucket) -> None:
        keys = [f"batch/{number:04d}" for number in range(30)]
        for key in keys:
            bucket.create(key, b"1")
        bucket.create("batch-kept", b"1")
        bucket.delete_many([*keys[:20], "batch/never-there"])
        assert [entry.key for entry in bucket.list("batch/")] == keys[20:]
        bucket.delete_many(keys)
        bucket.delete_many([])
        assert list(bucket.list("batch/")) == []
        assert bucket.get("batch-kept") == b"1"

    def test_delete_of_a_folder_changes_nothing(self, bucket: Bucket) -> None:
        bucket.put("a/b", b"x")
        bucket.delete("a")
        assert bucket.get("a/b") == b"x"

    def test_concurrent_deletes_succeed(self, bucket: Bucket) -> None:
        bucket.put("key", b"x")
        _at_once(8, lambda _: bucket.delete("key"))
        with pytest.raises(Missing):
            bucket.get("key")

    def test_lists_sorted_by_key(self, bucket: Bucket) -> None:
        # `/` sorts after ` `, `-` and `.`, and before digits and letters, so a folder does not sort by its name alone.
        keys = ["b", "a/x", "a.b", "a-b", "a0", "a/b/c", "ab/c", "A", "é", "a b", "z/1", "z/10", "z/2"]
        for key in keys:
            bucket.put(key, key.encode())
        found = list(bucket.list(""))
        assert [entry.key for entry in found] == sorted(keys)
        assert [entry.bytes for entry in found] == [len(key.encode()) for key in sorted(keys)]

    def test_lists_only_below_the_prefix(self, bucket: Bucket) -> None:
        for key in ("runs/a/1", "runs/a/2", "runs/ab/1", "runs/a.1", "runs2/a/1"):
            bucket.put(key, b"")
        assert [entry.key for entry in bucket.list("runs/a/")] == ["runs/a/1", "runs/a/2"]
        assert list(bucket.list("runs/none/")) == []
        assert list(bucket.list("nothing/at/all/")) == []
        assert list(bucket.list("runs/a/1/")) == []

    def test_lists_after_a_key(self, bucket: Bucket) -> None:
        keys = [f"s/{number:03d}" for number in range(12)] + ["s/003/x", "s/a-b", "s/a/b", "s/a0"]
        keys.remove("s/003")
        for key in keys:
            bucket.put(key, b"")
        for after in [*keys, "s/003", "s/0", "s/zzz", "r", "s/", "s/a", "s/a/", "s/003/"]:
            expected = sorted(key for key in keys if key > after)
            assert [entry.key for entry in bucket.list("s/", after=after)] == expected, after

    def test_lists_up_to_a_limit(self, bucket: Bucket) -> None:
        keys = [f"s/{number:03d}" for number in range(12)]
        for key in keys:
            bucket.put(key, b"")
        assert [entry.key for entry in bucket.list("s/", limit=3)] == keys[:3]
        assert [entry.key for entry in bucket.list("s/", after="s/007", limit=2)] == keys[8:10]
        assert [entry.key for entry in bucket.list("s/", limit=100)] == keys

    def test_children_are_the_names_directly_below(self, bucket: Bucket) -> None:
        for key in ("runs/b/spec", "runs/a/story/1", "runs/a/story/2", "runs/c", "other"):
            bucket.put(key, b"")
        assert list(bucket.children("runs/")) == ["a", "b", "c"]
        assert list(bucket.children("")) == ["other", "runs"]
        assert list(bucket.children("runs/a/")) == ["story"]
        assert list(bucket.children("none/")) == []

    def test_children_omit_names_without_objects(self, bucket: Bucket) -> None:
        bucket.put("runs/a/story/1", b"")
        bucket.put("runs/b/story/1", b"")
        bucket.delete("runs/a/story/1")
        assert list(bucket.children("runs/")) == ["b"]
        bucket.delete("runs/b/story/1")
        assert list(bucket.children("")) == []

    def test_listing_while_others_delete(self, bucket: Bucket) -> None:
        for number in range(200):
            bucket.put(f"many/{number % 10}/{number:03d}", b"x")
            bucket.put(f"stay/{number % 10}/{number:03d}", b"x")

        def work(number: int) -> int:
            if number == 0:
                for count in range(200):
                    bucket.delete(f"many/{count % 10}/{count:03d}")
                return 200
            for _ in range(5):
                list(bucket.list("many/"))
            return sum(entry.key.startswith("stay/") for entry in bucket.list(""))

        assert _at_once(3, work) == [200, 200, 200]
        assert list(bucket.list("many/")) == []

    def test_writing_while_others_empty_the_folder(self, bucket: Bucket) -> None:
        def work(number: int) -> None:
            for count in range(50):
                bucket.create(f"shared/{count}/{number}", b"x")
                bucket.delete(f"shared/{count}/{number}")

        _at_once(4, work)
        assert list(bucket.list("")) == []

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_keeps_odd_keys(self, bucket: Bucket, tmp_path: Path, key: str) -> None:
        bucket.create(f"odd/{key}/{key}", b"1")
        with pytest.raises(Exists):
            bucket.create(f"odd/{key}/{key}", b"2")
        assert bucket.get(f"odd/{key}/{key}") == b"1"
        assert bucket.head(f"odd/{key}/{key}").key == f"odd/{key}/{key}"
        assert [entry.key for entry in bucket.list(f"odd/{key}/")] == [f"odd/{key}/{key}"]
        assert list(bucket.children("odd/")) == [key]
        bucket.download(f"odd/{key}/{key}", str(tmp_path / "file"))
        bucket.delete(f"odd/{key}/{key}")
        assert list(bucket.list("")) == []

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_refuses_bad_keys(self, bucket: Bucket, tmp_path: Path, key: str) -> None:
        (tmp_path / "file").write_bytes(b"x")
        for call in (
            lambda: bucket.get(key),
            lambda: bucket.read_into(key, memoryview(bytearray(1))),
            lambda: bucket.write(key, b""),
            lambda: bucket.put(key, b""),
            lambda: bucket.create(key, b""),
            lambda: bucket.head(key),
            lambda: bucket.delete(key),
            lambda: bucket.upload(key, str(tmp_path / "file")),
            lambda: bucket.download(key, str(tmp_path / "target")),
        ):
            with pytest.raises(WorkspaceError) as raised:
                call()
            assert not isinstance(raised.value, Missing)
        assert os.listdir(tmp_path) == ["file"]

    def test_moves_large_files(self, bucket: Bucket, tmp_path: Path) -> None:
        body = os.urandom(1 << 20) * 20
        (tmp_path / "large").write_bytes(body)
        bucket.upload("large", str(tmp_path / "large"))
        assert bucket.head("large").bytes == len(body)
        bucket.download("large", str(tmp_path / "new" / "folder" / "large"))
        assert (tmp_path / "new" / "folder" / "large").read_bytes() == body
        assert os.listdir(tmp_path / "new" / "folder") == ["large"]

    def test_upload_and_download_replace(self, bucket: Bucket, tmp_path: Path) -> None:
        (tmp_path / "new").write_bytes(b"new")
        (tmp_path / "target").write_bytes(b"an old and longer body")
        bucket.put("key", b"an old and longer body")
        bucket.upload("key", str(tmp_path / "new"))
        bucket.download("key", str(tmp_path / "target"))
        assert (tmp_path / "target").read_bytes() == b"new"

    def test_times_are_the_stores_and_do_not_decrease(self, bucket: Bucket) -> None:
        before = time.time()
        first, second = bucket.now("first"), bucket.now("second")
        bucket.create("third", b"")
        again = bucket.now("first")
        times = [first, second, bucket.head("third").modified_at, again]
        # Stores may count whole seconds, and their clock may differ from ours by less than a minute.
        assert all(later >= earlier - 1 for earlier, later in itertools.pairwise(times))
        assert abs(times[0] - before) < 60
        listed = {entry.key: entry for entry in bucket.list("")}
        head = bucket.head("first")
        # Cloud Storage reports milliseconds in listings, and whole seconds for one object.
        assert (listed["first"].key, listed["first"].bytes) == (head.key, head.bytes)
        assert abs(listed["first"].modified_at - head.modified_at) < 1
        assert abs(listed["first"].modified_at - again) < 1
