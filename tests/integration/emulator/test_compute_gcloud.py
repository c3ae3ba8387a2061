"""The real gcloud: machines created, described, entered and deleted, and typical scripts for the cloud.

Skipped if gcloud is not installed. A call takes one or two seconds, so there are few of them.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.local.ssh import find_sshd
from outlast_gcp_emulator.environment import variables, write_files
from tests.integration.emulator.compute import Client, ComputeServer, compute_server, machine
from tests.integration.emulator.discovery import Watching
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed"),
]


class Shell:
    """A shell whose gcloud uses the endpoint."""

    def __init__(self, server: ComputeServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        write_files(server.endpoint.root, server.endpoint.url)
        self._variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "USER": getpass.getuser(),
            "LANG": "C.UTF-8",
            **variables(server.endpoint.root, server.endpoint.url),
        }
        self.client = Client(server, self._variables["CLOUDSDK_CORE_PROJECT"])

    def try_to(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euc", script],
            cwd=self.folder,
            env=self._variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def run(self, script: str) -> str:
        done = self.try_to(script)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, watching: Watching) -> Iterator[Shell]:
    with compute_server(tmp_path_factory.mktemp("compute"), watching) as opened:
        yield Shell(opened, tmp_path_factory.mktemp("home"))


@pytest.mark.full
def test_gcloud_creates_describes_stops_resizes_starts_and_deletes(shell: Shell) -> None:
    output = shell.run("""
        gcloud compute instances create vm1 --zone us-central1-a --machine-type n1-standard-2 --preemptible \\
            --image-family debian-12 --image-project debian-cloud --metadata a=b --labels exp=e1
        gcloud compute instances list --filter labels.exp=e1 --format 'value(name,zone.basename(),status)'
        gcloud compute instances stop vm1
        gcloud compute instances set-machine-type vm1 --machine-type n1-standard-8
        gcloud compute instances start vm1
        gcloud compute instances describe vm1 --format 'value(machineType.basename(),scheduling.preemptible)'
    """)
    assert "vm1\tus-central1-a\tRUNNING" in output
    assert "n1-standard-8\tTrue" in output
    assert shell.client.status("vm1") == "RUNNING"
    shell.run("gcloud compute instances delete vm1")
    assert shell.client.names("Z/instances") == []


@pytest.mark.full
def test_gcloud_creates_two_at_once_and_lists_images_of_all_projects(shell: Shell) -> None:
    output = shell.run("""
        gcloud compute instances create two1 two2 --zone us-central1-b --image-family ubuntu-2204-lts \\
            --image-project ubuntu-os-cloud --provisioning-model SPOT --format 'value(name,status)'
        gcloud compute images list --filter family=ubuntu-2204-lts --format 'value(family)'
        gcloud compute instances delete two1 two2 --zone us-central1-b
    """)
    assert "two1\tRUNNING" in output
    assert "two2\tRUNNING" in output
    assert "ubuntu-2204-lts" in output


@pytest.mark.full
def test_gcloud_prints_why_a_launch_failed(shell: Shell) -> None:
    shell.server.cloud.set_zone("us-central1-c", capacity=0)
    done = shell.try_to("gcloud compute instances create vm1 --zone us-central1-c --image-family debian-12 "
                        "--image-project debian-cloud --machine-type n1-standard-1")  # fmt: skip
    assert done.returncode == 1
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in done.stderr
    shell.server.cloud.set_zone("us-central1-c", capacity=None)


@pytest.mark.skipif(not find_sshd() or shutil.which("scp") is None, reason="openssh is not installed")
def test_gcloud_logs_in_and_copies(shell: Shell) -> None:
    shell.write("file.txt", "some words\n")
    shell.client.create("vm-ssh")
    # Without the right to listen on port 22, the port is 2222: see docs/serve.md.
    ssh, scp = ("", "") if os.geteuid() == 0 else ('--ssh-flag="-p 2222"', '--scp-flag="-P 2222"')
    output = shell.run(f"""
        gcloud compute ssh {ssh} vm-ssh --command true
        gcloud compute scp {scp} file.txt vm-ssh:copied.txt
        gcloud compute ssh {ssh} vm-ssh --command 'cat copied.txt; echo machine $(hostname)'
        gcloud compute scp {scp} vm-ssh:copied.txt back.txt
    """)
    assert "some words" in output
    assert (shell.folder / "back.txt").read_text() == "some words\n"
    if shell.server.cloud.mode != "plain":
        assert "machine vm-ssh" in output
    shell.client.do("DELETE Z/instances/vm-ssh")


@pytest.mark.full
@pytest.mark.skipif(not find_sshd(), reason="openssh is not installed")
def test_gcloud_logs_in_by_os_login(shell: Shell) -> None:
    made = machine("vm-oslogin")
    made["metadata"] = {"items": [{"key": "enable-oslogin", "value": "TRUE"}]}
    shell.client.do("POST Z/instances", made)
    port = "" if os.geteuid() == 0 else '--ssh-flag="-p 2222"'
    assert "I am in" in shell.run(f"gcloud compute ssh {port} vm-oslogin --command 'echo I am in'")
    assert "ssh-keys" not in [item["key"] for item in shell.client.get("Z/instances/vm-oslogin")["metadata"]["items"]]
    assert shell.run("gcloud compute os-login describe-profile --format='value(sshPublicKeys)'").strip()
    shell.client.do("DELETE Z/instances/vm-oslogin")


@pytest.mark.full
def test_gcloud_creates_a_nat_for_machines_without_an_address(shell: Shell) -> None:
    """Scripts with --no-address do this. The emulator blocks no traffic, so the NAT has no effect."""
    output = shell.run("""
        gcloud compute networks subnets update default --region us-central1 --enable-private-ip-google-access
        gcloud compute routers create way --network default --region us-central1 > made
        gcloud compute routers nats create out --router way --region us-central1 \\
            --auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges
        gcloud compute routers nats list --router way --region us-central1 --format 'value(name)'
        gcloud compute routers delete way --region us-central1 --quiet
        gcloud compute routers list --format 'value(name)'
    """)
    assert output.split() == ["out"]


# As in Google's examples of training on preemptible machines, with gcloud, gsutil and curl.

IMAGE_SCRIPT = """
echo "software" > $HOME/installed
sudo shutdown -h now
"""

BUILD_IMAGE = """
IMAGE_INSTANCE_NAME=$1
IMAGE_FAMILY=$2
gcloud compute images create "$IMAGE_FAMILY-base" --family $IMAGE_FAMILY \\
    --source-image-family ubuntu-1604-lts --source-image-project ubuntu-os-cloud
