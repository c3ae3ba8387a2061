"""The key of machines for a workspace in another cloud: when it is needed, and which one is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.errors import UsageError
from outlast.store.access import key_given, needs_key

OWN = {"AWS_ACCESS_KEY_ID": "own", "AWS_SECRET_ACCESS_KEY": "own-secret"}
MADE = {"OUTLAST_S3_KEY_ID": "made", "OUTLAST_S3_KEY_SECRET": "made-secret"}
ACCOUNT = '{"client_email": "a@b", "private_key": "k", "token_uri": "t"}'


@pytest.mark.parametrize(
    ("url", "cloud", "environment", "needed"),
    [
        ("s3://b/w", "aws", {}, False),
        ("s3://b/w", "gcp", {}, True),
        ("s3://b/w", "local", {}, True),
        ("gs://b/w", "gcp", {}, False),
        ("gs://b/w", "aws", {}, True),
        ("gs://b/w", "local", {}, True),
        ("gs://b/w", "local", {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"}, False),
        ("/a/folder", "local", {}, False),
    ],
)
def test_machines_need_a_key_for_a_store_that_is_not_of_their_cloud(
    url: str, cloud: str, environment: dict[str, str], needed: bool
) -> None:
    assert needs_key(url, cloud, environment) == needed


@pytest.mark.parametrize(
    ("cloud", "environment", "id"),
    [("local", OWN, "own"), ("local", {**OWN, **MADE}, "made"), ("gcp", {**OWN, **MADE}, "made")],
)
def test_the_key_for_machines_takes_precedence_over_the_users_own(
    cloud: str, environment: dict[str, str], id: str
) -> None:
    assert key_given("s3://b/w", cloud, environment) == {"s3_id": id, "s3_secret": f"{id}-secret"}


@pytest.mark.parametrize(
    ("cloud", "environment"),
    [
        ("gcp", OWN),
        ("local", {}),
        ("local", {**OWN, "AWS_SESSION_TOKEN": "t"}),
        ("local", {"AWS_ACCESS_KEY_ID": "own"}),
    ],
)
def test_a_users_own_key_is_used_only_locally_and_only_if_it_does_not_expire(
    cloud: str, environment: dict[str, str]
) -> None:
    with pytest.raises(UsageError, match="need a key") as refused:
        key_given("s3://b/w", cloud, environment)
    assert "OUTLAST_S3_KEY_ID" in refused.value.hint


def test_local_machines_use_the_key_file_of_a_service_account_and_no_other_credentials(tmp_path: Path) -> None:
    account, person = tmp_path / "account.json", tmp_path / "person.json"
    account.write_text(ACCOUNT)
    person.write_text('{"type": "authorized_user", "refresh_token": "r"}')
    variable = "GOOGLE_APPLICATION_CREDENTIALS"
    assert key_given("gs://b/w", "local", {variable: str(account)}) == {"gs_key": ACCOUNT}
    with pytest.raises(UsageError, match=f"{variable}: .* is not the key of a service account"):
        key_given("gs://b/w", "local", {variable: str(person)})
    with pytest.raises(UsageError, match="need a key"):
        key_given("gs://b/w", "aws", {variable: str(account)})
