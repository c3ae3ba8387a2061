"""The isolation mode that this computer supports, features that machines lack in it, the check of `outlast doctor`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from outlast.clouds.cloud import Feature, SetupCheck
from outlast.clouds.local import probe

_CHECK = "local cloud"
_OWN_NETWORK = ("root", "userns")


class HostSetup:
    """The part of `LocalCloud` that depends on this computer."""

    root: str
    _mode: str

    @property
    def mode(self) -> str:
        """The isolation of machines: `root`, `userns`, `pidns` or `plain`."""
        if not self._mode:
            self._mode = probe.best_mode(root=self.root)
        return self._mode

    def modes(self) -> dict[str, str]:
        """Return every mode, best first, with the reason why it does not work here; empty if it works."""
        return {mode: probe.why_not(mode, root=self.root) for mode in probe.MODES}

    def explain(self) -> str:
        """Describe the mode in use, and why no better one is."""
        better = list(self.modes().items())[: probe.MODES.index(self.mode)]
        failed = "; ".join(f"not `{mode}`: {why or 'another mode was requested'}" for mode, why in better)
        return f"mode `{self.mode}`" + (f" ({failed})" if failed else "")

    def why_missing(self, feature: Feature) -> str:
        """Return why machines lack a feature in this mode; empty if they have it."""
        if feature == "internet" and self.mode == "userns":
            return "a user's namespace has no route to other computers, and its proxy forwards https only"
        if feature == "network" and self.mode not in _OWN_NETWORK:
            return f"machines of the local cloud in mode `{self.mode}` have no network of their own"
        if feature == "containers" and self.mode != "root":
            return "machines of the local cloud run containers in mode `root` only, which needs root"
        return ""

    def setup_checks(self, bucket: str = "") -> Iterator[SetupCheck]:
        yield self._setup_check()

    def _setup_check(self) -> SetupCheck:
        try:
            modes = self.modes()
        except OSError as problem:
            text = f"{self.root} cannot be used: {problem.strerror}"
            fix = "set OUTLAST_LOCAL_CLOUD to a folder that you can write to"
            return SetupCheck(name=_CHECK, state="error", text=text, fix=fix)
        if modes[self.mode]:
            text = f"OUTLAST_LOCAL_MODE is `{self.mode}`, which does not work here: {modes[self.mode]}"
            return SetupCheck(name=_CHECK, state="error", text=text, fix="unset it")
        if self.mode == next(iter(modes)) or sys.platform != "linux":
            return SetupCheck(name=_CHECK, state="ok", text=self.explain())
        if self.mode == "userns":
            lacks = (
                "machines have https, for `pip install` too, and no other internet; containers and apt-get need root"
            )
            return SetupCheck(name=_CHECK, state="ok", text=f"{self.explain()}; {lacks}")
        fix = "it works as it is; for better isolation allow user namespaces (`sysctl user.max_user_namespaces`)"
        return SetupCheck(name=_CHECK, state="warning", text=self.explain(), fix=fix)
