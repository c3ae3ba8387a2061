"""`outlast machine snapshot`: the image has no personal files, and the machine keeps its own."""

from __future__ import annotations

import pytest

from outlast.clouds.cloud import LABEL_WORKSPACE
from outlast.images.snapshot import LABEL_COPY
from tests.integration.images.test_build import nothing_left
from tests.support.home import Home

PERSONAL = (
    "mkdir -p p/.git p/mine; echo T=1 > p/.env; echo url > p/.git/config; echo x > p/mine/.env; echo y > p/train.py"
)


def ssh(home: Home, machine: str, command: str) -> str:
    answer = home.outlast("machine", "ssh", machine, command)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_an_image_made_by_hand_has_no_personal_files_and_the_machine_keeps_them(shop: Home) -> None:
    assert shop.outlast("machine", "create", "base").returncode == 0
    ssh(shop, "base", f"{PERSONAL}; chmod 600 p/train.py")
    argv = ("machine", "snapshot", "base", "--family", "env", "--image-name", "env-1", "--stop")
    made = shop.outlast(*argv, "--keep", "p/mine/.env", timeout_s=120)
    assert (made.returncode, made.stdout) == (0, "env-1\n"), made.stderr
    for line in ("~/p/.env  (environment files)", "~/p/.git  (repositories)", "kept: ~/p/mine/.env"):
        assert line in made.stderr
    assert shop.outlast("machine", "create", "two", "--image", "env").returncode == 0
    assert ssh(shop, "two", "find p -type f | sort; stat -c %a p/train.py") == "p/mine/.env\np/train.py\n664\n"
    # The base machine runs again, with all of its files.
    assert ssh(shop, "base", "find p -type f | wc -l").strip() == "4"
    # The copy of the disk is gone.
    assert sorted(image.name for image in shop.cloud.images()) == ["base", "env-1"]
    shown = shop.outlast("image", "show", "env-1").stdout
    assert "from machine base" in shown
    for name in ("base", "two"):
        assert shop.outlast("machine", "delete", name, "--yes").returncode == 0
    nothing_left(shop)


@pytest.mark.full
def test_with_keep_all_the_image_is_the_disk_as_it_is(shop: Home) -> None:
    assert shop.outlast("machine", "create", "base").returncode == 0
    ssh(shop, "base", PERSONAL)
    made = shop.outlast("machine", "snapshot", "base", "--family", "env", "--stop", "--keep", "*")
    assert made.returncode == 0, made.stderr
    assert shop.outlast("machine", "create", "two", "--image", "env").returncode == 0
    assert ssh(shop, "two", "find p -type f | wc -l").strip() == "4"


@pytest.mark.full
def test_a_name_that_exists_is_refused_before_the_machine_stops(shop: Home) -> None:
    assert shop.outlast("machine", "create", "base").returncode == 0
    argv = ("machine", "snapshot", "base", "--family", "env", "--image-name", "env-1", "--stop")
    assert shop.outlast(*argv, "--keep", "*").returncode == 0
    shop.until(lambda: shop.cloud.machine("base").status == "running", "the machine runs again")
    pid = ssh(shop, "base", "nohup sleep 999 >/dev/null 2>&1 & echo $!")
    again = shop.outlast(*argv)
    assert again.returncode == 5
    assert "image `env-1` exists already" in again.stderr
    assert ssh(shop, "base", f"cat /proc/{pid.strip()}/comm") == "sleep\n"


def test_a_copy_with_personal_files_is_not_shared(shop: Home) -> None:
    assert shop.outlast("machine", "create", "base").returncode == 0
    shop.cloud.stop("base")
    labels = {LABEL_WORKSPACE: shop.workspace.id, LABEL_COPY: "base"}
    shop.cloud.snapshot("base", "left", labels=labels, note="the disk of base with its personal files; temporary")
    refused = shop.outlast("image", "share", "left", "ada")
    assert refused.returncode == 2
    assert "personal files" in refused.stderr


@pytest.mark.full
def test_other_users_can_read_software_that_a_script_installed(rooted: Home) -> None:
    rooted.write("outlast.toml", '[image]\nname = "env"\nscript = "setup.sh"\n')
    rooted.write("setup.sh", "mkdir -m 700 /opt/tool; echo weights > /opt/tool/model; chmod 600 /opt/tool/model\n")
    built = rooted.outlast("image", "build", timeout_s=110)
    assert built.returncode == 0, built.stderr
    assert rooted.outlast("machine", "create", "two", "--image", "env").returncode == 0
    read = "setpriv --reuid=65534 --regid=65534 --clear-groups cat /opt/tool/model"
    assert ssh(rooted, "two", read) == "weights\n"
