"""The cost page: spending by day, user, cause and run, compared with on demand and with limits."""

from __future__ import annotations

import time
from typing import Any

from nicegui import ui

from outlast.billing.ledger import LedgerLine
from outlast.ui.feed import FeedState
from outlast.ui.format import describe_s, money
from outlast.ui.layout import PageView, empty, panel, titled
from outlast.ui.pages.components import Column, Placeholder, Table, amount, bar, href
from outlast.ui.topics import TopicUpdate, follow
from outlast.ui.views.cost import COLOURS, PERIODS, Share, Spending, per_day, spending, users_of
from outlast.ui.views.spend import gauges

_DEFAULT = "30d"


def _columns(label: str, link: bool) -> tuple[Column, ...]:
    return (
        Column("name", label, "link" if link else "text"),
        Column("cost", "Cost", "formatted", right=True),
        Column("demand", "On demand", "formatted", right=True),
        Column("saved", "Saved", "formatted", right=True),
        Column("wasted", "Wasted", "formatted", right=True),
        Column("goodput", "Goodput", "formatted", right=True),
        Column("seconds", "Duration", "formatted", right=True),
    )


def build(view: PageView) -> None:
    _CostPage(view)


class _CostPage:
    """The viewer's choices, the newest lines, and the elements that show them."""

    def __init__(self, view: PageView) -> None:
        self.view = view
        period = view.query.get("period", "")
        self.period = period if period in PERIODS else _DEFAULT
        self.who = view.query.get("user", "")
        self.lines: list[LedgerLine] = []
        self.chips: dict[str, Any] = {}
        with ui.element("div").classes("ol-pile"):
            self._controls()
            self.place = Placeholder("loading the ledger")
            with ui.element("div") as self.none:
                empty("No spending in this period.", "outlast cost")
            with ui.element("div").classes("ol-pile") as self.content:
                self._parts()
            self._limits()
        self.none.set_visibility(False)
        self.content.set_visibility(False)
        follow(view, "lines", lambda: view.feed.lines, self.update, every_s=1.5, remote_s=15.0)

    def _controls(self) -> None:
        with ui.element("div").classes("ol-row"):
            with ui.element("div").classes("ol-chips").props('role=group aria-label="Period"'):
                for name, title in PERIODS.items():
                    chip = ui.element("button").props("type=button").on("click", lambda n=name: self.choose(period=n))
                    with chip:
                        ui.label(title)
                    self.chips[name] = chip
            self.users = ui.select({"": "all users"}, value="", on_change=lambda event: self.choose(who=event.value))
            self.users.props('dense outlined aria-label="User" data-search').classes("ol-select")
        self._press()

    def _press(self) -> None:
        for name, chip in self.chips.items():
            chip.props(f"aria-pressed={'true' if name == self.period else 'false'}")

    def choose(self, *, period: str | None = None, who: str | None = None) -> None:
        self.period = self.period if period is None else period
        self.who = self.who if who is None else who
        self._press()
        self.view.remember(period="" if self.period == _DEFAULT else self.period, user=self.who)
        self._show()

    def _parts(self) -> None:
        with ui.element("div").classes("ol-cards"):
            self.spent, self.saved, self.wasted, self.goodput = (
                _card(title) for title in ("Spent", "Saved against on demand", "Wasted", "Goodput")
            )
        with panel("By day", note="in UTC, by cause"):
            self.days = ui.echart({"series": []}).classes("ol-chart").props('role=img aria-label="Cost by day"')
        with ui.element("div").classes("ol-two"):
            with panel("By cause", note="shares of the spending"):
                self.causes = ui.element("div")
            with panel("By user"):
                self.by_user = Table("By user", _columns("User", False), key="name", sort="cost", down=True)
        with panel("By run") as self.runs_panel:
            self.by_run = Table("By run", _columns("Run", True), key="name", rows_shown=12, sort="cost", down=True)
            self.rest = ui.label("").classes("ol-dim")

    def _limits(self) -> None:
        shown: list[object] = []
        with panel("Limits", note="maximum spending"):
            place = ui.element("div")

        def update(snapshot: FeedState) -> None:
            if not snapshot.overview.read_at or (shown and shown[0] == snapshot.overview.limits):
                return
            shown[:] = [snapshot.overview.limits]
            found = gauges(snapshot.overview.limits, "day", "month", "total")
            place.clear()
            with place:
                for gauge in found:
                    bar(gauge.period, gauge.percent / 100, gauge.text, gauge.tone)
                if not found:
                    empty("No limits.", "outlast limits --cost-usd 50 --per month")

        self.view.watch(update)

    def update(self, latest: TopicUpdate[list[LedgerLine]]) -> None:
        if not self.place.show(latest):
            return
        self.lines = latest.value or []
        names = users_of(self.lines)
        if self.who and self.who not in names:
            names.append(self.who)
        self.users.set_options({"": "all users", **{name: name for name in names}}, value=self.who)
        self._show()

    def _show(self) -> None:
        found = spending(self.lines, period=self.period, who=self.who, now=time.time())
        any_spending = bool(found.days)
        self.content.set_visibility(any_spending)
        self.none.set_visibility(not any_spending)
        if any_spending:
            self._show_sums(found)
            self._show_causes(found)
            self.days.options.clear()
            self.days.options.update(per_day(found))
            self.days.update()
            self.by_user.fill(_cells(share) for share in found.users)
            self.by_run.fill(_cells(share, link=True) for share in found.runs)
            self.rest.set_text(f"and {found.runs_left} more; see `outlast cost --by run`" if found.runs_left else "")

    def _show_sums(self, found: Spending) -> None:
        whole = found.whole
        _fill_card(
            self.spent,
            money(whole.cost_usd, estimated=whole.estimated),
            "includes estimates for running machines" if whole.estimated else "",
            exact=whole.cost_usd,
        )
        saved = max(0.0, whole.on_demand_usd - whole.cost_usd)
        _fill_card(self.saved, f"{whole.saved:.0%}", f"{money(saved)} of {money(whole.on_demand_usd)}")
        part = whole.wasted_usd / whole.cost_usd if whole.cost_usd else 0.0
        _fill_card(self.wasted, money(whole.wasted_usd), f"{part:.0%}: boot, lost work, idle", exact=whole.wasted_usd)
        goodput = "–" if whole.goodput is None else f"{whole.goodput:.0%}"
        _fill_card(
            self.goodput,
            goodput,
            f"of {describe_s(whole.seconds)} of paid machine time",
        )

    def _show_causes(self, found: Spending) -> None:
        self.causes.clear()
        with self.causes:
            for cause in found.causes:
                with ui.element("div").classes("ol-gauge"):
                    ui.label(cause.cause).classes("ol-cause-name")
                    with ui.element("div").classes("ol-bar").props("aria-hidden=true"):
                        width = f"width:{100 * cause.part:.1f}%;background:{COLOURS[cause.cause]}"
                        ui.element("div").style(width)
                    titled(ui.label(f"{money(cause.usd)} · {cause.part:.0%}").classes("ol-num"), cause.usd)
                    ui.label(cause.meaning + (", wasted" if cause.waste else "")).classes("ol-dim ol-under")


def _card(title: str) -> tuple[ui.label, ui.label]:
    with ui.element("div").classes("ol-card").props(f'role=group aria-label="{title}"'):
        ui.label(title).classes("ol-dim")
        return ui.label("…").classes("ol-value"), ui.label("").classes("ol-dim")


def _fill_card(card: tuple[ui.label, ui.label], value: str, note: str, *, exact: float | None = None) -> None:
    card[0].set_text(value)
    if exact is not None:
        titled(card[0], exact)
    card[1].set_text(note)


def _cells(share: Share, *, link: bool = False) -> dict[str, Any]:
    return {
        "name": share.name,
        "name_href": href("run", share.name) if link and share.is_run else "",
        **amount("cost", share.cost_usd, estimated=share.estimated),
        **amount("demand", share.on_demand_usd),
        "saved": share.saved,
        "saved_text": f"{share.saved:.0%}",
        **amount("wasted", share.wasted_usd),
        "goodput": -1.0 if share.goodput is None else share.goodput,
        "goodput_text": "" if share.goodput is None else f"{share.goodput:.0%}",
        "seconds": share.seconds,
        "seconds_text": describe_s(share.seconds),
    }
