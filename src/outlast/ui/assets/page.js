// The part of the dashboard that runs in the browser: keys, themes, the URL, and table cells.
// Text from the workspace is only ever set as textContent.
"use strict";
window.outlast = (() => {
  const el = (tag, cls, text) => {
    const made = document.createElement(tag);
    if (cls) made.className = cls;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  // Light and dark
  const themes = ["auto", "light", "dark"];
  const theme = () => localStorage.getItem("outlast-theme") || "auto";
  const applyTheme = () => Quasar.Dark.set({ auto: "auto", light: false, dark: true }[theme()]);
  const nextTheme = () => {
    localStorage.setItem("outlast-theme", themes[(themes.indexOf(theme()) + 1) % 3]);
    applyTheme();
    Quasar.Notify.create({ message: `theme: ${theme()}`, timeout: 800, position: "bottom" });
  };

  // Text in which `names` are set as code
  const prose = (text) => {
    const whole = el("span");
    text.split("`").forEach((part, number, all) => {
      if (part) whole.append(number % 2 && number < all.length - 1 ? el("code", "ol-name", part) : document.createTextNode(part));
    });
    return whole;
  };

  // The server's clock, to which all times refer
  let skew = 0;
  const now = () => Date.now() / 1000 + skew;
  const span = (s) => {
    s = Math.max(0, s);
    if (s < 60) return `${Math.floor(s)}s`;
    if (s < 3600) return `${Math.floor(s / 60)}m${String(Math.floor(s % 60)).padStart(2, "0")}s`;
    if (s < 86400) return `${Math.floor(s / 3600)}h${String(Math.floor((s % 3600) / 60)).padStart(2, "0")}m`;
    return `${Math.floor(s / 86400)}d${Math.floor((s % 86400) / 3600)}h`;
  };
  const money = (usd) => {
    if (usd > 0 && usd < 0.01) return "< $0.01";
    return exactMoney(usd);
  };
  const exactMoney = (usd) => {
    if (!usd) return "$0.00";
    if (usd >= 0.1) return `$${usd.toFixed(2)}`;
    return `$${usd.toFixed(Math.min(7, 1 - Math.floor(Math.log10(usd))))}`;
  };

  // The URL stores the viewer's choices
  const remember = (values) => {
    const query = new URLSearchParams(values).toString();
    history.replaceState(history.state, "", location.pathname + (query ? `?${query}` : "") + location.hash);
  };
  const recall = (name) => new URLSearchParams(location.search).get(name) || "";
  const change = (name, value) => {
    const query = new URLSearchParams(location.search);
    if (value) query.set(name, value);
    else query.delete(name);
    remember(query);
  };

  // Cells
  const pill = (text, tone) => el("span", `ol-pill ol-${/^[a-z]+$/.test(tone) ? tone : "off"}`, text);
  const cell = {
    run: (p) => {
      const row = p.data;
      const whole = el("span", "ol-cell-run");
      whole.style.paddingLeft = `${16 * outlast.runs.depth(row)}px`;
      if (row.kind !== "node") {
        const link = el("a", "", p.value);
        link.href = outlast.runs.address(row);
        link.tabIndex = -1;
        whole.append(link);
      } else whole.append(el("span", "ol-cell-dim", p.value));
      const parts = outlast.runs.parts(row);
      if (parts) {
        const open = outlast.runs.isOpen(row);
        const toggle = el("button", "ol-fold", open ? "▾" : "▸");
        toggle.type = "button";
        toggle.tabIndex = -1;
        toggle.setAttribute("aria-expanded", String(open));
        toggle.setAttribute("aria-label", `${open ? "Fold" : "Unfold"} ${p.value}`);
        toggle.addEventListener("click", (event) => {
          event.stopPropagation();
          outlast.runs.toggle(row);
        });
        whole.prepend(toggle);
        whole.append(el("span", "ol-cell-dim", `${row.kind || "nodes"} · ${parts}`));
      }
      return whole;
    },
    state: (p) => pill(p.value, p.data.tone),
    curve: (p) => outlast.runs.sparkline(p.data, p.colDef.colId),
    progress: (p) => {
      if (p.data.step === null || p.data.step === undefined) return el("span");
      if (!p.data.steps) return el("span", "", String(p.data.step));
      const whole = el("div", "ol-cell-bar");
      const bar = el("div", "ol-bar");
      const done = el("div");
      done.style.width = `${Math.min(100, (100 * p.data.step) / p.data.steps)}%`;
      bar.append(done);
      whole.append(bar, el("span", "", `${p.data.step}/${p.data.steps}`));
      return whole;
    },
    where: (p) => {
      const whole = el("span", "", p.data.nodes > 1 ? `${p.data.nodes} × ${p.data.where}` : p.data.where);
      if (p.data.type) whole.append(el("span", "ol-cell-dim", ` ${p.data.type}${p.data.spot ? "" : " on demand"}`));
      return whole;
    },
    money: (p) => {
      const made = el("span", "", p.value ? money(p.value) : "");
      if (p.value) made.title = exactMoney(p.value);
      return made;
    },
    why: (p) => {
      const made = prose(p.value || "");
      made.title = p.value || "";
      return made;
    },
  };
  const spent = (d) => d.spent_usd + (d.usd_per_hour ? (Math.max(0, now() - d.spent_at) * d.usd_per_hour) / 3600 : 0);
  const age = (d) => (d.submitted_at ? (d.ended_at || now()) - d.submitted_at : 0);

  // Figures that grow with time
  const tick = () => {
    if (document.hidden) return;
    for (const one of document.querySelectorAll("[data-rate]")) {
      const { base, since, rate } = one.dataset;
      let text;
      if ("spent" in one.dataset) {
        const usd = Number(base) + (Number(rate) ? (Math.max(0, now() - since) * rate) / 3600 : 0);
        text = money(usd);
        one.title = exactMoney(usd);
      } else text = span((Number(rate) ? now() : Number(base)) - since);
      if (one.textContent !== text) one.textContent = text;
    }
  };
  setInterval(tick, 1000);
  new MutationObserver(tick).observe(document, { subtree: true, attributes: true, attributeFilter: ["data-rate", "data-base", "data-since"] });

  // Charts
  const timeline = {
    bar: (params, api) => {
      const lane = api.value(0);
      const from = api.coord([api.value(1), lane]);
      const to = api.coord([api.value(2), lane]);
      const height = Math.min(20, api.size([0, 1])[1] * 0.6);
      const area = params.coordSys;
      const left = Math.max(from[0], area.x);
      const right = Math.min(Math.max(to[0], from[0] + 1), area.x + area.width);
      if (right <= left) return null;
      const shape = { x: left, y: from[1] - height / 2, width: right - left, height, r: 2 };
      return { type: "rect", shape, style: { fill: api.visual("color") } };
    },
    handoff: (params, api) => {
      const from = api.coord([api.value(1), api.value(0)]);
      const to = api.coord([api.value(2), api.value(3)]);
      const area = params.coordSys;
      if (to[0] < area.x || from[0] > area.x + area.width) return null;
      const bend = Math.max(12, (to[0] - from[0]) / 2);
      const same = from[1] === to[1];
      const shape = same
        ? { x1: from[0], y1: from[1] - 10, x2: to[0], y2: to[1] - 10, cpx1: from[0], cpy1: from[1] - 22, cpx2: to[0], cpy2: to[1] - 22 }
        : { x1: from[0], y1: from[1], x2: to[0], y2: to[1], cpx1: from[0] + bend, cpy1: from[1], cpx2: to[0] - bend, cpy2: to[1] };
      return { type: "bezierCurve", shape, style: { stroke: api.visual("color"), lineWidth: 2, fill: "none", lineDash: [4, 3] } };
    },
    text: (p) => String(p.data[p.data.length - 1]),
  };
  const value = (x) => (typeof x === "number" ? String(Number(x.toPrecision(6))) : String(x));

  // Keys
  const help = () => {
    const box = document.getElementById("ol-help");
    if (box.open) box.close();
    else box.showModal();
  };
  let going = 0;
  const typed = (event) => {
    const inField = event.target.closest("input, textarea, select, [contenteditable=true]");
    if (inField) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (Date.now() - going < 1500 && /^[a-z]$/.test(event.key)) {
      going = 0;
      document.querySelector(`.ol-nav a[data-key="${event.key}"]`)?.click();
      return;
    }
    if (/^[1-9]$/.test(event.key)) document.querySelectorAll(".ol-tabs .q-tab")[Number(event.key) - 1]?.click();
    else if (event.key === "g") going = Date.now();
    else if (event.key === "?") help();
    else if (event.key === "t") nextTheme();
    else if (event.key === "/") {
      const box = document.querySelector("[data-search]");
      if (!box) return;
      box.focus();
      event.preventDefault();
    }
  };

  // A lost server: since when, and whether another one answers at its address.
  let asking = 0;
  const lost = (gone) => {
    document.body.classList.toggle("ol-lost", gone);
    if (!gone) {
      clearInterval(asking);
      asking = 0;
    } else if (!asking) {
      const since = new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
      document.getElementById("ol-gone-since").textContent = since;
      asking = setInterval(askServer, 2000);
    }
  };
  const askServer = async () => {
    let status = 0;
    try {
      status = (await fetch(location.href, { cache: "no-store" })).status;
    } catch {
      return; // it does not answer yet
    }
    if (status === 200) location.reload();
    else if (status === 401) document.body.classList.add("ol-restarted");
  };

  document.addEventListener("keydown", typed);
  document.addEventListener("DOMContentLoaded", () => {
    const popup = document.getElementById("popup");
    const showLost = () => lost(popup.getAttribute("aria-hidden") === "false");
    new MutationObserver(showLost).observe(popup, { attributes: true });
    const wait = setInterval(() => {
      const header = document.querySelector(".ol-header");
      if (!header) return;
      clearInterval(wait);
      skew = Number(header.dataset.now) - Date.now() / 1000;
      if (Math.abs(skew) < 5) skew = 0;
      applyTheme();
      document.documentElement.lang = "en";
    }, 30);
    // Without a mouse, a table that is too wide can be scrolled only if it has the focus.
    const reachable = () =>
      document.querySelectorAll(".q-table__middle:not([tabindex])").forEach((table) => (table.tabIndex = 0));
    new MutationObserver(reachable).observe(document.body, { childList: true, subtree: true });
  });

  return { el, now, span, money, remember, recall, change, cell, pill, prose, spent, age, timeline, value, help, theme: nextTheme };
})();
