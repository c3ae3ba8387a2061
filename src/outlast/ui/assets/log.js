// The log of an attempt, fetched by windows: only lines near the visible ones are fetched and kept.
"use strict";
window.outlastLog = (() => {
  const KEEP = 3000; // lines in the page
  const BACK = 48 * 1024;
  const GAP = 256 * 1024; // a follower that is farther behind jumps to the end
  const ansi = /\x1b\[[0-9;?]*[A-Za-z]/g;
  // Invisible characters, which may reorder or hide text: shown as escapes.
  const odd = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
  const seen = (sign) => `\\u${sign.codePointAt(0).toString(16).padStart(4, "0")}`;

  const encoder = new TextEncoder();
  // The bytes of lines in the log, which include colour codes that are not shown.
  const bytes = (lines) => lines.reduce((sum, line) => sum + line.bytes, 0);

  let log = null;

  const plain = (line) => {
    line = line.replace(ansi, "");
    const at = line.replace(/\r+$/, "").lastIndexOf("\r");
    return (at < 0 ? line : line.slice(at + 1)).replace(/\r+$/, "").slice(0, 10000).replace(odd, seen);
  };

  const marked = (text, query) => {
    const made = outlast.el("div", "ol-line");
    const low = text.toLowerCase();
    const wanted = query.toLowerCase();
    let at = 0;
    for (let hit; wanted && (hit = low.indexOf(wanted, at)) >= 0; at = hit + wanted.length) {
      made.append(text.slice(at, hit), outlast.el("mark", "", text.slice(hit, hit + wanted.length)));
    }
    made.append(text.slice(at) || " ");
    return made;
  };

  class Log {
    constructor(run, sizes) {
      this.run = run;
      this.sizes = new Map(sizes);
      this.attempt = Number(outlast.recall("attempt")) || Math.max(0, ...this.sizes.keys());
      this.query = outlast.recall("q");
      this.begin = this.end = 0;
      this.waiting = 0; // running and queued tasks
      this.before = Promise.resolve();
      this.requested = 0; // number of the latest requested position: results for earlier ones are dropped
      this.catching = false;
      this.searching = 0;
      this.box = document.getElementById("ol-log");
      this.lines = document.getElementById("ol-lines");
      this.hits = document.getElementById("ol-hits");
      this.search = document.getElementById("ol-log-search");
      this.follows = document.getElementById("ol-follow");
      this.where = document.getElementById("ol-log-where");
      this.choice = document.getElementById("ol-attempt");
      this.place = document.getElementById("ol-place");
      this.search.value = this.query;
      this.following = !outlast.recall("at") && !this.query;
      this.search.addEventListener("input", () => this.typed());
      this.search.addEventListener("keydown", (e) => e.key === "Enter" && this.find());
      this.follows.addEventListener("click", () => this.follow(!this.following));
      this.choice.addEventListener("change", () => this.choose(Number(this.choice.value)));
      this.place.addEventListener("change", () => this.jump(Math.floor((this.size * Number(this.place.value)) / 1000)));
      this.box.addEventListener("scroll", () => this.scrolled(), { passive: true });
      // Lines outside the view have an estimated height, so the end moves while the browser lays them out.
      new ResizeObserver(() => this.following && this.toEnd()).observe(this.lines);
      this.options();
      this.follow(this.following);
      if (outlast.recall("at")) this.jump(Number(outlast.recall("at")), true);
      else if (!this.following) this.tail();
      if (this.query) this.find();
    }

    get size() {
      return this.sizes.get(this.attempt) || 0;
    }

    get alive() {
      return document.contains(this.box);
    }

    options() {
      const numbers = [...this.sizes.keys()];
      if (this.choice.options.length === numbers.length) return;
      this.choice.replaceChildren(
        ...numbers.map((n) => {
          const option = outlast.el("option", "", `attempt ${n}`);
          option.value = n;
          return option;
        })
      );
      this.choice.value = this.attempt;
    }

    update(sizes) {
      const newest = Math.max(0, ...this.sizes.keys());
      this.sizes = new Map(sizes);
      this.options();
      const latest = Math.max(0, ...this.sizes.keys());
      if (this.following && latest > newest && this.attempt === newest) this.choose(latest);
      else if (this.following) this.catchUp();
      else this.status();
    }

    async window(query) {
      const answer = await fetch(`/api/log/${encodeURIComponent(this.run)}/${this.attempt}?${new URLSearchParams(query)}`);
      if (!answer.ok) {
        this.where.textContent = "the log cannot be read now";
        return null;
      }
      return answer.json();
    }

    made(text) {
      const lines = text.split("\n");
      if (lines.at(-1) === "") lines.pop();
      return lines.map((line) => {
        const made = marked(plain(line), this.query);
        made.bytes = encoder.encode(line).length + 1;
        return made;
      });
    }

    // Run tasks one at a time, in order.
    async turn(work) {
      const before = this.before;
      const requested = this.requested;
      let over;
      this.before = new Promise((resolve) => (over = resolve));
      this.waiting += 1;
      try {
        await before;
        if (this.alive && requested === this.requested) await work(() => this.alive && requested === this.requested);
      } finally {
        this.waiting -= 1;
        over();
      }
      this.status();
    }

    // Show one position. Return whether it is still the latest requested one.
    async only(query, mark) {
      const requested = ++this.requested;
      await this.turn(async (wanted) => {
        const found = await this.window(query);
        if (!found || !wanted()) return;
        const lines = this.made(found.text);
        if (mark && lines[0]) lines[0].classList.add("ol-here");
        this.lines.replaceChildren(...lines);
        this.begin = found.begin;
        this.end = found.end;
        this.sizes.set(this.attempt, Math.max(this.size, found.size));
      });
      return requested === this.requested;
    }

    async tail() {
      if (await this.only({})) this.toEnd();
    }

    toEnd() {
      this.box.scrollTop = this.box.scrollHeight;
      this.last = this.box.scrollTop;
    }

    async jump(at, mark) {
      this.follow(false);
      if (!(await this.only({ begin: at }, mark))) return;
      this.box.scrollTop = 0;
      outlast.change("at", at ? String(this.begin) : "");
      const requested = this.requested;
      const before = this.box.scrollHeight;
      await this.earlier();
      if (requested !== this.requested) return;
      if (mark) this.lines.querySelector(".ol-here")?.scrollIntoView({ block: "center" });
      else this.box.scrollTop = this.box.scrollHeight - before;
    }

    earlier() {
      return this.turn(async (wanted) => {
        if (this.begin <= 0) return;
        const found = await this.window({ end: this.begin, limit: BACK });
        if (!found || !wanted() || found.end !== this.begin) return;
        const height = this.box.scrollHeight;
        this.lines.prepend(...this.made(found.text));
        this.begin = found.begin;
        this.box.scrollTop += this.box.scrollHeight - height;
        if (this.lines.children.length > KEEP) this.cutEnd();
      });
    }

    cutEnd() {
      const over = [...this.lines.children].slice(KEEP);
      this.end = Math.max(this.begin, this.end - bytes(over));
      over.forEach((line) => line.remove());
    }

    later() {
      return this.turn(async (wanted) => {
        if (this.end >= this.size) return;
        const found = await this.window({ begin: this.end });
        if (!found || !wanted()) return;
        this.lines.append(...this.made(found.text));
        this.end = found.end;
        const over = this.lines.children.length - KEEP;
        if (over > 0) {
          const gone = [...this.lines.children].slice(0, over);
          this.begin += bytes(gone);
          gone.forEach((line) => line.remove());
        }
      });
    }

    async catchUp() {
      if (this.catching) return;
      this.catching = true;
      try {
        while (this.alive && this.following && (!this.end || this.end < this.size)) {
          const before = this.end;
          if (!this.end || this.size - this.end > GAP) await this.tail();
          else await this.later();
          if (this.end === before) break;
        }
      } finally {
        this.catching = false;
      }
      if (this.following) this.toEnd();
    }

    follow(on) {
      this.following = on;
      this.follows.setAttribute("aria-pressed", String(on));
      if (on) {
        outlast.change("at", "");
        this.catchUp();
      }
    }

    choose(attempt) {
      this.attempt = attempt;
      this.choice.value = attempt;
      outlast.change("attempt", attempt === Math.max(...this.sizes.keys()) ? "" : String(attempt));
      this.begin = this.end = 0;
      this.lines.replaceChildren();
      this.tail();
      if (this.query) this.find();
    }

    scrolled() {
      const { scrollTop, scrollHeight, clientHeight } = this.box;
      const atEnd = scrollHeight - scrollTop - clientHeight < 40;
      if (!atEnd && this.following && !this.waiting && this.last > scrollTop) this.follow(false);
      this.last = scrollTop;
      // No fetch while another one runs: the next scroll event comes afterwards.
      if (this.following || this.waiting) return;
      if (scrollTop < 300) this.earlier();
      else if (scrollHeight - scrollTop - clientHeight < 300) this.later();
    }

    typed() {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.find(), 350);
    }

    async find() {
      clearTimeout(this.timer);
      this.query = this.search.value;
      outlast.change("q", this.query);
      const mine = ++this.searching;
      this.hits.replaceChildren();
      this.hits.hidden = !this.query;
      for (const line of this.lines.children) line.replaceChildren(...marked(line.textContent, this.query).childNodes);
      if (!this.query) return;
      const progress = outlast.el("div", "ol-dim", "searching");
      progress.setAttribute("role", "status");
      this.hits.append(progress);
      let begin = 0;
      let count = 0;
      while (mine === this.searching && this.alive) {
        const query = new URLSearchParams({ q: this.query, begin });
        const answer = await fetch(`/api/log/${encodeURIComponent(this.run)}/${this.attempt}/search?${query}`);
        if (!answer.ok || mine !== this.searching) break;
        const found = await answer.json();
        count += found.hits.length;
        for (const hit of found.hits) {
          const line = marked(plain(hit.line), this.query);
          const button = outlast.el("button", "ol-hit");
          button.type = "button";
          button.append(...line.childNodes);
          button.addEventListener("click", () => this.jump(hit.at, true));
          this.hits.append(button);
        }
        const more = found.next !== null;
        const part = found.size ? Math.round((100 * (more ? found.next : found.size)) / found.size) : 100;
        progress.textContent = `${count}${more ? "+" : ""} lines${more ? `, ${part}% searched` : ""}`;
        if (!more || count >= 1000) break;
        begin = found.next;
      }
    }

    status() {
      const size = this.size;
      const mb = (n) => (n < 1e6 ? `${(n / 1e3).toFixed(1)} kB` : `${(n / 1e6).toFixed(1)} MB`);
      this.where.textContent = size ? `${mb(this.begin)} – ${mb(this.end)} of ${mb(size)}` : "no output yet";
      this.place.value = size ? Math.round((1000 * this.end) / size) : 1000;
      this.place.disabled = size < BACK;
    }
  }

  return {
    open: (run, sizes) => (log = new Log(run, sizes)),
    update: (sizes) => log?.alive && log.update(sizes),
  };
})();
