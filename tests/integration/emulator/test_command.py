"""`outlast local serve` and `env` as commands, with restarts and kills."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from outlast_gcp_emulator.storage.uploads import GRAIN_BYTES
from tests.integration.emulator.serving import OUTLAST, Serving
from tests.support.emulator import stored_files
from tests.support.waiting import eventually


def test_serve_prints_its_address_and_stops_cleanly(serving: Serving) -> None:
    assert serving.request("GET", "/storage/v1/b?project=p") == b'{"kind":"storage#buckets"}'
    printed = serving.outlast("local", "env", "--root", str(serving.root))
    assert f"export STORAGE_EMULATOR_HOST={serving.url}" in printed.stdout.splitlines()
    code, errors = serving.end()
    assert (code, "Traceback" in errors) == (0, False)
    after = serving.outlast("local", "env", "--root", str(serving.root))
    assert (after.returncode, after.stdout) == (5, "")
    assert "outlast local serve --root" in after.stderr


def test_the_variables_work_in_a_shell_and_name_existing_files(serving: Serving) -> None:
    root = shlex.quote(str(serving.root))
    script = f'eval "$({OUTLAST} local env --root {root})" && cat "$BOTO_CONFIG" && echo "$CLOUDSDK_CONFIG"'
    printed = subprocess.run(
        ["sh", "-euc", script], env=serving.variables, capture_output=True, text=True, timeout=30, check=True
    )
    assert printed.stdout.strip().endswith(f"{serving.root}/gcloud")
    found = json.loads(serving.outlast("local", "env", "--root", str(serving.root), "--json").stdout)
    for name in ("CLOUDSDK_CONFIG", "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE", "BOTO_CONFIG", "GOOGLE_APPLICATION_CREDENTIALS"):
        assert os.path.exists(found[name]), name
    assert found["CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE"].endswith("/")


@pytest.mark.full
def test_a_second_server_on_the_folder_and_a_port_in_use_are_refused(serving: Serving, tmp_path: Path) -> None:
    again = serving.outlast("local", "serve", "--root", str(serving.root))
    assert again.returncode == 2
    assert serving.address in again.stderr
    port = serving.address.rpartition(":")[2]
    taken = serving.outlast("local", "serve", "--root", str(tmp_path / "other"), "--port", port)
    assert taken.returncode == 2
    assert f"--port: {port} is in use" in taken.stderr
    (tmp_path / "file").write_text("x")
    wrong = serving.outlast("local", "serve", "--root", str(tmp_path / "file"), "--port", "0")
    assert wrong.returncode == 5
    assert "--root" in wrong.stderr


def test_googles_login_accepts_the_key(serving: Serving) -> None:
    service_account = pytest.importorskip("google.oauth2.service_account", reason="google-auth is not installed")
    transport = pytest.importorskip("google.auth.transport.requests", reason="google-auth is not installed")
    credentials = service_account.Credentials.from_service_account_file(
        f"{serving.root}/key.json", scopes=["https://www.googleapis.com/auth/devstorage.read_write"]
    )
    credentials.refresh(transport.Request())
    assert credentials.valid


def test_a_restart_keeps_objects_and_unfinished_uploads(serving: Serving) -> None:
    body = os.urandom(GRAIN_BYTES * 2 + 17)
    serving.request("PUT", "/kept-1")
    serving.request("PUT", "/kept-1/small", b"small", x_goog_meta_own="word")
    serving.request("PUT", "/kept-1/large", body)
    before = serving.request("GET", "/storage/v1/b/kept-1/o?fields=items(name,generation,crc32c,metadata)")
    start = urllib.request.Request(
        f"{serving.url}/upload/storage/v1/b/kept-1/o?uploadType=resumable&name=half", data=b"{}", method="POST"
    )
    location = urllib.request.urlopen(start, timeout=10).headers["Location"].partition("/upload")[2]
    head = f"bytes 0-{GRAIN_BYTES - 1}/*"
    with pytest.raises(urllib.error.HTTPError, match="308"):
        serving.request("PUT", "/upload" + location, body[:GRAIN_BYTES], Content_Range=head)
    serving.end(signal.SIGKILL)
    serving.start()
    assert serving.request("GET", "/storage/v1/b/kept-1/o?fields=items(name,generation,crc32c,metadata)") == before
    assert serving.request("GET", "/kept-1/large") == body
    rest = f"bytes {GRAIN_BYTES}-{len(body) - 1}/{len(body)}"
    serving.request("PUT", "/upload" + location, body[GRAIN_BYTES:], Content_Range=rest)
    assert serving.request("GET", "/kept-1/half") == body


def test_a_full_disk_is_reported_and_damages_nothing(serving: Serving) -> None:
    serving.request("PUT", "/full-1")
    serving.request("PUT", "/full-1/old", b"old" * 100_000)
    serving.end()
    serving.start(file_bytes_max=1_000_000)
    for _ in range(2):
        with pytest.raises(urllib.error.HTTPError, match="503"):
            serving.request("PUT", "/full-1/old", b"n" * 2_000_000)
    # Small objects fill the database instead.
    small = (serving.request("PUT", f"/full-1/small-{number}", b"s" * 60_000) for number in range(40))
    with pytest.raises(urllib.error.HTTPError, match="503"):
        list(small)
    assert serving.request("GET", "/full-1/old") == b"old" * 100_000
    assert len(stored_files(str(serving.root))) == 1
    code, errors = serving.end()
    assert (code, "Traceback" in errors) == (0, False), errors


def test_a_kill_during_an_upload_leaves_the_old_object_and_no_temporary_files(serving: Serving) -> None:
    old = b"old" * 50_000
    serving.request("PUT", "/killed-1")
    serving.request("PUT", "/killed-1/object", old)
    host, _, port = serving.address.removeprefix("http://").partition(":")
    path = f"{serving.url.removeprefix(serving.address)}/killed-1/object".encode()
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(
            b"PUT %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9000000\r\n\r\n" % path + b"n" * 4_000_000
        )
        eventually(lambda: len(stored_files(str(serving.root))) == 2, what="the staged body")
        serving.end(signal.SIGKILL)
    assert len(stored_files(str(serving.root))) == 2
    serving.start()
    assert serving.request("GET", "/killed-1/object") == old
    assert len(stored_files(str(serving.root))) == 1
