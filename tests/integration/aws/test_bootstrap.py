"""The bootstrap of a machine: request signatures, and the size of user data."""

from __future__ import annotations

import base64
import datetime
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.clouds.aws import secrets, userdata
from outlast.clouds.cloud import Boot
from outlast.code import bootstrap
from outlast.kit.boot_script import boot_script

pytest.importorskip("botocore")
KEYS = {"id": "AKIDEXAMPLE", "secret": "wJalrXUtnFEMI/K7MDENG", "token": "a-session"}


@pytest.mark.parametrize(
    ("method", "url", "service", "body"),
    [
        ("GET", "https://s3.eu-west-1.amazonaws.com/box/ws/wheels/a%20b/outlast-0.1-py3.whl", "s3", b""),
        ("POST", "https://ssm.eu-west-1.amazonaws.com/", "ssm", b'{"Name": "/outlast/secrets/x"}'),
    ],
)
def test_a_signature_equals_that_of_botocore(
    method: str, url: str, service: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore import auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    headers = {"Content-Type": "application/x-amz-json-1.1"} if body else {}
    ours = bootstrap.sign(method, url, headers, body, service=service, region="eu-west-1", keys=KEYS)
    moment = datetime.datetime.strptime(ours["X-Amz-Date"], "%Y%m%dT%H%M%SZ")
    # The clock of botocore, at the second at which ours was read.
    monkeypatch.setattr(auth, "get_current_datetime", lambda *_, **__: moment)
    request = AWSRequest(method, url, {**headers, "X-Amz-Content-SHA256": ours["X-Amz-Content-SHA256"]}, data=body)
    request.context["payload_signing_enabled"] = True
    signer = auth.S3SigV4Auth if service == "s3" else auth.SigV4Auth
    signer(Credentials(KEYS["id"], KEYS["secret"], KEYS["token"]), service, "eu-west-1").add_auth(request)
    assert ours["Authorization"] == request.headers["Authorization"]


def test_script_and_metadata_of_a_run_fit_into_user_data_with_room_for_parameters() -> None:
    params = {f"param-{number}": base64.b64encode(bytes([number] * 30)).decode() for number in range(100)}
    packed = userdata.pack(Boot(script=boot_script("agent", "outlast.agent"), metadata=params, life_max_s=60.0))
    assert len(base64.b64decode(packed)) < 0.65 * userdata.BYTES_MAX
    assert bootstrap.launched_with(base64.b64decode(packed)) == params == userdata.metadata(packed)


def test_secrets_are_stored_where_machines_read_them() -> None:
    assert secrets.PREFIX == bootstrap.SECRETS_PATH


@pytest.mark.full
def test_the_script_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    program = Path(bootstrap.__file__).read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(tmp_path), "outlast-wheel"],
        env={"OUTLAST_METADATA_SERVICE": "ec2", "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "127.0.0.1:1/latest/api/token" in done.stderr
    assert "Traceback" not in done.stderr
