"""User data of an instance: scripts for every boot, in cloud-init's format, with metadata that can be read back."""

from __future__ import annotations

import base64
import gzip
import json
import re
from email.message import Message
from email.mime.multipart import MIMEMultipart
from email.mime.nonmultipart import MIMENonMultipart
from email.parser import BytesParser
from importlib.resources import files

from outlast.clouds.cloud import Boot
from outlast.errors import BadRequest

BYTES_MAX = 16 * 1024
_MARK = "# outlast-metadata: "
SSH_SETUP, SCRIPT = "outlast-ssh.sh", "outlast-boot.sh"

# Without this, cloud-init runs scripts on the first boot only.
_ALWAYS = "#cloud-config\ncloud_final_modules:\n- [scripts-user, always]\n"

# A maximum lifetime, which EC2 lacks: an instance of a run that powers itself off is terminated.
_SWITCH = "(sleep {seconds}; shutdown -h now) </dev/null >/dev/null 2>&1 &\n"


def pack(boot: Boot) -> str:
    """Return the user data of a machine, as the API expects it. Raises BadRequest if it is too large."""
    metadata = base64.b64encode(json.dumps(boot.metadata, sort_keys=True).encode()).decode()
    switch = _SWITCH.format(seconds=int(boot.life_max_s)) if boot.life_max_s else ""
    first, _, rest = boot.script.partition("\n")
    head = first if first.startswith("#!") else "#!/bin/bash"
    body = rest if first.startswith("#!") else boot.script
    service = "export OUTLAST_METADATA_SERVICE=ec2\n" if head.endswith("sh") else ""
    script = f"{head}\n{_MARK}{metadata}\n{service}{switch}{body}\n"
    parts = MIMEMultipart(boundary="==outlast==")
    for kind, name, text in (
        ("cloud-config", "outlast.cfg", _ALWAYS),
        ("x-shellscript", SSH_SETUP, _ssh_setup()),
        ("x-shellscript", SCRIPT, script),
    ):
        part = MIMENonMultipart("text", kind, charset="utf-8")
        # Not base64, which would compress badly below.
        part["Content-Transfer-Encoding"] = "8bit"
        part.set_payload(text.encode().decode("ascii", "surrogateescape"))
        part.add_header("Content-Disposition", "attachment", filename=name)
        parts.attach(part)
    packed = gzip.compress(parts.as_bytes(), mtime=0)
    if len(packed) > BYTES_MAX:
        raise BadRequest(
            f"script and metadata of the machine take {len(packed)} bytes compressed; EC2's limit is {BYTES_MAX}",
            hint="shorten [params], or put files into the code",
        )
    return base64.b64encode(packed).decode()


def _ssh_setup() -> str:
    """Return the script without its comments: the size of user data is limited."""
    lines = files(__package__).joinpath("ssh_setup.sh").read_text("utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("# "))


def scripts(packed: str) -> dict[str, str]:
    """Return file name → shell script in user data; a plain script, not packed by us, is under SCRIPT."""
    raw = base64.b64decode(packed or "")
    raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    if raw.startswith(b"#!"):
        return {SCRIPT: raw.decode("utf-8", "replace")}
    found = {}
    message: Message = BytesParser().parsebytes(raw)
    for part in message.walk():
        if part.get_content_type() == "text/x-shellscript":
            payload = part.get_payload(decode=True)
            assert isinstance(payload, bytes)
            found[part.get_filename() or SCRIPT] = payload.decode("utf-8", "replace")
    return found


def metadata(packed: str) -> dict[str, str]:
    """Return the metadata from the launch; empty for a machine that outlast did not launch."""
    found = re.search(rf"^{_MARK}(\S+)$", scripts(packed).get(SCRIPT, ""), re.MULTILINE)
    return dict(json.loads(base64.b64decode(found[1]))) if found else {}