gcloud compute instances create --image-family $IMAGE_FAMILY --metadata-from-file startup-script=image.sh \\
    $IMAGE_INSTANCE_NAME
while :; do
    sleep 1
    STATUS=$(gcloud compute instances list --filter $IMAGE_INSTANCE_NAME --format 'value(STATUS)')
    echo "Status: $STATUS"
    if [[ $STATUS == "TERMINATED" ]]; then break; fi
done
gcloud compute images create --source-disk $IMAGE_INSTANCE_NAME --family $IMAGE_FAMILY "$IMAGE_FAMILY-$(date +%s)"
gcloud compute instances delete $IMAGE_INSTANCE_NAME --quiet
"""

TRAIN = """
INSTANCE_NAME=$1
BUCKET_NAME=$2
gsutil mb $BUCKET_NAME
gsutil cp train.py "$BUCKET_NAME/"
gcloud compute instances create --machine-type=n1-standard-64 --image-family=$3 --preemptible \\
    --metadata-from-file startup-script=startup.sh \\
    --metadata SCRIPT=$BUCKET_NAME/train.py,OUTPUT=$BUCKET_NAME/model.txt,ITERATIONS=300 \\
    --scopes=cloud-platform $INSTANCE_NAME
"""

# The `#!` is not in the first line, as in many scripts.
STARTUP = """# Trains.

