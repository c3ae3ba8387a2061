"""Keys and the token endpoint for clients that insist on a login. The secret is in the address: see `access`."""

from __future__ import annotations

import base64
import math
import secrets
from collections.abc import Mapping

from outlast_gcp_emulator.http_types import HttpAnswer, HttpRequest, json_answer
from outlast_gcp_emulator.router import Router

TOKEN_LIFE_S = 3600


def add_tokens(router: Router) -> None:
    """The token endpoint that the keys written by `service_account_key` name."""
    router.add("POST", "/token", _token)


def _token(request: HttpRequest) -> HttpAnswer:
    """Return the token that the client came with. The signature of its key protects nothing, and is not checked."""
    token = request.caller.token
    return json_answer({"access_token": token, "expires_in": TOKEN_LIFE_S, "token_type": "Bearer"})


def account(project: str) -> str:
    """Return the account that the owner of the endpoint has in a project."""
    return f"outlast@{project}.iam.gserviceaccount.com"


def service_account_key(url: str, project: str) -> dict[str, object]:
    """A key whose tokens come from this server, for Google's clients and for obstore alike."""
    return {
        "type": "service_account",
        "project_id": project,
        "private_key_id": "outlast-local",
        "private_key": _pem(_private_key()),
        "client_email": account(project),
        "client_id": "100000000000000000000",
        "auth_uri": f"{url}/auth",
        "token_uri": f"{url}/token",
        # Read by obstore alone: where the bucket is, and that it may do without a token.
        "gcs_base_url": url,
        "disable_oauth": True,
    }


def moved_key(key: Mapping[str, object], url: str) -> dict[str, object]:
    """The same key for a server at another address: making one takes a second."""
    return {**key, "auth_uri": f"{url}/auth", "token_uri": f"{url}/token", "gcs_base_url": url}


def _private_key() -> list[int]:
    """The numbers of an RSA key of 2,048 bits, in the order of PKCS #1. It protects nothing; clients want to sign."""
    public = 65537
    while True:
        one, other = _prime(1024), _prime(1024)
        around = (one - 1) * (other - 1)
        if one != other and around % public:
            break
    private = pow(public, -1, around)
    return [
        0,
        one * other,
        public,
        private,
        one,
        other,
        private % (one - 1),
        private % (other - 1),
        pow(other, -1, one),
    ]


def _prime(bits: int) -> int:
    # One division by all small primes at once spares most of the powers, which take milliseconds each.
    small = math.prod(n for n in range(3, 5000, 2) if all(n % d for d in range(3, math.isqrt(n) + 1, 2)))
    while True:
        # The two highest bits make the product of two such numbers as long as both together.
        candidate = secrets.randbits(bits) | 3 << bits - 2 | 1
        if math.gcd(candidate, small) == 1 and all(pow(base, candidate - 1, candidate) == 1 for base in (2, 3)):
            return candidate


def _pem(numbers: list[int]) -> str:
    """PKCS #8, which all of them read."""
    key = _der(0x30, b"".join(_integer(number) for number in numbers))
    rsa = _der(0x30, bytes.fromhex("06092a864886f70d0101010500"))
    text = base64.b64encode(_der(0x30, _integer(0) + rsa + _der(0x04, key))).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join(["-----BEGIN PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----", ""])


def _integer(number: int) -> bytes:
    return _der(0x02, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def _der(kind: int, content: bytes) -> bytes:
    size = len(content)
    if size < 128:
        return bytes([kind, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([kind, 128 + len(length)]) + length + content
