"""A workspace in S3, and machines of the local cloud: they get a key, or the run is refused before it is submitted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.probe import why_not
from outlast.errors import SpecError
from outlast.spec.parse import parse
from outlast.submit.validate import validate
from tests.integration.aws.home import AwsHome
from tests.support.aws import Bridge

RUN = ("run", "--cloud", "local", "--name", "count", "--checkpoint", "ckpt", "--", "python3", "count.py", "3", "0.05")


@pytest.fixture
def home(bridge: Bridge, tmp_path: Path) -> Iterator[AwsHome]:
    own = AwsHome(tmp_path, bridge)
    yield own
    own.clean()


@pytest.fixture(params=["root", "userns", "pidns", "plain"])
def mode(request: pytest.FixtureRequest, home: AwsHome, tmp_path: Path) -> str:
    if reason := why_not(request.param, root=str(tmp_path)):
        pytest.skip(f"mode {request.param} does not work here: {reason}")
    home.environment["OUTLAST_LOCAL_MODE"] = request.param
    home.cloud = LocalCloud(home.cloud.root, mode=request.param)
    return str(request.param)


@pytest.mark.full
def test_a_run_on_the_local_cloud_uses_a_workspace_in_s3(home: AwsHome, mode: str) -> None:
    answer = home.outlast(*RUN, timeout_s=240.0)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "count 3" in answer.stdout
    assert home.state("count-1").ending == "finished"


@pytest.mark.full
def test_the_key_is_in_no_object_of_the_workspace_and_is_dropped_with_the_run(home: AwsHome) -> None:
    home.environment |= {"AWS_SECRET_ACCESS_KEY": "a-very-secret-key"}
    answer = home.outlast(*RUN, timeout_s=240.0)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    bucket = home.workspace.bucket
    kept = b"\n".join(bucket.get(entry.key) for entry in bucket.list(""))
    assert b"a-very-secret-key" not in kept
    home.until(lambda: not list(Path(home.cloud.root, "secrets").iterdir()), "the end of the secret")


@pytest.mark.full
def test_a_key_for_the_bucket_precedes_the_key_of_the_user(home: AwsHome) -> None:
    home.environment |= {"OUTLAST_S3_KEY_ID": "AKIDOFTHEBUCKET", "OUTLAST_S3_KEY_SECRET": "key-of-the-bucket"}
    submitted = home.outlast("submit", *RUN[1:])
    assert submitted.returncode == 0, submitted.stderr
    home.until(lambda: list(Path(home.cloud.root, "secrets").iterdir()), "the secret")
    [secret] = Path(home.cloud.root, "secrets").iterdir()
    assert "key-of-the-bucket" in secret.read_text()
    home.until(lambda: home.state("count-1").closed, "the end", within_s=240.0)


def test_temporary_credentials_are_refused_before_anything_is_submitted(home: AwsHome) -> None:
    answer = home.outlast(*RUN, AWS_SESSION_TOKEN="of-an-hour")
    assert answer.returncode == 2, answer.stderr
    assert "machines of the local cloud need a key for the workspace s3://" in answer.stderr
    assert "AWS_SESSION_TOKEN would expire during a run" in answer.stderr
    assert "OUTLAST_S3_KEY_ID" in answer.stderr
    assert home.workspace.runs() == []


def test_a_run_whose_machines_would_have_no_internet_is_refused(home: AwsHome) -> None:
    cloud = LocalCloud(home.cloud.root, mode="userns")
    spec = parse({"command": "true", "code": {"path": str(home.project)}})
    validate(home.workspace, {"local": cloud}, spec, environment=home.environment, source="")
    elsewhere = {**home.environment, "AWS_ENDPOINT_URL": "https://s3.example.com"}
    with pytest.raises(SpecError, match="machines of `local` have no internet here"):
        validate(home.workspace, {"local": cloud}, spec, environment=elsewhere, source="")
