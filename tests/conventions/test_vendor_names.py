"""Vendor names and URL checks stay in their packages; everything else reads traits."""

from __future__ import annotations

import ast
from pathlib import Path

from outlast.clouds.traits import BUILT_IN
from tests.conventions.sources import PACKAGE, for_files, modules, shown, tree

# Packages that implement clouds, and specs that translate the files of other tools for those clouds.
ROOMS = ("clouds/", "spec/raycluster.py", "spec/rayaws.py", "spec/skymachine.py", "spec/skyfiles.py")
# `outlast local` is a command.
COMMANDS = {"cli/main.py": {"local"}}


def inside(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@for_files(modules(PACKAGE))
def test_no_module_outside_clouds_names_a_vendor(path: Path) -> None:
    if inside(path).startswith(ROOMS):
        return
    wrong = [
        f"{shown(path)}:{node.lineno}: `{node.value}`: use the traits of the cloud (outlast.clouds.traits)"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and node.value in BUILT_IN.keys() - COMMANDS.get(inside(path), set())
    ]
    assert not wrong, "\n".join(wrong)


@for_files(modules(PACKAGE))
def test_no_module_outside_store_parses_urls_of_stores(path: Path) -> None:
    if inside(path).startswith("store/"):
        return
    wrong = [
        f"{shown(path)}:{node.lineno}: use `workspace.store.remote` or `is_url` (outlast.store.traits)"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant) and node.left.value == "://"
    ]
    assert not wrong, "\n".join(wrong)
