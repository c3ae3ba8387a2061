"""What an instance is born with, packed for cloud-init: runs on every boot, and its metadata can be read back."""

from __future__ import annotations

import base64
import gzip
import json
import re
from email.message import Message
from email.mime.multipart import MIMEMultipart
from email.mime.nonmultipart import MIMENonMultipart
from email.parser import BytesParser

from outlast.clouds.cloud import Boot
from outlast.errors import BadRequest

BYTES_MAX = 16 * 1024
_MARK = "# outlast-metadata: "
DOOR, SCRIPT = "outlast-door.sh", "outlast-boot.sh"

# Without it, cloud-init runs scripts on the first boot only.
_ALWAYS = "#cloud-config\ncloud_final_modules:\n- [scripts-user, always]\n"

# Who may log in is in the tags of the instance, which only their owner writes. Asked at every login, so that a key
# admitted later opens the door at once. The host keys go to the console, which is the cloud's own channel.
_DOOR = r"""#!/bin/bash
cat > /usr/local/sbin/outlast-keys <<'END'
#!/bin/bash
base="${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}/latest"
token="$(curl -sf -m 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$base/api/token")"
ask() { curl -sf -m 5 -H "X-aws-ec2-metadata-token: $token" "$base/$1"; }
last=""
for tag in $(ask meta-data/tags/instance | grep '^outlast-key-' | sort); do
    key="${tag%-*}"
    [ -n "$last" ] && [ "$key" != "$last" ] && echo
    printf '%s' "$(ask "meta-data/tags/instance/$tag")"
    last="$key"
done
echo
END
chmod 755 /usr/local/sbin/outlast-keys
mkdir -p /etc/ssh/sshd_config.d
printf 'Match User root\n  AuthorizedKeysCommand /usr/local/sbin/outlast-keys\n  AuthorizedKeysCommandUser nobody\n' \
    > /etc/ssh/sshd_config.d/99-outlast.conf
systemctl reload ssh 2>/dev/null || systemctl reload sshd
{ echo '-----BEGIN SSH HOST KEY KEYS-----'; cat /etc/ssh/ssh_host_*_key.pub; echo '-----END SSH HOST KEY KEYS-----'; } \
    > /dev/console
"""

# A dead man's switch: EC2 has none of its own, but an instance of a run that switches itself off is terminated.
_SWITCH = "(sleep {seconds}; shutdown -h now) </dev/null >/dev/null 2>&1 &\n"


def pack(boot: Boot) -> str:
    """As the API wants it. Raises BadRequest when it is too large."""
    metadata = base64.b64encode(json.dumps(boot.metadata, sort_keys=True).encode()).decode()
    switch = _SWITCH.format(seconds=int(boot.life_max_s)) if boot.life_max_s else ""
    first, _, rest = boot.script.partition("\n")
    head = first if first.startswith("#!") else "#!/bin/bash"
    body = rest if first.startswith("#!") else boot.script
    # Every boot of a machine logs to its console; cloud-init itself says what scripts print there.
    whose = "export OUTLAST_METADATA_SERVICE=ec2\n" if head.endswith("sh") else ""
    script = f"{head}\n{_MARK}{metadata}\n{whose}{switch}{body}\n"
    parts = MIMEMultipart(boundary="==outlast==")
    for kind, name, text in (
        ("cloud-config", "outlast.cfg", _ALWAYS),
        ("x-shellscript", DOOR, _DOOR),
        ("x-shellscript", SCRIPT, script),
    ):
        part = MIMENonMultipart("text", kind, charset="utf-8")
        # As it is: base64 would hide from the packing below how much of it repeats itself.
        part["Content-Transfer-Encoding"] = "8bit"
        part.set_payload(text.encode().decode("ascii", "surrogateescape"))
        part.add_header("Content-Disposition", "attachment", filename=name)
        parts.attach(part)
    packed = gzip.compress(parts.as_bytes(), mtime=0)
    if len(packed) > BYTES_MAX:
        raise BadRequest(
            f"script and metadata of the machine have {len(packed)} bytes packed; EC2 takes {BYTES_MAX}",
            hint="put less into [params], or files into the code",
        )
    return base64.b64encode(packed).decode()


def scripts(packed: str) -> dict[str, str]:
    """The shell scripts in user data, by file name; plain scripts of others have the name of ours."""
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
    """The metadata that the machine was launched with; nothing for a machine that is not ours."""
    found = re.search(rf"^{_MARK}(\S+)$", scripts(packed).get(SCRIPT, ""), re.MULTILINE)
    return dict(json.loads(base64.b64decode(found[1]))) if found else {}
