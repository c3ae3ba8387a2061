"""The XML API with hand-written requests, and with Amazon's client."""

from __future__ import annotations

import io
import os
import re
import urllib.request
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape, unescape

import pytest

from outlast_gcp_emulator.endpoint import Endpoint
from outlast_gcp_emulator.storage.uploads import GRAIN_BYTES
from tests.support.emulator import Caller, content


def texts(tag: str, body: bytes) -> list[str]:
    return re.findall(rf"<{tag}>(.*?)</{tag}>", body.decode())


def code(call: Caller, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, list[str]]:
    response = call(method, path, body, **headers)
    return response.status, texts("Code", content(response))


def test_buckets_are_created_and_deleted(call: Caller) -> None:
    assert call("PUT", "/by-xml").status == 200
    assert code(call, "PUT", "/by-xml") == (409, ["BucketAlreadyOwnedByYou"])
    assert texts("Name", content(call("GET", "/"))) == ["box-1", "by-xml"]
    assert call("HEAD", "/by-xml").status == 200
    call("PUT", "/by-xml/object", b"x")
    assert code(call, "DELETE", "/by-xml") == (409, ["BucketNotEmpty"])
    call("DELETE", "/by-xml/object")
    assert call("DELETE", "/by-xml").status == 204
    assert code(call, "GET", "/by-xml") == (404, ["NoSuchBucket"])
    assert code(call, "GET", "/by-xml/object") == (404, ["NoSuchBucket"])
    assert code(call, "GET", "/box-1/object") == (404, ["NoSuchKey"])


def test_both_versions_of_list_pages_work(call: Caller) -> None:
    names = ["a/1", "a/2", "b<&>", "c d", "ü"]
    for name in names:
        call("PUT", f"/box-1/{quote(name)}", b"x")
    shown = [escape(name) for name in names]
    for first, more, token in (
        ("?max-keys=2", "?max-keys=2&marker=", "NextMarker"),
        ("?list-type=2&max-keys=2", "?list-type=2&max-keys=2&continuation-token=", "NextContinuationToken"),
    ):
        found: list[str] = []
        path: str | None = first
        while path is not None:
            body = content(call("GET", f"/box-1{path}"))
            found += texts("Key", body)
            following = texts(token, body)
            assert texts("IsTruncated", body) == ["true" if following else "false"]
            path = more + quote(unescape(following[0]), safe="") if following else None
        assert found == shown
    body = content(call("GET", "/box-1?delimiter=/&encoding-type=url&list-type=2"))
    assert (texts("Key", body), texts("Prefix", body)[1:]) == (["b%3C%26%3E", "c%20d", "%C3%BC"], ["a/"])
    assert texts("Key", content(call("GET", "/box-1?list-type=2&start-after=a/2&prefix=c"))) == ["c d"]


def test_copies_keep_or_replace_the_metadata(call: Caller) -> None:
    call("PUT", "/box-1/from", b"body", Content_Type="text/plain", x_goog_meta_own="word")
    generation = call("HEAD", "/box-1/from").headers["x-goog-generation"]
    assert call("PUT", "/box-1/to", x_goog_copy_source="/box-1/from").status == 200
    response = call("GET", "/box-1/to")
    assert (response.headers["Content-Type"], response.headers["x-goog-meta-own"]) == ("text/plain", "word")
    new = {"x_goog_metadata_directive": "REPLACE", "Content_Type": "text/html"}
    assert call("PUT", "/box-1/to", x_goog_copy_source="box-1/from", **new).status == 200
    response = call("GET", "/box-1/to")
    assert (response.headers["Content-Type"], response.headers["x-goog-meta-own"]) == ("text/html", None)
    source = {"x_goog_copy_source": "/box-1/from"}
    assert code(call, "PUT", "/box-1/to", x_goog_if_generation_match="0", **source) == (412, ["PreconditionFailed"])
    stale = {"x_goog_copy_source_if_generation_match": "1"}
    assert code(call, "PUT", "/box-1/new", **source, **stale) == (412, ["PreconditionFailed"])
    fresh = {"x_goog_copy_source_if_generation_match": generation or "", "x_goog_if_generation_match": "0"}
    assert call("PUT", "/box-1/new", **source, **fresh).status == 200


