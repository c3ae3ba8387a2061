"""Workspaces in S3 and GCS use the credentials and regions that the clouds' own clients use."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")

ASSUMED = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>ASIAASSUMED</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>session-token</SessionToken>
<Expiration>2199-01-01T00:00:00Z</Expiration></Credentials><AssumedRoleUser><AssumedRoleId>r:s</AssumedRoleId>
<Arn>arn:aws:sts::123456789012:assumed-role/r/s</Arn></AssumedRoleUser></AssumeRoleResult></AssumeRoleResponse>"""


class Recorder(ThreadingHTTPServer):
    """A server that stands for S3, GCS, STS and Google's token endpoints, and records every request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def signatures(self) -> list[str]:
        """Return the Authorization headers of requests for objects."""
        return [headers.get("authorization", "") for _, path, headers in self.requests if "/bucket/" in path]


class _Handler(BaseHTTPRequestHandler):
    server: Recorder

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode("utf-8", "replace")
        self.server.requests.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        answer, kind, status = b"hello", "text/plain", 200
        if "Action=AssumeRole" in body:
            answer, kind = ASSUMED.encode(), "text/xml"
        elif self.path == "/token":
            token = {"access_token": "federated", "expires_in": 3600, "token_type": "Bearer"}
            answer, kind = json.dumps(token).encode(), "application/json"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else answer)

    do_GET = do_PUT = do_POST = do_HEAD = _serve

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    server = Recorder()
    yield server
    server.shutdown()
    server.server_close()


def read(url: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Read one object of a workspace in a new process with an otherwise empty environment."""
    program = f"from outlast.store.bucket import open_bucket; print(open_bucket({url!r}).get('key'))"
    return subprocess.run(
        [sys.executable, "-c", program],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
    )


def configure(home: Path, config: str, credentials: str = "") -> None:
    (home / ".aws").mkdir()
    (home / ".aws" / "config").write_text(config)
    if credentials:
        (home / ".aws" / "credentials").write_text(credentials)


KEYS = "[default]\naws_access_key_id = AKIADEFAULT\naws_secret_access_key = s\n"
TEAM = "[team]\naws_access_key_id = AKIATEAM\naws_secret_access_key = s\n"


def test_keys_of_aws_configure_sign_requests_in_the_configured_region(tmp_path: Path, recorder: Recorder) -> None:
    configure(tmp_path, "[default]\nregion = eu-west-1\n", KEYS)
    answer = read("s3://bucket/place", tmp_path, AWS_ENDPOINT_URL=recorder.url)
    assert answer.returncode == 0, answer.stderr
    [signature] = recorder.signatures()
    assert "Credential=AKIADEFAULT/" in signature
    assert "/eu-west-1/s3/" in signature


def test_a_profile_selects_its_keys_and_its_region(tmp_path: Path, recorder: Recorder) -> None:
    configure(tmp_path, "[profile team]\nregion = ap-south-1\n", KEYS + TEAM)
    answer = read("s3://bucket/place", tmp_path, AWS_ENDPOINT_URL=recorder.url, AWS_PROFILE="team")
    assert answer.returncode == 0, answer.stderr
    [signature] = recorder.signatures()
    assert "Credential=AKIATEAM/" in signature
    assert "/ap-south-1/s3/" in signature


def test_a_profile_that_assumes_a_role_uses_the_credentials_of_the_role(tmp_path: Path, recorder: Recorder) -> None:
    role = "[profile role]\nrole_arn = arn:aws:iam::123456789012:role/r\nsource_profile = default\nregion = us-east-1\n"
    configure(tmp_path, role, KEYS)
    answer = read("s3://bucket/place", tmp_path, AWS_ENDPOINT_URL=recorder.url, AWS_PROFILE="role")
    assert answer.returncode == 0, answer.stderr
    [signature] = recorder.signatures()
    assert "Credential=ASIAASSUMED/" in signature


def test_variables_come_before_the_default_profile(tmp_path: Path, recorder: Recorder) -> None:
    configure(tmp_path, "[default]\nregion = eu-west-1\n", KEYS)
    keys = {"AWS_ACCESS_KEY_ID": "AKIAVARIABLE", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-west-2"}
    answer = read("s3://bucket/place", tmp_path, AWS_ENDPOINT_URL=recorder.url, **keys)
    assert answer.returncode == 0, answer.stderr
    [signature] = recorder.signatures()
    assert "Credential=AKIAVARIABLE/" in signature
    assert "/us-west-2/s3/" in signature


def test_an_unknown_profile_is_reported_without_a_traceback(tmp_path: Path, recorder: Recorder) -> None:
    configure(tmp_path, "[default]\nregion = eu-west-1\n", KEYS)
    answer = read("s3://bucket/place", tmp_path, AWS_ENDPOINT_URL=recorder.url, AWS_PROFILE="missing")
    assert answer.returncode != 0
    assert "WorkspaceError: AWS credentials: The config profile (missing) could not be found" in answer.stderr
    assert recorder.requests == []


def test_federated_google_credentials_give_tokens_to_the_store(tmp_path: Path, recorder: Recorder) -> None:
    pytest.importorskip("google.auth", reason="google-auth is not installed")
    (tmp_path / "subject").write_text("token of the identity provider")
    path = tmp_path / "adc.json"
    federated = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{recorder.url}/token",
        "credential_source": {"file": str(tmp_path / "subject")},
    }
    path.write_text(json.dumps(federated))
    program = "import os; from outlast.store.credentials import gs_provider; print(gs_provider(os.environ)()['token'])"
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "GOOGLE_APPLICATION_CREDENTIALS": str(path)}
    answer = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == "federated"


@pytest.mark.parametrize("kind", ["service_account", "authorized_user"])
def test_google_credentials_that_obstore_reads_are_left_to_it(tmp_path: Path, kind: str) -> None:
    from outlast.store.credentials import gs_provider

    path = tmp_path / "adc.json"
    path.write_text(json.dumps({"type": kind}))
    assert gs_provider({"GOOGLE_APPLICATION_CREDENTIALS": str(path)}) is None
    assert gs_provider({"CLOUDSDK_CONFIG": str(tmp_path / "nothing")}) is None


@pytest.mark.parametrize(
    ("url", "why", "hint"),
    [
        ("gs://bucket/place", "no Google credentials", "gcloud auth application-default login"),
        ("s3://bucket/place", "no AWS credentials", "aws configure"),
    ],
)
def test_a_computer_without_credentials_names_the_command_that_creates_some(
    tmp_path: Path, url: str, why: str, hint: str
) -> None:
    # No server listens there, as on computers outside of the cloud.
    nothing = {"GCE_METADATA_HOST": "127.0.0.1:9", "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9"}
    program = f"""
from outlast.errors import StoreUnreachable
from outlast.store.bucket import open_bucket
try:
    open_bucket({url!r}).get("key")
except StoreUnreachable as problem:
    print(problem.message, "hint:", problem.hint)
"""
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", **nothing},
        capture_output=True,
        text=True,
        check=True,
    )
    assert why in answer.stdout
    assert hint in answer.stdout.partition("hint:")[2]