#!/bin/bash
get() { curl http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1 -H "Metadata-Flavor: Google"; }
SCRIPT=$(get SCRIPT)
gsutil cp $SCRIPT .
python train.py $(get ITERATIONS) "$(cat $HOME/installed)" > model.txt
gsutil cp model.txt $(get OUTPUT)
ZONE=$(curl -s -H Metadata-Flavor:Google http://metadata.google.internal/computeMetadata/v1/instance/zone)
gcloud compute instances delete $(curl -s -H Metadata-Flavor:Google http://metadata/computeMetadata/v1/instance/name) \\
    --zone ${ZONE##*/} --quiet
"""


@pytest.mark.full
def test_unchanged_cloud_scripts_build_an_image_and_train_on_it(shell: Shell) -> None:
    shell.write("image.sh", IMAGE_SCRIPT)
    shell.write("build-image.sh", BUILD_IMAGE)
    shell.write("train.sh", TRAIN)
    shell.write("startup.sh", STARTUP)
    shell.write("train.py", "import sys; print('trained', *sys.argv[1:])")
    output = shell.run("timeout 90 bash build-image.sh builder env")
    assert "Status: TERMINATED" in output
    assert shell.client.names("Z/instances") == []
    assert shell.client.get("global/images/family/env")["name"] != "env-base"
    shell.run("bash train.sh trainer gs://census-box env")
    # The machine deletes itself at the end.
    eventually(lambda: shell.client.names("Z/instances") == [], within_s=60, what="the end of the machine")
    shell.run("gsutil cat gs://census-box/model.txt > model.txt")
    assert (shell.folder / "model.txt").read_text() == "trained 300 software\n"
    assert shell.client.names("Z/disks") == []


@pytest.mark.full
def test_a_script_sets_up_the_project_first(shell: Shell) -> None:
    """Tutorials begin like this: enable an API, create an account for the machines, give it a role and a key."""
    output = shell.run("""
        ACCOUNT=trainer@$CLOUDSDK_CORE_PROJECT.iam.gserviceaccount.com
        gcloud services enable compute.googleapis.com
        gcloud iam service-accounts create trainer --display-name 'Trains'
        gcloud projects add-iam-policy-binding $CLOUDSDK_CORE_PROJECT --member serviceAccount:$ACCOUNT \\
            --role roles/storage.admin --format 'value(bindings.members)'
        gcloud iam service-accounts keys create key.json --iam-account $ACCOUNT
    """)
    account = "trainer@outlast-local.iam.gserviceaccount.com"
    assert f"serviceAccount:{account}" in output
    key = json.loads((shell.folder / "key.json").read_text())
    assert (key["type"], key["client_email"]) == ("service_account", account)
    assert key["token_uri"].startswith(shell.server.endpoint.url)


@pytest.mark.full
def test_gcloud_suspends_resumes_and_clones_by_a_machine_image(shell: Shell) -> None:
    shell.client.create("sleepy", script="echo made > $HOME/made; echo done")
    shell.client.prints("sleepy", "done")
    output = shell.run("""
        gcloud compute instances suspend sleepy --zone us-central1-a
        gcloud compute instances describe sleepy --zone us-central1-a --format 'value(status)'
        gcloud compute instances resume sleepy --zone us-central1-a
        gcloud compute machine-images create all-of-sleepy --source-instance sleepy --source-instance-zone us-central1-a
        gcloud compute machine-images list --format 'value(name,status)'
        gcloud compute instances create awake --zone us-central1-b --source-machine-image all-of-sleepy \\
            --metadata startup-script='cat $HOME/made'
        gcloud compute machine-images delete all-of-sleepy
    """)
    assert "SUSPENDED" in output
    assert "all-of-sleepy\tREADY" in output
    awake = shell.client.get("zones/us-central1-b/instances/awake/serialPort")
    assert "made" in awake["contents"]
    shell.run("""
        gcloud compute instances delete sleepy --zone us-central1-a
        gcloud compute instances delete awake --zone us-central1-b
    """)