def test_a_session_is_started_by_headers(call: Caller) -> None:
    start = call("POST", "/box-1/deep/session", x_goog_resumable="start", Content_Type="text/plain")
    assert start.status == 201
    path = "/" + (start.headers["Location"] or "").split("/", 3)[3]
    body = b"x" * GRAIN_BYTES + b"end"
    first = call("PUT", path, body[:GRAIN_BYTES], Content_Range=f"bytes 0-{GRAIN_BYTES - 1}/*")
    assert (first.status, first.headers["Range"]) == (308, f"bytes=0-{GRAIN_BYTES - 1}")
    last = call("PUT", path, body[GRAIN_BYTES:], Content_Range=f"bytes {GRAIN_BYTES}-{len(body) - 1}/{len(body)}")
    assert last.status == 200
    response = call("GET", "/box-1/deep/session")
    assert (content(response), response.headers["Content-Type"]) == (body, "text/plain")


@pytest.mark.parametrize("name", ["a\x01b", "tab\tname", "\ufffe"])
def test_a_name_that_xml_cannot_represent_does_not_break_the_list(call: Caller, name: str) -> None:
    from xml.etree import ElementTree

    call("PUT", f"/box-1/{quote(name, safe='')}", b"x")
    root = ElementTree.fromstring(content(call("GET", "/box-1?list-type=2")))
    assert len([each for each in root.iter() if each.tag.endswith("Contents")]) == 1


def test_an_aborted_upload_leaves_nothing(call: Caller) -> None:
    upload = texts("UploadId", content(call("POST", "/box-1/parts?uploads")))[0]
    path = f"/box-1/parts?uploadId={upload}"
    assert code(call, "PUT", f"{path}&partNumber=0") == (400, ["InvalidArgument"])
    call("PUT", f"{path}&partNumber=1", b"x" * 70_000)
    assert code(call, "POST", path) == (400, ["MalformedXML"])
    assert call("DELETE", path).status == 204
    assert code(call, "PUT", f"{path}&partNumber=1") == (404, ["NoSuchUpload"])
    assert code(call, "GET", "/box-1/parts") == (404, ["NoSuchKey"])


@pytest.fixture
def amazons(endpoint: Endpoint) -> Any:
    """Amazon's client, configured for Google's buckets."""
    boto3 = pytest.importorskip("boto3")
    keys = {"aws_access_key_id": "GOOG1EXAMPLE", "aws_secret_access_key": "x", "region_name": "auto"}
    client = boto3.client("s3", endpoint_url=endpoint.url, **keys)
    client.create_bucket(Bucket="interop")
    return client


def test_amazons_client_reads_its_objects_copies_and_metadata(amazons: Any) -> None:
    amazons.put_object(Bucket="interop", Key="a/b", Body=b"some words", Metadata={"step": "12"})
    amazons.copy_object(Bucket="interop", Key="c", CopySource={"Bucket": "interop", "Key": "a/b"})
    for key in ("a/b", "c"):
        found = amazons.get_object(Bucket="interop", Key=key)
        assert found["Body"].read() == b"some words"
        assert found["Metadata"] == {"step": "12"}
    listed = amazons.list_objects_v2(Bucket="interop")["Contents"]
    assert [one["Key"] for one in listed] == ["a/b", "c"]
    link = amazons.generate_presigned_url("get_object", Params={"Bucket": "interop", "Key": "c"})
    with urllib.request.urlopen(link) as response:
        assert response.read() == b"some words"


