"""Credentials and regions of stores, found as the clouds' own clients find them.

obstore reads keys from variables, Google's key files, and the role of a machine. The clouds' libraries read the rest:
AWS profiles, SSO and assumed roles; Google's impersonation and workload identity federation.
"""

from __future__ import annotations

import configparser
import datetime
import functools
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from outlast.errors import StoreUnreachable, WorkspaceError
from outlast.extras import install_hint

DEFAULT_S3_REGION = "us-east-1"
# Kinds of Google credential files that obstore reads itself.
_NATIVE_GOOGLE = {"service_account", "authorized_user"}
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
# A token is renewed this long before it expires.
_RENEW_S = 225.0
_HEAD_S = 5.0
# The metadata server of a machine answers within milliseconds; other computers may wait for ever.
_METADATA = "169.254.169.254"
_PROBE_S = 2.0
# Variables that name credentials, or a server that has some.
_GOOGLE_CREDENTIALS = (
    *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
    *("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SKIP_SIGNATURE"),
)
_AWS_CREDENTIALS = (
    *("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_SKIP_SIGNATURE"),
)

# obstore types the answer of each store's provider differently.
Provider = Callable[[], Any]


def s3_provider(environment: Mapping[str, str]) -> Provider | None:
    """Return boto3's credentials if a profile or an AWS configuration file selects them; None if obstore finds its own.

    Raises WorkspaceError if boto3 is needed and not installed, or finds no credentials.
    """
    profile = environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE")
    if not profile and (environment.get("AWS_ACCESS_KEY_ID") or not any(map(os.path.exists, _aws_files(environment)))):
        return None
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as problem:
        raise WorkspaceError(
            "`boto3` is not installed, and the AWS credentials are in a profile", hint=install_hint("outlast[aws]")
        ) from problem
    try:
        # Each session reads files and may call STS: one serves all stores of this process.
        return _s3_session(Boto3CredentialProvider, boto3.Session, profile or "")
    except (BotoCoreError, ValueError) as problem:
        raise WorkspaceError(
            f"AWS credentials: {problem}",
            hint="`aws sts get-caller-identity` shows the credentials that the AWS command finds",
        ) from problem


@functools.cache
def _s3_session(provider: Any, session: Any, profile: str) -> Provider:
    found: Provider = provider(session(profile_name=profile or None))
    return found


def aws_region(environment: Mapping[str, str]) -> str:
    """Return the region of the variables, else of the profile in the configuration file; empty without either."""
    if region := environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"):
        return region
    profile = environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE") or "default"
    parser = configparser.RawConfigParser()
    try:
        parser.read(_aws_files(environment)[0], encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return ""
    section = "default" if profile == "default" else f"profile {profile}"
    return parser.get(section, "region", fallback="").strip()


def _aws_files(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the paths of the AWS configuration and credentials files."""
    return (
        os.path.expanduser(environment.get("AWS_CONFIG_FILE") or "~/.aws/config"),
        os.path.expanduser(environment.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"),
    )


def store_region(url: str, environment: Mapping[str, str], *, endpoint: str = "") -> str:
    """Return the region of a bucket's URL. Other S3 servers (`endpoint`) take the configured region."""
    region = aws_region(environment) or DEFAULT_S3_REGION
    return region if endpoint else bucket_region(url.partition("://")[2].partition("/")[0], region)


@functools.cache
def bucket_region(bucket: str, region: str) -> str:
    """Return the region of an S3 bucket, which may differ from the region of the machines; `region` if S3 is silent."""
    import urllib.error  # slow to load, and most commands need no bucket of S3
    import urllib.request

    end = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    request = urllib.request.Request(f"https://s3.{region}.{end}/{bucket}", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_HEAD_S) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as problem:
        headers = problem.headers  # S3 names the region also when it denies access or redirects
    except OSError:
        return region
    return str(headers.get("x-amz-bucket-region") or region)


def require_credentials(url: str, environment: Mapping[str, str], *, metadata: str = "") -> None:
    """Raise StoreUnreachable, with the command that creates some, if this computer has no credentials for a bucket.

    Without this check obstore asks the metadata server of a cloud for minutes, and reports its silence.
    """
    if url.startswith("gs://"):
        if _google_kind(environment) or any(environment.get(name) for name in _GOOGLE_CREDENTIALS):
            return
        host = environment.get("GCE_METADATA_HOST") or _METADATA
        if not _serves(f"http://{host}", "GET", "/computeMetadata/v1/", {"Metadata-Flavor": "Google"}):
            raise StoreUnreachable(
                f"workspace {url}: this computer has no Google credentials",
                hint="run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file",
            )
    elif url.startswith("s3://") and not any(environment.get(name) for name in _AWS_CREDENTIALS):
        token = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        if not _serves(metadata or f"http://{_METADATA}", "PUT", "/latest/api/token", token):
            raise StoreUnreachable(
                f"workspace {url}: this computer has no AWS credentials",
                hint="run `aws configure` or `aws sso login`, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )


def _serves(address: str, method: str, path: str, headers: Mapping[str, str]) -> bool:
    """Return whether a metadata server accepts the request: this computer is then a machine of that cloud."""
    import http.client  # most commands need no bucket
    from urllib.parse import urlsplit

    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port or 80, timeout=_PROBE_S)
    try:
        connection.request(method, path, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def gs_provider(environment: Mapping[str, str]) -> Provider | None:
    """Return google-auth's credentials if obstore cannot read the configured ones; None otherwise.

    Raises WorkspaceError if google-auth is needed and not installed, or cannot load them.
    """
    kind = _google_kind(environment)
    if not kind or kind in _NATIVE_GOOGLE:
        return None
    try:
        import google.auth
        from google.auth.credentials import with_scopes_if_required
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport import urllib3 as transport
        from urllib3 import PoolManager
    except ImportError as problem:
        raise WorkspaceError(
            f"`google-auth` is not installed, and the Google credentials are of type `{kind}`",
            hint=install_hint("outlast[gcp]"),
        ) from problem
    try:
        # Scopes are added afterwards: with them `default` would also ask Google for the project's name.
        found, _ = google.auth.default()
        scoped: Any = with_scopes_if_required
        credentials = scoped(found, [_GOOGLE_SCOPE])
    except (GoogleAuthError, ValueError) as problem:
        raise WorkspaceError(
            f"Google credentials: {problem}", hint="run `gcloud auth application-default login`"
        ) from None
    make: Any = transport.Request
    return GoogleTokens(credentials, make(PoolManager()))


class GoogleTokens:
    """Tokens of google-auth credentials, in the form that obstore requires. May be used by several threads."""

    def __init__(self, credentials: Any, request: Any) -> None:
        self._credentials = credentials
        self._request = request

    def __call__(self) -> dict[str, Any]:
        self._credentials.refresh(self._request)
        expiry: datetime.datetime | None = self._credentials.expiry
        if expiry is not None:
            expiry = expiry.replace(tzinfo=datetime.UTC) - datetime.timedelta(seconds=_RENEW_S)
        return {"token": self._credentials.token, "expires_at": expiry}


def _google_kind(environment: Mapping[str, str]) -> str:
    """Return the `type` in the file of the application default credentials; empty if there is none."""
    folder = environment.get("CLOUDSDK_CONFIG") or "~/.config/gcloud"
    path = environment.get("GOOGLE_APPLICATION_CREDENTIALS") or f"{folder}/application_default_credentials.json"
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return ""
    return str(found.get("type", "")) if isinstance(found, dict) else ""
