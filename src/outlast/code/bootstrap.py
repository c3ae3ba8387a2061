"""The program with which a machine fetches the outlast wheel from the workspace, using the machine's identity.

The boot script contains this file as text, so it uses only the standard library of Python 3.7. The agent imports it,
too. It supports the metadata servers of Google and Amazon (version 2), and objects in GCS and S3.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from email.parser import BytesParser
from typing import Any, TypeVar

T = TypeVar("T")

# Set by a cloud's boot script: `ec2` if the machine's metadata service is Amazon's; Google's is the default.
METADATA_SERVICE = "OUTLAST_METADATA_SERVICE"
SECRETS_PATH = "/outlast/secrets/"
_MARK = "# outlast-metadata: "
_PAUSE_S = 2.0
_TOKEN_S = 21600
# Google's IAM takes up to seven minutes to spread a new binding, mostly two; Amazon's about one.
_LATE_RIGHTS_S, _LATE_PAUSE_S_MAX = 420.0, 10.0
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def send(
    method: str,
    url: str,
    headers: dict[str, str],
    body: bytes | None = None,
    *,
    tries: int = 5,
    near: bool = False,
    timeout_s: float = 60.0,
) -> tuple[int, bytes]:
    """Send a request; return status and body. Retries temporary errors; raises OSError without a response.

    `near` bypasses proxies, for metadata servers.
    """
    opener = _NO_PROXY if near else urllib.request.build_opener()
    for left in range(tries - 1, -1, -1):
        try:
            request = urllib.request.Request(url, data=body, headers=headers, method=method)
            with opener.open(request, timeout=timeout_s) as answer:
                return int(answer.status), bytes(answer.read())
        except urllib.error.HTTPError as problem:
            if not left or (problem.code < 500 and problem.code != 429):
                return problem.code, problem.read()
        except (OSError, http.client.HTTPException) as problem:
            if not left:
                raise OSError(f"{url}: {problem}") from problem
        time.sleep(_PAUSE_S)
    raise OSError(url)


class NotAllowedYet(OSError):
    """Access was denied. Rights that were granted minutes ago take effect late."""


def send_ok(method: str, url: str, headers: dict[str, str], body: bytes | None = None, *, near: bool = False) -> bytes:
    """Send a request; return the body. Raises OSError unless the status is 200."""
    status, answer = send(method, url, headers, body, near=near)
    if status != 200:
        raise (NotAllowedYet if status in (401, 403) else OSError)(
            "{} returned {}: {}".format(url.partition("?")[0], status, answer[:300].decode("utf-8", "replace"))
        )
    return answer


class Ec2:
    """Amazon's metadata of this machine, through version 2 of the service with its tokens."""

    def __init__(self) -> None:
        host = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
        self._base = host.rstrip("/") + "/latest/"
        self._token, self._until = "", 0.0
        self._launched: dict[str, str] | None = None

    def get(self, path: str) -> bytes | None:
        """Return the value at a path; None if it does not exist. Raises OSError."""
        for again in (True, False):
            headers = {"X-aws-ec2-metadata-token": self._fresh_token()}
            status, body = send("GET", self._base + path, headers, tries=2, near=True, timeout_s=5.0)
            if status == 200:
                return body
            if status == 404:
                return None
            if status == 401 and again:
                self._token = ""  # a restart of the machine invalidates its tokens
                continue
            raise OSError(f"metadata server returned {status} for {path}")
        raise AssertionError

    def text(self, path: str) -> str:
        return (self.get(path) or b"").decode("utf-8", "replace")

    def _fresh_token(self) -> str:
        if not self._token or time.monotonic() > self._until:
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
            self._until = time.monotonic() + _TOKEN_S / 2
            self._token = send_ok("PUT", self._base + "api/token", headers, near=True).decode()
        return self._token

    def attribute(self, name: str) -> str:
        """Return an attribute from the launch, unless a tag has changed it since."""
        changed = self.get("meta-data/tags/instance/outlast-set-" + name)
        if changed is not None:
            return changed.decode("utf-8", "replace")
        if self._launched is None:
            self._launched = launched_with(self.get("user-data") or b"")
        return self._launched.get(name, "")

    def region(self) -> str:
        return self.text("meta-data/placement/region")

    def keys(self) -> dict[str, str]:
        """Return the credentials of the machine's role."""
        folder = "meta-data/iam/security-credentials/"
        role = self.text(folder).split("\n")[0].strip()
        found = json.loads(self.get(folder + role) or b"{}") if role else {}
        if not found.get("AccessKeyId"):
            raise NotAllowedYet("this machine has no role: launch it with an instance profile")
        return {"id": found["AccessKeyId"], "secret": found["SecretAccessKey"], "token": found.get("Token", "")}

    def secrets(self, name: str) -> dict[str, str]:
        """Return the values of a Systems Manager parameter. Raises OSError."""
        target, region = "AmazonSSM.GetParameter", self.attribute("outlast-secrets-region")
        answer = self.api("ssm", "ssm", target, {"Name": SECRETS_PATH + name, "WithDecryption": True}, region=region)
        return {str(key): str(value) for key, value in json.loads(answer["Parameter"]["Value"]).items()}

    def api(self, service: str, host: str, target: str, body: dict[str, object], *, region: str = "") -> dict[str, Any]:
        """Call an operation of a service of Amazon with the machine's role. Raises OSError, ValueError."""
        region = region or self.region()
        end = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        given = os.environ.get("AWS_ENDPOINT_URL_" + service.upper()) or os.environ.get("AWS_ENDPOINT_URL")
        url = (given or f"https://{host}.{region}.{end}").rstrip("/") + "/"
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": target}
        signed = sign("POST", url, headers, data, service=service, region=region, keys=self.keys())
        answer = json.loads(send_ok("POST", url, signed, data))
        return dict(answer)


