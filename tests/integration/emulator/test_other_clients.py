"""Requests of clients other than Google's Python client, written by hand."""

from __future__ import annotations

import json

from outlast_gcp_emulator.endpoint import Endpoint
from outlast_gcp_emulator.environment import machine_variables, variables
from outlast_gcp_emulator.faults import Fault
from outlast_gcp_emulator.storage.uploads import GRAIN_BYTES
from tests.integration.emulator.test_protocol import OBJECTS, start
from tests.support.emulator import Caller, content


def test_the_address_without_a_path_serves_buckets(endpoint: Endpoint, call: Caller) -> None:
    """Google's client for Node uses STORAGE_EMULATOR_HOST as the address of the API."""
    assert call.json("POST", "/b?project=p", {"name": "short"})["name"] == "short"
    call("POST", "/upload/storage/v1/b/short/o?uploadType=media&name=b/1", b"words")
    assert content(call("GET", "/b/short/o/b%2F1?alt=media")) == b"words"
    assert [each["name"] for each in call.json("GET", "/b/short/o?prefix=b/")["items"]] == ["b/1"]
    assert call.json("PATCH", "/b/short", {"labels": {"a": "b"}})["labels"] == {"a": "b"}
    assert call.json("GET", "/projects/p/serviceAccount")["kind"] == "storage#serviceAccount"
    assert call.refused("GET", "/b/short/o/none") == (404, "notFound")
    endpoint.faults.add(Fault(path="/storage/v1/b/short/o/*", status=503))
    assert call("GET", "/b/short/o/b%2F1").status == 503
    assert call("DELETE", "/b/short/o/b%2F1").status == 204
    assert call("DELETE", "/b/short").status == 204


def test_a_session_ends_with_a_body_of_unknown_length(call: Caller) -> None:
    """Google's client for Node sends a stream like this: `0-*/*`, then from the cut on."""
    body = b"x" * GRAIN_BYTES + b"end"
    assert call.json("PUT", start(call), body, Content_Range="bytes 0-*/*")["size"] == str(len(body))
    assert call.json("PUT", start(call), body, Content_Range=f"bytes 0-*/{len(body)}")["size"] == str(len(body))
    path = start(call)
    call("PUT", path, body[:GRAIN_BYTES], Content_Range=f"bytes 0-{GRAIN_BYTES - 1}/*")
    # A chunk that begins too late does not end the session.
    late = call("PUT", path, b"late", Content_Range=f"bytes {GRAIN_BYTES * 2}-*/*")
    assert (late.status, late.headers["Range"]) == (308, f"bytes=0-{GRAIN_BYTES - 1}")
    last = call("PUT", path, body[GRAIN_BYTES:], Content_Range=f"bytes {GRAIN_BYTES}-*/*")
    assert (last.status, json.loads(content(last))["size"]) == (200, str(len(body)))
    assert content(call("GET", f"{OBJECTS}/session?alt=media")) == body


def test_every_library_has_a_variable_for_the_address(endpoint: Endpoint) -> None:
    """tensorstore (and with it Orbax) and pyarrow read their own variables, and otherwise call Google."""
    found = variables(endpoint.root, endpoint.url)
    assert found["TENSORSTORE_GCS_HTTP_URL"] == found["CLOUD_STORAGE_EMULATOR_ENDPOINT"] == endpoint.url
    # Without this variable tensorstore requests a token from Google, and waits.
    assert found["GOOGLE_AUTH_TOKEN_FOR_TESTING"]
    on_machines = machine_variables(endpoint.url)
    assert on_machines["TENSORSTORE_GCS_HTTP_URL"] == on_machines["CLOUD_STORAGE_EMULATOR_ENDPOINT"] == endpoint.url
    # A machine gets its account from the metadata server.
    assert "GOOGLE_AUTH_TOKEN_FOR_TESTING" not in on_machines


def test_part_operations_of_amazon_that_google_lacks_are_refused(call: Caller) -> None:
    """boto3's `copy` of more than 8 MB copies parts, which must not become empty parts."""
    call("PUT", "/box-1/from", b"body")
    started = content(call("POST", "/box-1/to?uploads")).decode()
    path = "/box-1/to?partNumber=1&uploadId=" + started.partition("<UploadId>")[2].partition("<")[0]
    signed = {"Authorization": "AWS4-HMAC-SHA256 x", "x_amz_copy_source": "/box-1/from"}
    response = call("PUT", path, **signed)
    assert (response.status, b"<Code>NotImplemented</Code>" in content(response)) == (501, True)
    assert b"<Part>" not in content(call("GET", path.replace("partNumber=1&", "")))
    assert call("GET", "/box-1?uploads").status == 501