def test_amazons_client_deletes_many_objects_at_once(amazons: Any) -> None:
    names = ["a/b", "c & <d>", "ü\N{SNOWMAN}", "stays"]
    for name in names:
        amazons.put_object(Bucket="interop", Key=name, Body=b"x")
    wanted = [{"Key": name} for name in [*names[:3], "never was"]]
    response = amazons.delete_objects(Bucket="interop", Delete={"Objects": wanted})
    assert [one["Key"] for one in response["Deleted"]] == [one["Key"] for one in wanted]
    assert "Errors" not in response
    assert [one["Key"] for one in amazons.list_objects_v2(Bucket="interop")["Contents"]] == ["stays"]
    wrong = [{"Key": "stays", "VersionId": "newest"}]
    response = amazons.delete_objects(Bucket="interop", Delete={"Objects": wrong, "Quiet": True})
    assert [(one["Key"], one["Code"]) for one in response["Errors"]] == [("stays", "InvalidArgument")]
    response = amazons.delete_objects(Bucket="interop", Delete={"Objects": [{"Key": "stays"}], "Quiet": True})
    assert "Deleted" not in response
    assert amazons.list_objects_v2(Bucket="interop")["KeyCount"] == 0


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/box-1?delete", b"<Delete>", (400, ["MalformedXML"])),
        ("/box-1?delete", b"<Delete/>", (400, ["MalformedXML"])),
        ("/box-1?delete", b"<Delete><Object><Key/></Object></Delete>", (400, ["MalformedXML"])),
        ("/nowhere?delete", b"<Delete><Object><Key>a</Key></Object></Delete>", (404, ["NoSuchBucket"])),
        ("/box-1", b"", (400, ["InvalidArgument"])),
    ],
)
def test_an_invalid_bulk_delete_is_refused(
    call: Caller, path: str, body: bytes, expected: tuple[int, list[str]]
) -> None:
    call("PUT", "/box-1/a", b"words")
    assert code(call, "POST", path, body) == expected
    assert call("GET", "/box-1/a").status == 200


def test_a_large_body_of_amazons_client_is_complete(amazons: Any) -> None:
    body = os.urandom(9_000_000)
    amazons.upload_fileobj(io.BytesIO(body), "interop", "large")
    assert amazons.get_object(Bucket="interop", Key="large")["Body"].read() == body


@pytest.mark.parametrize(
    ("chunks", "status", "kept"),
    [
        (
            b"5;chunk-signature=ab\r\nhello\r\n6\r\n world\r\n0\r\nx-amz-checksum-crc32:AA==\r\n\r\n",
            200,
            b"hello world",
        ),
        (b"0\r\n\r\n", 200, b""),
        (b"5\r\nhello world\r\n0\r\n\r\n", 400, None),
        (b"many\r\nhello\r\n0\r\n\r\n", 400, None),
        (b"5\r\nhel", 400, None),
    ],
)
def test_a_body_in_amazons_chunk_format_is_decoded_or_refused(
    call: Caller, chunks: bytes, status: int, kept: bytes | None
) -> None:
    headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=x", "Content-Encoding": "aws-chunked"}
    response = call("PUT", "/box-1/chunks", chunks, **headers, x_amz_decoded_content_length="11")
    assert response.status == status
    found = call("GET", "/box-1/chunks")
    assert (content(found) if found.status == 200 else None) == kept


@pytest.mark.parametrize("aspect", ["acl", "tagging", "versioning", "lifecycle", "compose"])
@pytest.mark.parametrize("path", ["/box-1", "/box-1/kept"])
def test_requests_for_subresources_do_not_affect_the_object(call: Caller, path: str, aspect: str) -> None:
    call("PUT", "/box-1/kept", b"words")
    for method in ("GET", "PUT", "DELETE"):
        assert call(method, f"{path}?{aspect}", b"<xml/>" if method == "PUT" else None).status == 501
    assert content(call("GET", "/box-1/kept")) == b"words"


def test_the_location_of_a_bucket_is_returned(call: Caller) -> None:
    assert b">US</LocationConstraint>" in content(call("GET", "/box-1?location"))
    assert code(call, "GET", "/box-2?location") == (404, ["NoSuchBucket"])