class Gce:
    """Google's metadata of this machine."""

    def __init__(self) -> None:
        host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
        self._base = f"http://{host}/computeMetadata/v1/"

    def get(self, path: str) -> bytes | None:
        status, body = send("GET", self._base + path, {"Metadata-Flavor": "Google"}, near=True)
        if status not in (200, 404):
            raise OSError(f"metadata server returned {status} for {path}")
        return body if status == 200 else None

    def attribute(self, name: str) -> str:
        return (self.get("instance/attributes/" + name) or b"").decode("utf-8", "replace")

    def token(self) -> str:
        return str(json.loads(self.get("instance/service-accounts/default/token") or b"{}").get("access_token", ""))

    def secrets(self, name: str) -> dict[str, str]:
        project = (self.get("project/project-id") or b"").decode().strip()
        given = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", "").rstrip("/")
        base = given or "https://secretmanager.googleapis.com"
        url = f"{base}/v1/projects/{project}/secrets/{name}/versions/latest:access"
        answer = json.loads(send_ok("GET", url, {"Authorization": "Bearer " + self.token()}))
        values = json.loads(base64.b64decode(answer["payload"]["data"]))
        return {str(key): str(value) for key, value in values.items()}


def launched_with(user_data: bytes) -> dict[str, str]:
    """Return the metadata in the user data of a machine."""
    raw = gzip.decompress(user_data) if user_data[:2] == b"\x1f\x8b" else user_data
    for part in BytesParser().parsebytes(raw).walk():
        if part.get_content_type() == "text/x-shellscript":
            payload = part.get_payload(decode=True)
            text = payload.decode("utf-8", "replace") if isinstance(payload, bytes) else ""
            found = re.search("^" + _MARK + r"(\S+)$", text, re.MULTILINE)
            if found:
                values = json.loads(base64.b64decode(found.group(1)))
                return {str(key): str(value) for key, value in values.items()}
    return {}


def sign(
    method: str,
    url: str,
    headers: dict[str, str],
    body: bytes = b"",
    *,
    service: str,
    region: str,
    keys: dict[str, str],
    now: float | None = None,
) -> dict[str, str]:
    """Return the headers of a request to Amazon with its signature (version 4). The URL's path is already quoted."""
    split = urllib.parse.urlsplit(url)
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    digest = hashlib.sha256(body).hexdigest()
    every = {**headers, "Host": split.netloc, "X-Amz-Date": moment, "X-Amz-Content-SHA256": digest}
    if keys.get("token"):
        every["X-Amz-Security-Token"] = keys["token"]
    lower = {name.lower(): value.strip() for name, value in every.items()}
    names = ";".join(sorted(lower))
    lines = [method, split.path or "/", split.query, *(f"{name}:{lower[name]}" for name in sorted(lower))]
    request = "\n".join([*lines, "", names, digest])
    scope = "/".join([moment[:8], region, service, "aws4_request"])
    to_sign = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = ("AWS4" + keys["secret"]).encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    credential = "{}/{}".format(keys["id"], scope)
    value = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    return {**every, "Authorization": value}


