// The table of runs: filtered, sorted, selected and extended by columns in the browser.
"use strict";
outlast.runs = (() => {
  const { el, recall, change, spent, age } = outlast;
  const VIEWS = "outlast-views";
  // Hidden one after the other where the window is too narrow.
  const YIELDING = ["attempts", "user", "price", "where", "age", "step", "spent", "why"];
  const SPANS = { s: 1, m: 60, h: 3600, d: 86400 };
  const TOKEN = /^([\w./@+-]+?)(<=|>=|!=|=|<|>|:)(.+)$/;

  // Columns of parameters and metrics: `p:lr`, `m:loss`, `lo:loss`, `hi:loss`, `s:loss`
  const KINDS = { p: "", m: " (last)", lo: " (lowest)", hi: " (highest)", s: " (curve)" };
  const PLACES = { m: 0, lo: 1, hi: 2, s: 0 };
  const extra = (row, id) => {
    const [, kind, name] = /^(\w+):(.*)$/.exec(id);
    if (kind === "p") return row.params[name];
    return row.metrics[name]?.[PLACES[kind]];
  };
  const shown = (x) => (x === undefined || x === null ? "" : outlast.value(x));
  const columnOf = (id) => ({
    colId: id,
    headerName: id.slice(id.indexOf(":") + 1) + KINDS[id.slice(0, id.indexOf(":"))],
    valueGetter: (p) => extra(p.data, id),
    valueFormatter: (p) => shown(p.value),
    comparator: (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a ?? "").localeCompare(String(b ?? ""))),
    sortable: true,
    resizable: true,
    width: id.startsWith("s:") ? 124 : 104,
    ...(id.startsWith("s:") ? { cellRenderer: outlast.cell.curve } : { type: "rightAligned" }),
  });
  const isExtra = (id) => /^(p|m|lo|hi|s):/.test(id);

  // Sparklines: small curves, fetched for visible rows, and again when the last value changes
  const curves = new Map();
  const WIDTH = 88;
  const HEIGHT = 22;
  const drawCurve = (box, values) => {
    const finite = values.filter(Number.isFinite);
    if (!finite.length) return;
    const [low, high] = [Math.min(...finite), Math.max(...finite)];
    const at = (value, number) =>
      `${((WIDTH * number) / Math.max(1, values.length - 1)).toFixed(1)},${(HEIGHT - 3 - ((HEIGHT - 6) * (value - low)) / (high - low || 1)).toFixed(1)}`;
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("aria-hidden", "true");
    line.setAttribute("points", values.map(at).join(" "));
    svg.append(line);
    box.replaceChildren(svg);
  };
  const sparkline = (row, id) => {
    const metric = id.slice(2);
    const last = row.metrics[metric]?.[0];
    const box = el("span", "ol-spark");
    if (last === undefined) return box;
    box.title = `${metric}: last ${outlast.value(last)}`;
    const key = JSON.stringify([row.run, metric]);
    const had = curves.get(key);
    if (had) drawCurve(box, had.values);
    if (had?.last === last) return box;
    curves.set(key, { last, values: had?.values || [] });
    fetch(`/api/curve/${encodeURIComponent(row.run)}?${new URLSearchParams({ metric })}`)
      .then((answer) => (answer.ok ? answer.json() : []))
      .then((values) => {
        curves.set(key, { last, values });
        drawCurve(box, values);
      })
      .catch(() => curves.delete(key));
    return box;
  };

  // The filter: words, and conditions such as `lr>0.01`, `state:failed`, `user=anna`, `duration>2h`
  const FIELDS = {
    run: (r) => r.run, state: (r) => r.state, user: (r) => r.user, owner: (r) => r.user, zone: (r) => r.where, type: (r) => r.type,
    location: (r) => `${r.where} ${r.type}`, cloud: (r) => r.cloud, why: (r) => r.why, tag: (r) => (r.tags || []).join(" "),
    step: (r) => r.step, steps: (r) => r.steps, attempts: (r) => r.attempts, preemptions: (r) => r.preemptions,
    checkpoints: (r) => r.checkpoints, price: (r) => r.price, cost: spent, spent, duration: age, age,
  };
  const parse = (text) =>
    (text.match(/(?:[^\s"]+|"[^"]*")+/g) || []).map((word) => {
      const found = TOKEN.exec(word);
      if (!found) return { text: word.replaceAll('"', "").toLowerCase() };
      return { text: word.toLowerCase(), field: found[1], sign: found[2], value: found[3].replaceAll('"', "") };
    });
  const number = (text) => {
    const span = /^([\d.]+)([smhd])$/.exec(text);
    if (span) return Number(span[1]) * SPANS[span[2]];
    return text.trim() === "" ? NaN : Number(text.replace(/^\$/, ""));
  };
  const valueOf = (row, field) => {
    const own = FIELDS[field.toLowerCase()];
    if (own) return own(row);
    return field in row.params ? row.params[field] : row.metrics[field]?.[0];
  };
  const known = (field) => field.toLowerCase() in FIELDS || names().some((id) => id.slice(id.indexOf(":") + 1) === field);
  const holds = (row, { field, sign, value }) => {
    const had = valueOf(row, field);
    if (had === undefined || had === null) return sign === "!=";
    const [a, b] = [typeof had === "number" ? had : number(String(had)), number(value)];
    const text = String(had).toLowerCase();
    if (Number.isNaN(a) || Number.isNaN(b)) {
      if (sign === ":") return text.includes(value.toLowerCase());
      if (sign === "=") return text === value.toLowerCase();
      return sign === "!=" && text !== value.toLowerCase();
    }
    return { ":": a === b, "=": a === b, "!=": a !== b, "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b }[sign];
  };
  const words = (row) =>
    [row.run, row.state, row.user, row.where, row.type, row.why, ...(row.tags || []), ...Object.entries(row.params).map(([k, v]) => `${k}=${v}`)]
      .join(" ").toLowerCase();
  const matches = (row) =>
    self.conditions.every((one) => (one.field && known(one.field) ? holds(row, one) : words(row).includes(one.text)));

  const rows = () => {
    const found = [];
    self.api?.forEachNode((node) => node.data && !node.data.kind && found.push(node.data));
    return found;
  };

  // Groups, sweeps, drills and distributed runs: rows that others are folded into
  const PAGES = { group: "/groups/", sweep: "/sweeps/", drill: "/drills/" };
  const idOf = (row) => row.key || row.run;
  const inState = (row) => {
    if (self.show === "active") return row.alive;
    if (self.show === "waiting") return row.alive && row.tone === "warn";
    if (self.show === "ended") return !row.alive;
    return self.show !== "failed" || row.tone === "bad";
  };
  // Unfolded are parents that the viewer opened; a filter shows its runs wherever they are.
  const unfolded = (parent) => self.opened.has(parent) || self.show !== "all" || self.conditions.length > 0;
  let named = { count: -1, ids: [] };
  // All columns that some run has a value for. Counted again when runs were added.
  const names = () => {
    const all = rows();
    if (named.count === all.length && named.at > Date.now() - 5000) return named.ids;
    const params = new Set();
    const metrics = new Set();
    for (const row of all) {
      Object.keys(row.params).forEach((name) => params.add(name));
      Object.keys(row.metrics).forEach((name) => metrics.add(name));
    }
    const ids = [...[...params].map((name) => `p:${name}`), ...[...metrics].flatMap((name) => [`m:${name}`, `lo:${name}`, `hi:${name}`, `s:${name}`])];
    named = { count: all.length, at: Date.now(), ids };
    return ids;
  };

  const self = {
    api: null,
    show: "all",
    conditions: [],
    extras: [],
    opened: new Set(recall("open").split(",").filter(Boolean)),
    // The parents of runs that pass the filter, with the number of their parts; the number of runs that pass.
    passing: new Set(),
    members: new Map(),
    matching: 0,
    address: (row) => `${PAGES[row.kind] || "/run/"}${encodeURIComponent(row.run)}`,
    parts: (row) => self.members.get(idOf(row)) || 0,
    isOpen: (row) => (row.kind ? unfolded(row.key) : self.opened.has(row.run)),
    depth: (row) => (row.kind === "node" ? 1 + (self.grouped.has(row.part_of) ? 1 : 0) : row.part_of ? 1 : 0),
    grouped: new Set(),
    toggle(row) {
      const id = idOf(row);
      if (!self.opened.delete(id)) self.opened.add(id);
      change("open", [...self.opened].join(","));
      self.refilter();
      self.api.refreshCells({ columns: ["run"], force: true });
    },
    // Put each row below the one that it is folded into.
    fold(nodes) {
      const below = new Map();
      for (const node of nodes) {
        const parent = node.data.part_of;
        if (parent) below.set(parent, [...(below.get(parent) || []), node]);
      }
      if (!below.size) return;
      const there = new Set(nodes.map((node) => idOf(node.data)));
      const found = [];
      const add = (node) => {
        found.push(node);
        (below.get(idOf(node.data)) || []).forEach(add);
      };
      nodes.filter((node) => !there.has(node.data.part_of)).forEach(add);
      found.forEach((node, at) => (nodes[at] = node));
    },
    ready(p) {
      self.api = p.api;
      self.choose(recall("show") || "all", true);
      self.setExtras(recall("cols").split(",").filter(isExtra));
      const sort = recall("sort");
      if (sort) {
        const cut = sort.lastIndexOf(":");
        const [colId, way] = [sort.slice(0, cut), sort.slice(cut + 1)];
        p.api.applyColumnState({ state: [{ colId, sort: way === "desc" ? "desc" : "asc", sortIndex: 0 }], defaultState: { sort: null } });
      }
      const box = document.getElementById("ol-filter");
      if (box) {
        box.value = recall("q");
        box.addEventListener("input", () => self.filter(box.value));
        box.addEventListener("keydown", self.enter);
        self.filter(box.value);
      }
      p.api.addEventListener("sortChanged", (event) => {
        if (event.source === "api") return;
        const by = p.api.getColumnState().filter((c) => c.sort).sort((a, b) => a.sortIndex - b.sortIndex)[0];
        change("sort", by ? `${by.colId}:${by.sort}` : "");
      });
      p.api.addEventListener("selectionChanged", self.selected);
      document.getElementById("ol-columns-menu")?.addEventListener("toggle", self.listColumns);
      document.getElementById("ol-views-menu")?.addEventListener("toggle", self.listViews);
      new ResizeObserver(() => self.fit()).observe(document.querySelector(".ol-grid"));
      setInterval(() => document.hidden || p.api.refreshCells({ columns: ["age", "spent"] }), 1000);
    },
    // From the filter into the table with the arrow key; Enter opens the only run that matches.
    enter(event) {
      if (event.key === "ArrowDown" && self.api.getDisplayedRowCount()) {
        event.preventDefault();
        self.api.ensureIndexVisible(0);
        self.api.setFocusedCell(0, "run");
      } else if (event.key === "Enter" && self.api.getDisplayedRowCount() === 1) self.open(self.api.getDisplayedRowAtIndex(0));
    },
    // Hide columns that do not fit; those that the viewer added stay.
    fit() {
      const width = document.querySelector(".ol-grid")?.clientWidth;
      if (!width || width === self.width) return;
      self.width = width;
      const columns = self.api.getColumns().filter((c) => !["alive", "submitted_at"].includes(c.getColId()));
      const least = (column) => {
        const made = column.getColDef();
        return (made.flex ? made.minWidth : made.width) || 50;
      };
      // With the column of boxes and a scroll bar.
      let needed = columns.reduce((sum, c) => sum + least(c), 62);
      const hidden = [];
      for (const id of YIELDING) {
        if (needed <= width) break;
        const column = columns.find((c) => c.getColId() === id);
        needed -= least(column);
        hidden.push(id);
      }
      self.api.setColumnsVisible(YIELDING.filter((id) => !hidden.includes(id)), true);
      self.api.setColumnsVisible(hidden, false);
    },
    sparkline,
    filter(text) {
      change("q", text);
      self.conditions = parse(text);
      self.refilter();
    },
    choose(state, quiet) {
      self.show = state;
      if (!quiet) change("show", state === "all" ? "" : state);
      document.querySelectorAll("[data-show]").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.show === state)));
      self.refilter();
    },
    // Filter all rows again: whether a row passes may depend on others.
    refilter() {
      self.passing = new Set();
      self.members = new Map();
      self.grouped = new Set();
      self.matching = 0;
      self.api?.forEachNode(({ data }) => {
        if (!data) return;
        if (data.part_of) self.members.set(data.part_of, (self.members.get(data.part_of) || 0) + 1);
        if (data.kind) return;
        if (data.part_of) self.grouped.add(data.run);
        if (!inState(data) || !matches(data)) return;
        self.matching += 1;
        self.passing.add(data.run);
        if (data.part_of) self.passing.add(data.part_of);
      });
      self.api?.onFilterChanged();
      self.count();
    },
    passes({ data }) {
      if (data.kind === "node") {
        const run = self.api.getRowNode(data.part_of)?.data;
        return self.passing.has(data.part_of) && self.opened.has(data.part_of) && (!run?.part_of || unfolded(run.part_of));
      }
      return self.passing.has(idOf(data)) && (!data.part_of || unfolded(data.part_of));
    },
    count() {
      const where = document.getElementById("ol-count");
      if (!where || !self.api) return;
      const count = self.api.getDisplayedRowCount();
      where.textContent = `${self.matching} shown`;
      // As high as its rows, up to 62 % of the window.
      const box = document.querySelector(".ol-grid");
      const height = `${Math.min(Math.max(count, 4) * 36 + 54, Math.max(300, window.innerHeight * 0.62))}px`;
      if (box && box.style.height !== height) box.style.height = height;
    },
    open(event) {
      if (event.data && event.data.kind !== "node") location.href = self.address(event.data);
    },
    key(event) {
      const { key } = event.event;
      if (key === "Enter") self.open(event);
      const folds = event.data && self.parts(event.data);
      if (folds && ((key === "+" && !self.isOpen(event.data)) || (key === "-" && self.isOpen(event.data)))) self.toggle(event.data);
    },

    // Columns that the viewer chooses
    setExtras(ids) {
      self.extras = ids;
      change("cols", ids.join(","));
      const own = self.api.getColumnDefs().filter((c) => !isExtra(c.colId));
      self.api.setGridOption("columnDefs", [...own, ...ids.map(columnOf)]);
      self.width = 0;
      self.fit();
    },
    listColumns() {
      const place = document.getElementById("ol-columns");
      const boxes = names().map((id) => {
        const label = el("label", "ol-choice");
        const box = el("input");
        box.type = "checkbox";
        box.checked = self.extras.includes(id);
        box.addEventListener("change", () => self.setExtras(box.checked ? [...self.extras, id] : self.extras.filter((one) => one !== id)));
        label.append(box, el("span", "", columnOf(id).headerName));
        return label;
      });
      place.replaceChildren(...(boxes.length ? boxes : [el("div", "ol-dim", "No run has parameters or metrics.")]));
    },

    // Views by name, in this browser; the address contains the whole view, too.
    views: () => JSON.parse(localStorage.getItem(VIEWS) || "{}"),
    listViews() {
      const place = document.getElementById("ol-views");
      const lines = Object.entries(self.views()).map(([name, query]) => {
        const line = el("div", "ol-choice");
        const link = el("a", "ol-grow", name);
        link.href = `/${query}`;
        const remove = el("button", "ol-toggle", "Remove");
        remove.type = "button";
        remove.setAttribute("aria-label", `Remove the view ${name}`);
        remove.addEventListener("click", () => self.saveView(name, null));
        line.append(link, remove);
        return line;
      });
      const form = el("form", "ol-choice");
      const field = el("input", "ol-input");
      field.placeholder = "Name of this view";
      field.setAttribute("aria-label", "Name of this view");
      const save = el("button", "ol-toggle", "Save");
      form.append(field, save);
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        if (field.value.trim()) self.saveView(field.value.trim(), location.search);
      });
      place.replaceChildren(...lines, form);
    },
    saveView(name, query) {
      const views = self.views();
      if (query === null) delete views[name];
      else views[name] = query;
      localStorage.setItem(VIEWS, JSON.stringify(views));
      self.listViews();
    },

    // The runs that are selected
    selected() {
      const count = self.api.getSelectedRows().length;
      const bar = document.getElementById("ol-selected");
      bar.hidden = !count;
      document.getElementById("ol-selected-count").textContent = count === 1 ? "1 run selected" : `${count} runs selected`;
    },
    chosen: () => self.api.getSelectedRows().map((row) => row.run),
    csv: () => self.api.exportDataAsCsv({ fileName: "runs.csv", allColumns: false, processCellCallback: (p) => p.value }),
  };
  return self;
})();
