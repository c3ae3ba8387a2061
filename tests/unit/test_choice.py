"""The machines that are shown and confirmed before money is spent."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from outlast.app.choice import checkpoint_warning, ranked
from outlast.cli.run.choice import Wanted, ask_above_usd, choice_text, confirm_choice, next_commands
from outlast.clouds.cloud import Cloud, Offer, Requirements
from outlast.errors import CloudError, UsageError
from outlast.spec.parse import parse
from outlast.spec.spec import Spec


def offer(zone: str, usd: float, **fields: object) -> Offer:
    given = {"cloud": "gcp", "region": zone[:-2], "type": "n1-standard-4", "cpus": 4.0, "memory_gb": 15.0, "spot": True}
    return Offer(**{**given, "zone": zone, "price_usd_per_hour": usd, **fields})  # type: ignore[arg-type]


def spec(machine: Mapping[str, object] = {}, **fields: object) -> Spec:
    return parse({"name": "r", "command": "true", "machine": {"cloud": "gcp", **machine}, **fields})


OFFERS = [offer("us-b", 0.2), offer("us-a", 0.1, on_demand_usd_per_hour=0.4), offer("eu-a", 0.14), offer("us-c", 0.11)]


class Priced:
    """A cloud that only has a price list."""

    name = "gcp"

    def __init__(self, offers: Sequence[Offer]) -> None:
        self.priced = offers

    def offers(self, needs: Requirements) -> Sequence[Offer]:
        if not self.priced:
            raise CloudError("no answer")
        return [offer for offer in self.priced if offer.spot == needs.spot]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, answer: str, *, screen: io.StringIO | None = None) -> io.StringIO:
    screen = screen or Terminal()
    monkeypatch.delenv("OUTLAST_ASK_ABOVE_USD", raising=False)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    return screen


def confirm(*wanted: Wanted, offers: Sequence[Offer] = OFFERS, yes: bool = False, quiet: bool = False) -> None:
    confirm_choice({"gcp": cast(Cloud, Priced(offers))}, wanted, url="", yes=yes, quiet=quiet)


def test_offers_are_ranked_as_the_supervisor_tries_them() -> None:
    assert [o.zone for o in ranked(spec().machine, OFFERS)] == ["us-a", "us-c", "eu-a"]  # us-b costs too much more
    assert [o.zone for o in ranked(spec({"zones": ["eu-a", "*"]}).machine, OFFERS)] == ["eu-a", "us-a", "us-c"]


def test_the_table_has_the_choice_the_alternatives_and_the_price_on_demand() -> None:
    text = choice_text([(Wanted(spec=spec(), count=3), [*ranked(spec().machine, OFFERS), offer("us-d", 0.15)])])
    header, first, second, third, compared, more = text.splitlines()
    assert header.split() == ["USD/HOUR", "KIND", "ZONE", "TYPE", "CPUS", "MEMORY", "GPU"]
    assert " ".join(first.split()) == "first choice ×3 $0.1000 spot gcp us-a n1-standard-4 4 15 GB"
    assert [second.split()[4], third.split()[4]] == ["us-c", "eu-a"]
    assert compared.split()[2:5] == ["$0.4000", "on", "demand"]
    assert more.startswith("and 1 more")


def test_a_group_has_one_row_per_task() -> None:
    gpu = offer("us-a", 0.5, gpu="T4", gpus=2)
    text = choice_text([(Wanted(spec=spec(), task="master"), OFFERS), (Wanted(spec=spec(), count=4, task="w"), [gpu])])
    _, master, worker = text.splitlines()
    assert master.startswith("master ×1")
    assert worker.startswith("w ×4")
    assert "T4:2 (16 GB)" in worker


def test_a_price_above_the_limit_is_confirmed_and_no_launches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = on_terminal(monkeypatch, "n\n")
    with pytest.raises(UsageError, match="nothing was launched"):
        confirm(Wanted(spec=spec(), count=60))
    assert "$6.00 per hour?" in screen.getvalue()
    for answer, options in (("y\n", {}), ("", {"yes": True})):
        screen = on_terminal(monkeypatch, answer)
        confirm(Wanted(spec=spec(), count=60), **options)
        assert "first choice" in screen.getvalue()


def test_a_low_price_is_shown_and_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = on_terminal(monkeypatch, "")
    confirm(Wanted(spec=spec()))
    assert "us-a" in screen.getvalue()
    assert "?" not in screen.getvalue()


@pytest.mark.parametrize("case", ["quiet", "piped", "free", "unreachable"])
def test_nothing_is_printed_or_asked(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = on_terminal(monkeypatch, "", screen=io.StringIO() if case == "piped" else None)
    wanted = spec({"cloud": "local"} if case == "free" else {}, checkpoint={"path": "c"})
    confirm(Wanted(spec=wanted, count=99), quiet=case == "quiet", offers=[] if case == "unreachable" else OFFERS)
    assert screen.getvalue() == ""


@pytest.mark.parametrize(
    ("machine", "fields", "script", "warned"),
    [
        ({}, {}, "", True),
        ({}, {}, "print(1)", True),
        ({"spot": False}, {}, "", False),
        ({}, {"checkpoint": {"path": "c"}}, "", False),
        ({}, {}, "import outlast\n", False),
        ({}, {}, "folder = os.environ['OUTLAST_CHECKPOINT_DIR']", False),
    ],
)
def test_a_spot_run_without_a_checkpoint_is_warned_about(
    machine: dict[str, object], fields: dict[str, object], script: str, warned: bool
) -> None:
    text = checkpoint_warning(spec(machine, limits={"no_progress": 5}, **fields), script)
    assert bool(text) == warned
    assert not warned or all(part in text for part in ("5 attempts", "--checkpoint PATH", "--on-demand"))


def test_the_warning_about_billed_machines_reaches_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = on_terminal(monkeypatch, "", screen=io.StringIO())
    confirm(Wanted(spec=spec()))
    assert screen.getvalue().startswith("warning: no checkpoint path")


def test_the_limit_is_a_variable() -> None:
    assert ask_above_usd({}) == 5.0
    assert ask_above_usd({"OUTLAST_ASK_ABOVE_USD": "0.5"}) == 0.5
    with pytest.raises(UsageError, match="OUTLAST_ASK_ABOVE_USD"):
        ask_above_usd({"OUTLAST_ASK_ABOVE_USD": "much"})


def test_the_next_commands_name_the_run() -> None:
    assert next_commands("census-7").count("census-7") == 4
