"""A proxy through which machines of mode `userns` reach package indexes: an ordinary user cannot give them a route.

The relay of a machine serves it on the machine's own loopback (`relay.py`), so no other machine or user reaches it. It
forwards connections (`CONNECT host:port`) to other computers, and none to this computer's own servers.
"""

from __future__ import annotations

import socket

PORT = 3128
_HEAD_BYTES_MAX = 16 * 1024
_CONNECT_S = 10.0
_LOCAL = "localhost,127.0.0.1,::1,169.254.169.254,metadata.google.internal,metadata"


def variables() -> dict[str, str]:
    """Return the variables with which programs of a machine find the proxy. Plain HTTP between machines needs none."""
    url = f"http://127.0.0.1:{PORT}"
    return {"https_proxy": url, "HTTPS_PROXY": url, "no_proxy": _LOCAL, "NO_PROXY": _LOCAL}


def answer(client: socket.socket) -> socket.socket | None:
    """Read the request of a client; return the connection to its target, or None after a refusal."""
    client.settimeout(_CONNECT_S)
    try:
        line = _head(client).split(b"\r\n", 1)[0].decode("latin-1")
        method, _, rest = line.partition(" ")
        target = rest.partition(" ")[0]
        if method != "CONNECT":
            _refuse(client, 405, f"expected CONNECT, got `{method[:20]}`: this proxy forwards https only")
            return None
        host, _, port = target.rpartition(":")
        if not host or not port.isdigit():
            _refuse(client, 400, "expected CONNECT HOST:PORT")
            return None
        server = _connect(host.strip("[]"), int(port))
    except (OSError, ValueError, OverflowError) as problem:
        why = getattr(problem, "strerror", None) or problem
        _refuse(client, 502, f"this computer cannot reach the internet for a machine of mode userns: {why}")
        return None
    client.sendall(b"HTTP/1.1 200 connected\r\n\r\n")
    client.settimeout(None)
    server.settimeout(None)
    return server


def _head(client: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head:
        data = client.recv(4096)
        if not data or len(head) > _HEAD_BYTES_MAX:
            raise ValueError("an incomplete request")
        head += data
    return head


def _connect(host: str, port: int) -> socket.socket:
    """Connect to another computer. Raises OSError; ValueError for an address of this computer."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    problem: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in found:
        if is_own(str(address[0])):
            raise ValueError(f"{host} is an address of this computer")
        server = socket.socket(family, kind, protocol)
        server.settimeout(_CONNECT_S)
        try:
            server.connect(address)
        except OSError as error:
            server.close()
            problem = error
        else:
            return server
    raise problem


def is_own(address: str) -> bool:
    """Return whether an address is this computer's: its servers trust connections from it."""
    import ipaddress  # late: shims import this module before they boot a machine

    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None) or parsed
    if mapped.is_loopback or mapped.is_link_local or mapped.is_unspecified or mapped.is_multicast:
        return True
    family = socket.AF_INET6 if mapped.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(mapped), 0))
        except OSError:
            return False
    return True


def _refuse(client: socket.socket, status: int, why: str) -> None:
    text = " ".join(str(why).split())
    try:
        head = f"HTTP/1.1 {status} {text}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        client.sendall(head.encode("latin-1", "replace"))
    except OSError:
        pass
    client.close()