def token_of_key(key: dict[str, str]) -> str:
    """Return a token for a Google service account by its key. `openssl` creates the signature."""
    now = int(time.time())
    scope = "https://www.googleapis.com/auth/devstorage.read_write"
    claims = {"iss": key["client_email"], "scope": scope, "aud": key["token_uri"], "iat": now, "exp": now + 3600}
    parts = [json.dumps(part).encode() for part in ({"alg": "RS256", "typ": "JWT"}, claims)]
    to_sign = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    with tempfile.NamedTemporaryFile() as file:  # readable by its owner only
        file.write(key["private_key"].encode())
        file.flush()
        signed = subprocess.run(
            ["openssl", "dgst", "-sha256", "-sign", file.name], input=to_sign, stdout=subprocess.PIPE, check=True
        )
    assertion = (to_sign + b"." + base64.urlsafe_b64encode(signed.stdout).rstrip(b"=")).decode()
    grant = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": assertion}
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = send_ok("POST", key["token_uri"], headers, urllib.parse.urlencode(grant).encode())
    return str(json.loads(answer)["access_token"])


def read_object(machine: Ec2 | Gce, url: str) -> bytes:
    """Return an object of the workspace, with the key for the store if there is one, else the machine's identity."""
    name = machine.attribute("outlast-store-key")
    given = machine.secrets(name) if name else {}
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    path = f"/{bucket}/{urllib.parse.quote(key)}"
    if scheme == "gs":
        host = machine.attribute("outlast-storage-host") or os.environ.get("STORAGE_EMULATOR_HOST", "")
        base = (host or "https://storage.googleapis.com").rstrip("/")
        if given:
            token = token_of_key(json.loads(given["gs_key"]))
        elif isinstance(machine, Gce):
            token = machine.token()
        else:
            raise OSError("this machine is on AWS and has no key for " + url)
        return send_ok(
            "GET",
            (base if base.startswith(("http://", "https://")) else "http://" + base) + path,
            {"Authorization": "Bearer " + token},
        )
    region = machine.attribute("outlast-s3-region") or "us-east-1"
    end = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    base = (machine.attribute("outlast-s3-endpoint") or f"https://s3.{region}.{end}").rstrip("/")
    if given:
        keys = {"id": given["s3_id"], "secret": given["s3_secret"]}
    elif isinstance(machine, Ec2):
        keys = machine.keys()
    else:
        raise OSError("this machine is on Google Cloud and has no key for " + url)
    return send_ok("GET", base + path, sign("GET", base + path, {}, service="s3", region=region, keys=keys))


def when_allowed(act: Callable[[], T]) -> T:
    """Return the result of `act`; repeat it for some minutes while access is denied."""
    give_up_at, pause_s = time.monotonic() + _LATE_RIGHTS_S, 0.25
    while True:
        try:
            return act()
        except NotAllowedYet as problem:
            if time.monotonic() > give_up_at:
                raise
            print("outlast: waiting for the rights of this machine:", problem, file=sys.stderr, flush=True)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LATE_PAUSE_S_MAX)


def fetch(attribute: str, place: str) -> str:
    """Fetch the object that a metadata attribute names, once; verify its hash and return its path."""
    machine = this_machine()
    url = machine.attribute(attribute)
    digest, name = url.split("/")[-2:]
    path = os.path.join(place, digest, name)
    if not os.path.exists(path):
        body = when_allowed(lambda: read_object(machine, url))
        if hashlib.sha256(body).hexdigest() != digest:
            raise OSError(f"{url} is damaged: its content does not match its name")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".draft", "wb") as file:
            file.write(body)
        os.replace(path + ".draft", path)
    return path


def fetch_all(attributes: list[str], place: str) -> list[str]:
    """Fetch several objects at the same time; return their paths."""
    with ThreadPoolExecutor(len(attributes)) as pool:
        return list(pool.map(lambda attribute: fetch(attribute, place), attributes))


def this_machine() -> Ec2 | Gce:
    return Ec2() if os.environ.get(METADATA_SERVICE) == "ec2" else Gce()


if __name__ == "__main__":
    try:
        print("\n".join(fetch_all(sys.argv[2:], sys.argv[1])))
    except (OSError, ValueError, KeyError, subprocess.CalledProcessError) as problem:
        sys.exit(str(problem) or repr(problem))
