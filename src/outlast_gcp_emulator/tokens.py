"""Service account keys and the token endpoint, for clients that require a login. The address contains the secret."""

from __future__ import annotations

import base64
import math
import secrets
from collections.abc import Mapping

from outlast_gcp_emulator.http_types import HttpRequest, HttpResponse, json_response
from outlast_gcp_emulator.router import Router

TOKEN_LIFE_S = 3600


def add_tokens(router: Router) -> None:
    """Add the token endpoint, which the keys of `service_account_key` name."""
    router.add("POST", "/token", _token)


def _token(request: HttpRequest) -> HttpResponse:
    """Return the client's own token. The signature is not checked, because the key protects nothing."""
    token = request.caller.token
    return json_response({"access_token": token, "expires_in": TOKEN_LIFE_S, "token_type": "Bearer"})


def account(project: str) -> str:
    """Return the account of the endpoint's owner in a project."""
    return f"outlast@{project}.iam.gserviceaccount.com"


def service_account_key(url: str, project: str) -> dict[str, object]:
    """Return a new key, for Google's clients and obstore, whose tokens come from this server."""
    return {
        "type": "service_account",
        "project_id": project,
        "private_key_id": "outlast-local",
        "private_key": _pem(_private_key()),
        "client_email": account(project),
        "client_id": "100000000000000000000",
        "auth_uri": f"{url}/auth",
        "token_uri": f"{url}/token",
        # Read only by obstore: the address of the buckets, and that no OAuth token is needed.
        "gcs_base_url": url,
        "disable_oauth": True,
    }


def moved_key(key: Mapping[str, object], url: str) -> dict[str, object]:
    """Return the key with another address, because creating a new key takes a second."""
    return {**key, "auth_uri": f"{url}/auth", "token_uri": f"{url}/token", "gcs_base_url": url}


def _private_key() -> list[int]:
    """Return the numbers of an RSA key of 2,048 bits, in the order of PKCS #1. Clients need one to sign."""
    public = 65537
    while True:
        p, q = _prime(1024), _prime(1024)
        totient = (p - 1) * (q - 1)
        if p != q and totient % public:
            break
    private = pow(public, -1, totient)
    return [0, p * q, public, private, p, q, private % (p - 1), private % (q - 1), pow(q, -1, p)]


def _prime(bits: int) -> int:
    # One gcd with the product of all small primes avoids most modular powers, which take milliseconds each.
    small = math.prod(n for n in range(3, 5000, 2) if all(n % d for d in range(3, math.isqrt(n) + 1, 2)))
    while True:
        # With the two highest bits set, the product of two such numbers has twice as many bits.
        candidate = secrets.randbits(bits) | 3 << bits - 2 | 1
        if math.gcd(candidate, small) == 1 and all(pow(base, candidate - 1, candidate) == 1 for base in (2, 3)):
            return candidate


def _pem(numbers: list[int]) -> str:
    """Return the key in the PKCS #8 format, which all clients read."""
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
