"""The HTTP protocol with hand-written requests, valid and invalid."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import socket
from urllib.parse import quote

import pytest

from outlast_gcp_emulator.endpoint import Endpoint
from outlast_gcp_emulator.faults import Fault
from outlast_gcp_emulator.storage.uploads import GRAIN_BYTES
from tests.support.emulator import Caller, content, stored_files
from tests.support.waiting import eventually

UPLOAD = "/upload/storage/v1/b/box-1/o"
OBJECTS = "/storage/v1/b/box-1/o"


def put(call: Caller, name: str, body: bytes = b"body", query: str = "") -> dict[str, str]:
    found = call.json("POST", f"{UPLOAD}?uploadType=media&name={quote(name, safe='')}{query}", body)
    assert isinstance(found, dict)
    return found


def send_raw(endpoint: Endpoint, *blocks: bytes) -> bytes:
    """Send bytes on a bare connection, and return everything that the server sends until it closes."""
    host, _, port = endpoint.address.removeprefix("http://").partition(":")
    prefix = endpoint.url.removeprefix(endpoint.address).encode()
    received = b""
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        for block in blocks:
            connection.sendall(re.sub(rb"(GET|PUT|POST) /", rb"\1 " + prefix + b"/", block))
        connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(65536):
            received += piece
    return received


# Connections


def test_the_server_listens_only_on_loopback(endpoint: Endpoint) -> None:
    assert endpoint.server.server_address[0] == "127.0.0.1"


def test_one_connection_serves_many_requests(endpoint: Endpoint) -> None:
    received = send_raw(endpoint, b"GET /storage/v1/b?project=p HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 3)
    assert received.count(b"HTTP/1.1 200 OK") == 3


def test_chunked_bodies_and_expect_continue_are_supported(endpoint: Endpoint, call: Caller) -> None:
    received = send_raw(
        endpoint,
        b"PUT /box-1/chunked HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n",
        b"5\r\nhello\r\n",
        b"6;ext=1\r\n world\r\n0\r\nTrailer: x\r\n\r\n",
        b"GET /box-1/chunked HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    )
    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert received.endswith(b"\r\n\r\nhello world")


@pytest.mark.parametrize(
    "half",
    [
        b"PUT /box-1/half HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 200000\r\n\r\n" + b"x" * 199_999,
        b"PUT /box-1/half HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n30d40\r\n" + b"x" * 150_000,
        b"PUT /box-1/half HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        b"POST " + UPLOAD.encode() + b"?uploadType=multipart HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 90\r\n"
        b'Content-Type: multipart/related; boundary=x\r\n\r\n--x\r\n\r\n{"name":"half"}\r\n--x\r\n\r\nbody\r\n--x-',
    ],
    ids=["sized", "chunked", "nonsense", "multipart"],
)
def test_a_truncated_body_creates_no_object(endpoint: Endpoint, call: Caller, half: bytes) -> None:
    send_raw(endpoint, half)
    assert call.refused("GET", f"{OBJECTS}/half") == (404, "notFound")
    eventually(lambda: stored_files(endpoint.root) == [], what="the staged body's removal")


def test_an_unread_body_does_not_break_the_connection(call: Caller) -> None:
    assert call.refused("POST", "/upload/storage/v1/b/none/o?uploadType=media&name=x", b"x" * 500_000)[0] == 404
    assert call.json("GET", "/storage/v1/b/box-1")["name"] == "box-1"


def test_long_responses_are_compressed_for_clients_with_gzip(call: Caller) -> None:
    for number in range(20):
        put(call, f"n-{number}")
    response = call("GET", OBJECTS, Accept_Encoding="gzip")
    assert response.headers["Content-Encoding"] == "gzip"
    assert len(json.loads(gzip.decompress(content(response)))["items"]) == 20
    assert call("GET", OBJECTS).headers["Content-Encoding"] is None


def test_compressed_request_bodies_are_decompressed(call: Caller) -> None:
    path = f"{UPLOAD}?uploadType=media&name=packed"
    call.json("POST", path, gzip.compress(b"text" * 999), Content_Encoding="gzip")
    assert content(call("GET", f"{OBJECTS}/packed?alt=media")) == b"text" * 999
    assert call.refused("POST", path, b"no gzip", Content_Encoding="gzip") == (400, "invalid")
    assert call.refused("POST", path, gzip.compress(b"text" * 999)[:-9], Content_Encoding="gzip") == (400, "invalid")
    assert content(call("GET", f"{OBJECTS}/packed?alt=media")) == b"text" * 999


# Faults


@pytest.mark.parametrize("status", [401, 403, 404, 409, 429, 500, 503])
def test_injected_errors_have_googles_form(endpoint: Endpoint, call: Caller, status: int) -> None:
    endpoint.faults.add(Fault(path="/storage/v1/b/box-1", status=status, times=2))
    endpoint.faults.add(Fault(path="/box-1/*", status=status))
    for _ in range(2):
        assert call.refused("GET", "/storage/v1/b/box-1")[0] == status
    assert call.json("GET", "/storage/v1/b/box-1")["name"] == "box-1"
    response = call("PUT", "/box-1/object", b"x")
    assert (response.status, content(response)[:5]) == (status, b"<?xml")
    assert call("GET", "/box-1/object").status == 404


def test_an_injected_reset_loses_only_the_response(endpoint: Endpoint, call: Caller) -> None:
    endpoint.faults.add(Fault(path="/box-1/object", method="PUT", after_work=True))
    with pytest.raises(ConnectionError):
        call("PUT", "/box-1/object", b"x")
    assert content(Caller(endpoint)("GET", "/box-1/object")) == b"x"
    endpoint.faults.add(Fault(path="/box-1/other", method="PUT"))
    with pytest.raises(ConnectionError):
        Caller(endpoint)("PUT", "/box-1/other", b"x")
    assert Caller(endpoint)("GET", "/box-1/other").status == 404


# Names

ODD_NAMES = [
    *("..", "a/../b", "../../../etc/passwd", "/rooted", "a//b", "a/", "%2F", "a%2Fb", "ümläut/日本語/🙂", "nul\0byte"),
    *("a", "a/b", "a/b/c", "x" * 1024, "ü" * 512, "?q=1", "#x", "o", "a/o/b", "b/box-1/o", "\t\x7f", "-", "..."),
]


def test_every_object_name_is_stored_inside_the_folder(endpoint: Endpoint, call: Caller) -> None:
    names = [name for name in ODD_NAMES if name != ".."]
    for name in names:
        assert put(call, name, name.encode())["name"] == name
    for name in names:
        assert content(call("GET", f"{OBJECTS}/{quote(name, safe='')}?alt=media")) == name.encode()
        assert content(call("GET", f"/box-1/{quote(name, safe='')}")) == name.encode()
    listed = [item["name"] for item in call.json("GET", OBJECTS)["items"]]
    assert listed == sorted(names, key=lambda name: name.encode())
    large = b"x" * 100_000
    for name in names:
        put(call, name, large)
    assert all(path.startswith(f"{endpoint.root}/storage/bodies/") for path in stored_files(endpoint.root))
    for name in names:
        assert call("DELETE", f"{OBJECTS}/{quote(name, safe='')}").status == 204
    assert stored_files(endpoint.root) == []


@pytest.mark.parametrize("name", ["..", ".", "new\nline", "x" * 1025])
def test_names_that_google_refuses_are_refused(call: Caller, name: str) -> None:
    assert call.refused("POST", f"{UPLOAD}?uploadType=media&name={quote(name)}", b"x")[0] == 400


@pytest.mark.parametrize("name", ["", "A", "ab", "-ab", "a/b", "..", "a" * 300, 7, None, "goog-x", "storage"])
def test_invalid_bucket_names_are_refused(call: Caller, name: object) -> None:
    assert call.refused("POST", "/storage/v1/b?project=p", {"name": name})[0] in (400, 409)


# Objects


def test_both_checksums_are_returned_and_checked(call: Caller) -> None:
    md5 = base64.b64encode(hashlib.md5(b"123456789").digest()).decode()
    found = put(call, "sums", b"123456789")
    assert (found["crc32c"], found["md5Hash"], found["size"]) == ("4waSgw==", md5, "9")
    headers = call("GET", f"{OBJECTS}/sums?alt=media").headers
    assert headers["x-goog-hash"] == f"crc32c=4waSgw==,md5={md5}"
    assert headers["x-goog-generation"] == found["generation"]
    path = f"{UPLOAD}?uploadType=media&name=sums"
    assert call.refused("POST", path, b"other", X_Goog_Hash="crc32c=4waSgw==") == (400, "invalid")
    assert call("PUT", "/box-1/sums", b"other", Content_MD5=md5).status == 400
    assert content(call("GET", "/box-1/sums")) == b"123456789"


@pytest.mark.parametrize(
    ("given", "status", "expected"),
    [
        ("bytes=0-3", 206, b"0123"),
        ("bytes=8-", 206, b"89"),
        ("bytes=-4", 206, b"6789"),
        ("bytes=5-500", 206, b"56789"),
        ("bytes=-500", 206, b"0123456789"),
        ("bytes=10-", 416, None),
        ("bytes=4-2", 200, b"0123456789"),
        ("nonsense", 200, b"0123456789"),
    ],
)
def test_ranges_are_served(call: Caller, given: str, status: int, expected: bytes | None) -> None:
    put(call, "digits", b"0123456789")
    for path in (f"{OBJECTS}/digits?alt=media", "/box-1/digits"):
        response = call("GET", path, Range=given)
        assert response.status == status
        assert expected is None or content(response) == expected


def test_every_condition_is_enforced(call: Caller) -> None:
    found = put(call, "it")
    generation, path = found["generation"], f"{OBJECTS}/it"
    for query, status in {
        f"ifGenerationMatch={generation}": 200,
        "ifGenerationMatch=1": 412,
        f"ifGenerationNotMatch={generation}": 304,
        "ifGenerationNotMatch=1": 200,
        "ifMetagenerationMatch=1": 200,
        "ifMetagenerationMatch=2": 412,
        "ifMetagenerationNotMatch=1": 304,
        f"generation={generation}": 200,
        "generation=1": 404,
        "ifGenerationMatch=x": 400,
    }.items():
        assert call("GET", f"{path}?{query}").status == status, query
        assert call("GET", f"{path}?{query}&alt=media").status == status, query
    etag = call("GET", "/box-1/it").headers["ETag"]
    assert call("GET", "/box-1/it", If_None_Match=etag).status == 304
    assert call("GET", "/box-1/it", If_Match='"other"').status == 412
    assert call("GET", "/box-1/it", If_Modified_Since="Fri, 01 Jan 2100 00:00:00 GMT").status == 304
    assert call("GET", "/box-1/it", If_Unmodified_Since="Fri, 01 Jan 1999 00:00:00 GMT").status == 412


def test_a_held_object_cannot_be_deleted(call: Caller) -> None:
    put(call, "held")
    call.json("PATCH", f"{OBJECTS}/held", {"temporaryHold": True})
    assert call.refused("DELETE", f"{OBJECTS}/held") == (403, "forbidden")
    assert call.refused("POST", f"{UPLOAD}?uploadType=media&name=held", b"new") == (403, "forbidden")
    call.json("PATCH", f"{OBJECTS}/held", {"temporaryHold": False})
    assert call("DELETE", f"{OBJECTS}/held").status == 204


def test_invalid_requests_are_refused_and_change_nothing(call: Caller) -> None:
    put(call, "it")
    for method, path, body in (
        ("PATCH", f"{OBJECTS}/it", b"{no json"),
        ("PATCH", f"{OBJECTS}/it", b"[1]"),
        ("PATCH", f"{OBJECTS}/it", {"metadata": "words"}),
        ("POST", f"{OBJECTS}/it/compose", {"sourceObjects": []}),
        ("POST", f"{OBJECTS}/it/compose", {"sourceObjects": [{"name": "it", "generation": "x"}]}),
        ("POST", f"{UPLOAD}?uploadType=media", b"no name"),
        ("POST", f"{UPLOAD}?uploadType=other&name=x", b"x"),
        ("POST", f"{UPLOAD}?uploadType=multipart", b"no boundary"),
        ("GET", f"{OBJECTS}?maxResults=many", None),
        ("GET", f"{OBJECTS}?matchGlob=%5Bz-a%5D", None),
        ("GET", f"{OBJECTS}/it?fields=a(b", None),
        ("GET", f"{OBJECTS}?pageToken=%21", None),
        ("POST", "/batch/storage/v1", b"no batch"),
    ):
        assert call.refused(method, path, body)[0] == 400, path
    assert call.refused("POST", "/storage/v1/b/box-1/nothing")[0] == 404
    assert call.refused("POST", f"{OBJECTS}/it") == (405, "httpMethodNotAllowed")
    assert call.json("GET", f"{OBJECTS}/it?fields=name,metageneration") == {"name": "it", "metageneration": "1"}


# Sessions


def start(call: Caller, query: str = "name=session", **headers: str) -> str:
    location = call("POST", f"{UPLOAD}?uploadType=resumable&{query}", {}, **headers).headers["Location"]
    assert location is not None
    # Without host and token, which `call` adds again.
    return "/" + location.split("/", 4)[4]


def test_a_session_resumes_where_it_was_cut(call: Caller) -> None:
    body = bytes(range(256)) * 1024 * 3 + b"rest"
    path = start(call)
    response = call("PUT", path, body[:GRAIN_BYTES], Content_Range=f"bytes 0-{GRAIN_BYTES - 1}/*")
    assert (response.status, response.headers["Range"]) == (308, f"bytes=0-{GRAIN_BYTES - 1}")
    # A partial grain is not acknowledged, nor is a chunk that begins too late.
    more = body[GRAIN_BYTES : GRAIN_BYTES + 5000]
    response = call("PUT", path, more, Content_Range=f"bytes {GRAIN_BYTES}-{GRAIN_BYTES + 4999}/*")
    assert response.headers["Range"] == f"bytes=0-{GRAIN_BYTES - 1}"
    response = call(
        "PUT", path, b"x" * 100, Content_Range=f"bytes {GRAIN_BYTES * 2}-{GRAIN_BYTES * 2 + 99}/{len(body)}"
    )
    assert (response.status, response.headers["Range"]) == (308, f"bytes=0-{GRAIN_BYTES - 1}")
    for whole in ("*", len(body)):
        response = call("PUT", path, Content_Range=f"bytes */{whole}")
        assert (response.status, response.headers["Range"]) == (308, f"bytes=0-{GRAIN_BYTES - 1}")
    # The client can repeat bytes.
    found = call.json("PUT", path, body, Content_Range=f"bytes 0-{len(body) - 1}/{len(body)}")
    assert found["size"] == str(len(body))
    assert content(call("GET", f"{OBJECTS}/session?alt=media")) == body
    assert call.json("PUT", path, Content_Range="bytes */*") == found


def test_a_session_can_be_empty_or_a_single_request(call: Caller) -> None:
    assert call.json("PUT", start(call), Content_Range="bytes */0")["size"] == "0"
    assert call.json("PUT", start(call), b"all of it")["size"] == "9"


def test_a_cancelled_session_is_gone(endpoint: Endpoint, call: Caller) -> None:
    path = start(call)
    call("PUT", path, b"x" * GRAIN_BYTES, Content_Range=f"bytes 0-{GRAIN_BYTES - 1}/*")
    assert call("DELETE", path).status == 499
    assert call.refused("PUT", path, Content_Range="bytes */*") == (404, "notFound")
    assert stored_files(endpoint.root) == []


def test_the_condition_of_a_session_is_checked_at_its_end(call: Caller) -> None:
    path = start(call, "name=late&ifGenerationMatch=0")
    put(call, "late", b"first")
    assert call.refused("PUT", path, b"second", Content_Range="bytes 0-5/6") == (412, "conditionNotMet")
    assert content(call("GET", f"{OBJECTS}/late?alt=media")) == b"first"


@pytest.mark.parametrize("newline", [b"\r\n", b"\n"], ids=["crlf", "lf"])
@pytest.mark.parametrize("body", [b"", b"\r", b"\n", b"x\r\n", b"--x", b"\r\n--x-", b"z" * 700_000])
def test_multipart_bodies_are_split_exactly(call: Caller, newline: bytes, body: bytes) -> None:
    lines = [b"--xx", b"Content-Type: application/json", b"", b'{"name":"enveloped","metadata":{"a":"b"}}', b"--xx"]
    lines += [b"Content-Type: text/x-own", b"", body, b"--xx--", b""]
    kind = "multipart/related; boundary='xx'"
    found = call.json("POST", f"{UPLOAD}?uploadType=multipart", newline.join(lines), Content_Type=kind)
    assert (found["contentType"], found["metadata"], found["size"]) == ("text/x-own", {"a": "b"}, str(len(body)))
    assert content(call("GET", f"{OBJECTS}/enveloped?alt=media")) == body


def test_parts_become_one_object(endpoint: Endpoint, call: Caller) -> None:
    response = content(call("POST", "/box-1/joined?uploads", x_goog_meta_own="word")).decode()
    path = "/box-1/joined?uploadId=" + response.partition("<UploadId>")[2].partition("<")[0]
    tags = [call("PUT", f"{path}&partNumber={n}", b"%d" % n * 100_000).headers["ETag"] for n in (1, 2, 2)]
    assert content(call("GET", path)).count(b"<Part>") == 2
    part = "<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>"
    wrong = "".join(part.format(n, tags[0]) for n in (1, 2))
    assert call("POST", path, f"<C>{wrong}</C>".encode()).status == 400
    right = "".join(part.format(n, tags[n - 1]) for n in (1, 2))
    assert call("POST", path, f"<C>{right}</C>".encode()).status == 200
    answer_headers = call("GET", "/box-1/joined")
    assert content(answer_headers) == b"1" * 100_000 + b"2" * 100_000
    assert answer_headers.headers["x-goog-meta-own"] == "word"
    assert len(stored_files(endpoint.root)) == 1


def test_a_copy_can_have_a_null_body(call: Caller) -> None:
    """Google's client in Go, which rclone uses, sends this."""
    call("POST", "/upload/storage/v1/b/box-1/o?uploadType=media&name=one", b"words")
    done = call.json(
        "POST", "/storage/v1/b/box-1/o/one/rewriteTo/b/box-1/o/two", b"null\n", Content_Type="application/json"
    )
    assert (done["done"], done["resource"]["size"]) == (True, "5")
    assert call.refused("POST", "/storage/v1/b/box-1/o/one/rewriteTo/b/box-1/o/three", b"[]")[0] == 400
