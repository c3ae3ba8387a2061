"""The way to an instance's ssh server: what stands for Amazon's tunnel. Words: the folder of the machines, the id."""

from __future__ import annotations

import os
import shlex
import sys

from outlast.clouds.local.cloud import LocalCloud

if __name__ == "__main__":
    access = LocalCloud(sys.argv[1], mode="pidns").access(sys.argv[2])
    words = shlex.split(access.proxy_command)
    os.execvp(words[0], words)
