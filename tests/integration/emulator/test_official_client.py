"""Google's Python client for Cloud Storage, with STORAGE_EMULATOR_HOST."""

from __future__ import annotations

import datetime
import io
import os
from pathlib import Path
from typing import Any

import pytest

from outlast_gcp_emulator.endpoint import Endpoint
from outlast_gcp_emulator.environment import variables
from outlast_gcp_emulator.faults import Fault
from tests.integration.emulator.discovery import Watching

storage = pytest.importorskip("google.cloud.storage", reason="google-cloud-storage is not installed")
exceptions = pytest.importorskip("google.api_core.exceptions")


@pytest.fixture
def client(served: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in variables(served.root, served.url).items():
        monkeypatch.setenv(name, value)
    return storage.Client()


@pytest.fixture
def bucket(client: Any, request: pytest.FixtureRequest) -> Any:
    name = "b-" + request.node.name.removeprefix("test_").replace("_", "-")[:50].strip("-")
    return client.create_bucket(name)


def test_buckets_are_created_and_deleted(client: Any) -> None:
    made = client.create_bucket("come-and-go", location="europe-west4")
    assert (made.location, made.location_type, made.storage_class) == ("EUROPE-WEST4", "region", "STANDARD")
    with pytest.raises(exceptions.Conflict):
        client.create_bucket("come-and-go")
    made.labels = {"team": "one"}
    made.patch()
    assert client.get_bucket("come-and-go").labels == {"team": "one"}
    assert "come-and-go" in [each.name for each in client.list_buckets(prefix="come")]
    made.blob("a").upload_from_string("x")
    with pytest.raises(exceptions.Conflict):
        made.delete()
    made.delete(force=True)
    assert client.lookup_bucket("come-and-go") is None
    with pytest.raises(exceptions.NotFound):
        client.get_bucket("come-and-go")


def test_small_and_large_uploads_have_checked_checksums(bucket: Any) -> None:
    blob = bucket.blob("small")
    blob.metadata = {"own": "wörd"}
    blob.upload_from_string("text", content_type="text/plain", checksum="crc32c")
    found = bucket.get_blob("small")
    assert (found.size, found.content_type, found.metadata) == (4, "text/plain", {"own": "wörd"})
    body = os.urandom(1 << 20) * 10 + b"\r"
    blob = bucket.blob("large", chunk_size=1 << 20)
    blob.upload_from_file(io.BytesIO(body), size=len(body), checksum="md5")
    assert blob.download_as_bytes(checksum="crc32c") == body
    assert bucket.blob("large", chunk_size=3 << 18).download_as_bytes() == body


def test_ranges_are_read(bucket: Any) -> None:
    bucket.blob("digits").upload_from_string("0123456789")
    blob = bucket.blob("digits")
    assert blob.download_as_bytes(start=2, end=4) == b"234"
    assert blob.download_as_bytes(start=7) == b"789"
    assert blob.download_as_bytes(start=-3) == b"789"
    with blob.open("rb") as reader:
        reader.seek(5)
        assert reader.read(2) == b"56"


def test_a_stream_of_unknown_length_is_written(bucket: Any) -> None:
    body = os.urandom(700_000)
    with bucket.blob("stream").open("wb", chunk_size=256 * 1024) as writer:
        for start in range(0, len(body), 100_000):
            writer.write(body[start : start + 100_000])
    assert bucket.blob("stream").download_as_bytes() == body


def test_conditions_are_enforced(bucket: Any) -> None:
    blob = bucket.blob("once")
    blob.upload_from_string("first", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("once").upload_from_string("second", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("once").upload_from_string("second", if_generation_match=blob.generation + 1)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.delete(if_generation_match=1)
    old = blob.generation
    bucket.blob("once").upload_from_string("second", if_generation_match=old)
    with pytest.raises(exceptions.NotFound):
        bucket.blob("once", generation=old).download_as_bytes()
    assert bucket.blob("once").download_as_bytes() == b"second"


def test_objects_are_composed(bucket: Any) -> None:
    parts = []
    for number in range(3):
        parts.append(bucket.blob(f"part-{number}"))
        parts[-1].upload_from_string(f"<{number}>" * 50_000)
    whole = bucket.blob("whole")
    whole.content_type = "text/plain"
    whole.compose(parts)
    whole.reload()
    assert whole.download_as_bytes() == b"".join(b"<%d>" % n * 50_000 for n in range(3))
    assert (whole.component_count, whole.md5_hash, whole.content_type) == (3, None, "text/plain")


def test_objects_are_copied_and_rewritten_in_several_calls(client: Any, bucket: Any) -> None:
    body = os.urandom(1 << 20) * 3
    source = bucket.blob("source")
    source.metadata = {"a": "b"}
    source.upload_from_string(body, content_type="image/png")
    other = client.create_bucket("rewritten-to")
    target = other.blob("deep/target")
    token, calls = None, 0
    while calls == 0 or token is not None:
        token, rewritten, total = _rewrite(target, source, token)
        calls += 1
        assert rewritten <= total == len(body)
    assert calls == 3
    assert target.download_as_bytes() == body
    copied = bucket.copy_blob(source, other, "copied")
    assert (copied.content_type, copied.metadata) == ("image/png", {"a": "b"})
    source.delete()
    assert copied.download_as_bytes() == body


def _rewrite(target: Any, source: Any, token: str | None) -> tuple[str | None, int, int]:
    """Rewrite through the client's connection, because the client has no argument for the bytes of a call."""
    query = {"maxBytesRewrittenPerCall": 1 << 20} | ({"rewriteToken": token} if token else {})
    response = target.client._connection.api_request(
        method="POST", path=f"{source.path}/rewriteTo{target.path}", query_params=query, data={}
    )
    return response.get("rewriteToken"), int(response["totalBytesRewritten"]), int(response["objectSize"])


def test_objects_are_moved(bucket: Any) -> None:
    bucket.blob("old").upload_from_string("body")
    bucket.move_blob(bucket.blob("old"), "new/name")
    assert [each.name for each in bucket.list_blobs()] == ["new/name"]


def test_metadata_is_changed(bucket: Any) -> None:
    blob = bucket.blob("tagged")
    blob.upload_from_string("x")
    blob.metadata = {"a": "1", "b": "2"}
    blob.custom_time = datetime.datetime(2030, 1, 2, tzinfo=datetime.UTC)
    blob.cache_control = "no-store"
    blob.patch()
    assert blob.metageneration == 2
    with pytest.raises(exceptions.PreconditionFailed):
        blob.patch(if_metageneration_match=1)
    found = bucket.get_blob("tagged")
    assert (found.metadata, found.cache_control) == ({"a": "1", "b": "2"}, "no-store")
    assert found.custom_time == datetime.datetime(2030, 1, 2, tzinfo=datetime.UTC)
    assert found.generation == blob.generation
    found.metadata = {"a": None}
    found.patch()
    assert bucket.get_blob("tagged").metadata == {"b": "2"}


def test_lists_support_folders_pages_offsets_and_globs(client: Any, bucket: Any) -> None:
    names = ["a", "a/", "a/1", "a/2", "a/b/c", "b/1", "ä", "z.txt"]
    for name in names:
        bucket.blob(name).upload_from_string("")

    def listed(**options: Any) -> tuple[list[str], list[str]]:
        found = client.list_blobs(bucket, **options)
        return [each.name for each in found], sorted(found.prefixes)

    assert listed() == (sorted(names), [])
    assert listed(delimiter="/") == (["a", "z.txt", "ä"], ["a/", "b/"])
    assert listed(delimiter="/", prefix="a/") == (["a/", "a/1", "a/2"], ["a/b/"])
    assert listed(delimiter="/", include_trailing_delimiter=True) == (["a", "a/", "z.txt", "ä"], ["a/", "b/"])
    assert listed(start_offset="a/2", end_offset="z.txt") == (["a/2", "a/b/c", "b/1"], [])
    assert listed(match_glob="a/*") == (["a/", "a/1", "a/2"], [])
    assert listed(match_glob="a/**") == (["a/", "a/1", "a/2", "a/b/c"], [])
    assert listed(match_glob="{b,z}*") == (["z.txt"], [])
    assert listed(match_glob="[ab]/[!2]") == (["a/1", "b/1"], [])
    pages = client.list_blobs(bucket, delimiter="/", page_size=2).pages
    assert [(len(list(page)), list(page.prefixes)) for page in pages] == [(1, ["a/"]), (1, ["b/"]), (1, [])]
    assert [each.name for each in client.list_blobs(bucket, max_results=3)] == ["a", "a/", "a/1"]
    assert listed(fields="items(name),nextPageToken") == (sorted(names), [])


def test_objects_are_deleted_in_a_batch(client: Any, bucket: Any) -> None:
    for number in range(5):
        bucket.blob(f"n/{number}").upload_from_string("x")
    with client.batch():
        for number in range(4):
            bucket.blob(f"n/{number}").delete()
    assert [each.name for each in bucket.list_blobs()] == ["n/4"]
    batch = client.batch()
    with pytest.raises(exceptions.NotFound), batch:
        list(map(bucket.delete_blob, ("n/4", "n/0")))
    assert list(bucket.list_blobs()) == []


def test_gzip_objects_are_served_compressed_or_decompressed(bucket: Any) -> None:
    import gzip

    blob = bucket.blob("zipped")
    blob.content_encoding = "gzip"
    packed = gzip.compress(b"text" * 1000)
    blob.upload_from_string(packed, content_type="text/plain")
    assert blob.download_as_bytes() == b"text" * 1000
    assert blob.download_as_bytes(raw_download=True) == packed


def test_large_files_are_transferred_in_parallel(bucket: Any, tmp_path: Path) -> None:
    manager = pytest.importorskip("google.cloud.storage.transfer_manager")
    body = os.urandom(1 << 20) * 11 + b"end"
    (tmp_path / "up").write_bytes(body)
    threads = {"worker_type": manager.THREAD, "max_workers": 3}
    manager.upload_chunks_concurrently(str(tmp_path / "up"), bucket.blob("large"), chunk_size=5 << 20, **threads)
    manager.download_chunks_concurrently(bucket.blob("large"), str(tmp_path / "down"), chunk_size=4 << 20, **threads)
    assert (tmp_path / "down").read_bytes() == body


def test_the_client_recovers_from_faults(served: Endpoint, bucket: Any) -> None:
    retry = storage.retry.DEFAULT_RETRY.with_delay(initial=0.01, maximum=0.05)
    for status in (429, 500, 503):
        served.faults.add(Fault(path="/storage/v1/b/*/o/*", method="GET", status=status))
    body = os.urandom(600_000)
    blob = bucket.blob("kept", chunk_size=256 * 1024)
    # The response to the last chunk of a session can be lost: the server repeats it.
    served.faults.add(Fault(path="*upload_id=*", method="PUT", status=503, times=2))
    served.faults.add(Fault(path="*upload_id=*", method="PUT", after_work=True, times=2))
    blob._do_resumable_upload(
        client=bucket.client,
        stream=io.BytesIO(body),
        content_type="text/plain",
        size=len(body),
        predefined_acl=None,
        if_generation_match=0,
        if_generation_not_match=None,
        if_metageneration_match=None,
        if_metageneration_not_match=None,
        retry=retry,
    )
    blob.reload(retry=retry)
    assert served.faults.left() == 0
    assert blob.download_as_bytes() == body
    # The response to a single put can be lost, too: then the repeated put finds the object of the first.
    served.faults.add(Fault(path="/upload/*", method="POST", after_work=True))
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("once").upload_from_string(b"once", if_generation_match=0, retry=retry)
    assert bucket.blob("once").download_as_bytes() == b"once"
    served.faults.add(Fault(path="/storage/v1/b/*/o/kept", method="GET", status=403))
    with pytest.raises(exceptions.Forbidden):
        blob.reload(retry=retry)


def test_the_check_covered_many_methods_of_the_api(watching: Watching, client: Any, bucket: Any) -> None:
    """The check is only as good as its coverage."""
    bucket.blob("x").upload_from_string("x")
    bucket.get_iam_policy()
    bucket.test_iam_permissions(["storage.objects.get"])
    client.get_service_account_email()
    assert list(bucket.list_notifications()) == []
    seen = {f"storage.{name}" for name in ("buckets.getIamPolicy", "buckets.testIamPermissions", "objects.insert")}
    assert seen | {"storage.projects.serviceAccount.get", "storage.notifications.list"} <= watching.seen
