"use strict";
/**
 * The processes: the table of workers, and what all of them logged and printed.
 *
 * A thousand workers are rows in memory; only those in sight are elements. Logs are loaded when somebody
 * opens them, and followed while they are in sight. Lines are text, whatever they hold. The server says
 * from which line on to go on (`next`), and when to begin anew.
 */
(function (downpour) {
  const { words, node, region, say, answered } = downpour;
  const ROW = 40;
  const NAME_MOST = 28;
  const SIGNS = { training: "●", publishing: "●", idle: "○", lost: "✕", left: "–" };
  const STATES = ["training", "publishing", "idle", "lost", "left"];
  const collator = new Intl.Collator("en", { numeric: true });
  const COLUMNS = [
    { key: "name", title: "Worker", value: (row) => row.name },
    { key: "state", title: "State", value: (row) => STATES.indexOf(row.state) },
    { key: "task", title: "Task and its forecast", value: (row) => row.elapsed ?? -1 },
    { key: "done", title: "Tasks", value: (row) => row.done, number: true },
    { key: "speed", title: "Samples/s", value: (row) => row.speed || 0, number: true },
    { key: "cpu", title: "Cores", value: (row) => row.cpu || 0, number: true },
    { key: "memory", title: "Memory", value: (row) => row.memory || 0, number: true },
    { key: "class", title: "Numerics", value: (row) => row.numericClass || "" },
    { key: "joined", title: "Joined", value: (row) => row.joined, number: true },
  ];
  const AGAIN_MILLISECONDS = 2000;
  const READS_AFTER_END = 2;
  const LINES_MOST = 1000;
  const STREAMS = ["stdout", "stderr"];

  class Workers {
    /** @param {function(number)} open called with the attempt whose task is to be opened */
    constructor(root, open) {
      Object.assign(this, { open, sort: "name", down: false, tables: new downpour.Tables(), pool: [] });
      this.search = node("input", {
        type: "search", placeholder: "Filter by name, class or address", "aria-label": "Filter workers",
        oninput: () => this.draw(this.now),
      });
      this.state = node("select", { "aria-label": "State", onchange: () => this.draw(this.now) },
        ["all states", ...STATES].map((text, place) => node("option", { value: place ? text : "" }, text)));
      this.count = node("span", { class: "muted", role: "status" });
      this.above = node("tr", { "aria-hidden": "true" }, node("td", { colspan: COLUMNS.length }));
      this.below = node("tr", { "aria-hidden": "true" }, node("td", { colspan: COLUMNS.length }));
      this.body = node("tbody", {}, this.above, this.below);
      this.table = node("table", { class: "workers" }, node("caption", { class: "hidden" }, "Workers"), this._head(), this.body);
      this.frame = region("Table of workers", this.table);
      this.frame.addEventListener("scroll", () => this._fill());
      this.empty = node("p", { class: "muted" });
      root.append(node("div", { class: "tools" }, this.search, this.state, this.count), this.frame, this.empty);
    }

    _head() {
      this.heads = COLUMNS.map(({ key, title, number }) => node("th", { scope: "col", class: `${key} ${number ? "number" : ""}` },
        node("button", { type: "button", onclick: () => this._order(key) }, title)));
      return node("thead", {}, node("tr", {}, this.heads));
    }

    _order(key) {
      this.down = this.sort === key ? !this.down : false;
      this.sort = key;
      this.draw(this.now);
    }

    use(tables) { this.tables = tables; }

    draw(now) {
      this.now = now;
      const sought = this.search.value.trim().toLowerCase();
      const every = this.tables.workers.filter(Boolean).map((worker) => this._row(worker, now)).filter((row) => row.joined <= now);
      this.rows = every.filter((row) => (!this.state.value || row.state === this.state.value)
        && (!sought || `${row.name} ${row.numericClass} ${row.address}`.toLowerCase().includes(sought)));
      const { value } = COLUMNS.find(({ key }) => key === this.sort);
      const way = this.down ? -1 : 1;
      this.rows.sort((one, other) => way * compared(value(one), value(other)) || one.i - other.i);
      this.heads.forEach((head, place) => {
        const here = COLUMNS[place].key === this.sort;
        if (here) head.setAttribute("aria-sort", this.down ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      say(this.count, this.rows.length === every.length ? words.count(every.length, "worker") : `${this.rows.length} of ${every.length}`);
      this.table.setAttribute("aria-rowcount", this.rows.length + 1);
      this.empty.hidden = this.rows.length > 0;
      say(this.empty, every.length ? "No worker matches." : "No worker has joined yet.");
      this._fill();
    }

    /** Describe a worker at a moment: past states follow from its attempts. */
    _row(worker, now) {
      const i = this.tables.attemptAt(worker.i, now);
      const present = now >= this.tables.latest;
      const all = this.tables.attempts;
      const elapsed = i >= 0 ? now - all.begin[i] : null;
      const publishes = present && (worker.doing || "").startsWith("publishing");
      const busy = publishes || (all.done[i] === 1 && all.forecastAt[i] <= elapsed + 0.001) ? "publishing" : "training";
      const state = !this.tables.isHere(worker, now) ? (worker.state === "lost" ? "lost" : "left") : i >= 0 ? busy : "idle";
      const row = { ...worker, name: String(worker.name), state, attempt: i, elapsed };
      return present ? row : { ...row, doing: "", done: this._done(worker.i, now), speed: null, cpu: null, memory: null };
    }

    _done(worker, now) {
      const { attempts: all, rows } = this.tables;
      return (rows[worker] || []).filter((i) => all.end[i] <= now && (all.outcome[i] === 1 || all.outcome[i] === 2)).length;
    }

    /** Fill the rows in sight, and leave room for the others. */
    _fill() {
      const rows = this.rows || [];
      const high = Math.max(ROW, this.frame.clientHeight || 10 * ROW);
      const first = Math.max(0, Math.min(Math.floor(this.frame.scrollTop / ROW) - 2, rows.length - 1));
      const shown = rows.slice(first, first + Math.ceil(high / ROW) + 4);
      while (this.pool.length < shown.length) this.pool.push(new Line(this));
      this.pool.forEach((line, place) => {
        if (place >= shown.length) return line.element.remove();
        line.draw(shown[place], first + place, this.tables, this.now);
        if (line.element.parentNode !== this.body) this.body.insertBefore(line.element, this.below);
      });
      this.above.firstChild.style.height = `${first * ROW}px`;
      this.below.firstChild.style.height = `${(rows.length - first - shown.length) * ROW}px`;
      this.above.hidden = first === 0;
      this.below.hidden = first + shown.length >= rows.length;
    }
  }

  /** One element for a row, which shows another worker when the table scrolls. */
  class Line {
    constructor(owner) {
      this.cells = COLUMNS.map(({ key, number }) => {
        const isHead = key === "name";
        return node(isHead ? "th" : "td", { class: `${key} ${number ? "number" : ""}`, scope: isHead ? "row" : null });
      });
      this.element = node("tr", {}, this.cells);
      this.task = node("button", { type: "button", class: "link", onclick: () => owner.open(this.attempt) });
      this.track = new Track();
      this.cells[2].append(this.task, this.track.element);
    }

    draw(row, place, tables, now) {
      this.attempt = row.attempt;
      this.element.setAttribute("aria-rowindex", place + 2);
      const [name, state, , done, speed, cpu, memory, numericClass, joined] = this.cells;
      say(name, words.cut(row.name, NAME_MOST));
      name.title = row.address ? `${row.name} · ${row.address}` : row.name;
      say(state, `${SIGNS[row.state]} ${(row.attempt >= 0 && row.doing) || row.state}`);
      state.dataset.state = row.state;
      const all = tables.attempts;
      this.task.hidden = this.track.element.hidden = row.attempt < 0;
      if (row.attempt >= 0) {
        say(this.task, `${all.round[row.attempt]}/${all.shard[row.attempt]}`);
        this.task.title = `Round ${all.round[row.attempt]}, shard ${all.shard[row.attempt]}: open its history`;
        this.track.draw(all, row.attempt, row.elapsed, now);
      }
      say(done, words.number(row.done));
      say(speed, row.speed ? words.digits(row.speed) : "–");
      say(cpu, row.cpu ? words.digits(row.cpu) : "–");
      say(memory, row.memory ? words.bytes(row.memory) : "–");
      say(numericClass, row.numericClass || "–");
      numericClass.title = row.numericClass || "";
      say(joined, words.moment(row.joined));
    }
  }

  /** A small bar: how long a task has run, and the interval in which its end is forecast. */
  class Track {
    constructor() {
      this.parts = ["band", "middle", "fill"].map((name) => node("i", { class: name }));
      this.text = node("span", { class: "hidden" });
      this.element = node("span", { class: "track" }, this.parts, this.text);
    }

    draw(all, i, elapsed) {
      const known = all.q50[i] > 0 && all.forecastAt[i] <= elapsed + 0.001;
      const most = 1.05 * Math.max(elapsed, known ? all.q90[i] : 0, 0.001);
      const [band, middle, fill] = this.parts;
      band.hidden = middle.hidden = !known;
      fill.style.width = `${100 * elapsed / most}%`;
      fill.classList.toggle("late", known && elapsed > all.q90[i]);
      const took = words.seconds(elapsed);
      if (known) {
        band.style.left = `${100 * all.q10[i] / most}%`;
        band.style.width = `${100 * (all.q90[i] - all.q10[i]) / most}%`;
        middle.style.left = `${100 * all.q50[i] / most}%`;
      }
      const text = known ? `${took} of ${words.forecast(all, i)}` : `${took}, no forecast`;
      say(this.text, text);
      this.element.title = text;
    }
  }

  function compared(one, other) {
    return typeof one === "string" ? collator.compare(one, other) : (one || 0) - (other || 0);
  }

  class Logs {
    /** @param {HTMLElement} root hidden while the folder has no logs */
    constructor(root, source) {
      Object.assign(this, { root, source, id: null, tables: new downpour.Tables(), asked: 0, timer: 0 });
      this.worker = node("select", { "aria-label": "Process", onchange: () => this._begin() });
      this.level = node("select", { "aria-label": "Level", onchange: () => this._begin() },
        [["debug", "all levels"], ["warning", "warnings and errors"]].map(([value, text]) => node("option", { value }, text)));
      this.span = node("button", { type: "button", onclick: () => this._forget() });
      this.note = node("p", { class: "muted", role: "status" });
      this.list = node("ol", { class: "log" });
      this.frame = region("Lines of the logs", this.list);
      this.details = root.querySelector("details");
      this.details.append(node("div", { class: "tools" }, this.worker, this.level, this.span), this.note, this.frame);
      this.details.addEventListener("toggle", () => this._begin());
      document.addEventListener("visibilitychange", () => this._read());
    }

    /** Show nothing of this experiment until `offer` says that there is something. */
    use(id, tables) {
      Object.assign(this, { id, tables, names: new Set(), moments: null, left: 0 });
      this.root.hidden = true;
      this.details.open = false;
      this.level.value = "debug";
      this._name([]);
      this._begin();
    }

    offer() { this.root.hidden = false; }

    get offered() { return !this.root.hidden; }

    /** Open the logs of one process in some seconds of the run. */
    open(name, from, to) {
      this.moments = [from, to];
      this.arriving = true;
      this._name([name]);
      this.worker.value = name;
      if (this.details.open) this._begin();
      else this.details.open = true;  // its event begins
      this.details.firstElementChild.focus({ preventScroll: true });
    }

    _forget() {
      this.moments = null;
      this._begin();
      this.worker.focus();
    }

    /** Begin with an empty list: the filter is another one. */
    _begin() {
      this.next = "";
      this.list.replaceChildren();
      this.span.hidden = !this.moments;
      if (this.moments) say(this.span, `${this.moments.map((at) => words.moment(at)).join(" to ")} ×`);
      this.span.setAttribute("aria-label", "Show all times");
      say(this.note, "Reading the logs…");
      this._read();
    }

    /** Ask for what is new; what comes for another filter is dropped. */
    async _read() {
      clearTimeout(this.timer);
      const asked = (this.asked += 1);
      if (!this.details.open || this.root.hidden || document.hidden) return;
      this.left = this.tables.running ? READS_AFTER_END : this.left - 1;
      const [from, to] = this.moments || ["", ""];
      const wanted = { after: this.next, worker: this.worker.value, level: this.level.value, from, to };
      const [answer, trouble] = await answered(this.source.logs(this.id, wanted), "the logs");
      if (asked !== this.asked) return;
      if (answer) this._take(answer);
      this._tell(answer, trouble);
      if (this.left >= 0 || trouble) this.timer = setTimeout(() => this._read(), AGAIN_MILLISECONDS);
    }

    _take({ lines, next, anew, names }) {
      const { frame, list } = this;
      const atEnd = anew || frame.scrollHeight - frame.scrollTop - frame.clientHeight < 8;
      this.next = next;
      this._name(names);
      if (anew) list.replaceChildren();
      list.append(...lines.map((line) => this._item(line)));
      while (list.childElementCount > LINES_MOST) list.firstElementChild.remove();
      if (atEnd) frame.scrollTop = frame.scrollHeight;
      if (this.arriving) this.root.scrollIntoView({ block: "start" });  // only now it has its height
      this.arriving = false;
    }

    _tell(answer, trouble) {
      if (answer && answer.anew) this.older = answer.older;
      const empty = this.list.childElementCount ? "" : "There are no such lines.";
      const older = this.older ? `Older lines are left out. All of them: downpour logs ${this.id}` : "";
      say(this.note, trouble || empty || older);
      this.note.hidden = !this.note.textContent;
      this.frame.hidden = !this.list.childElementCount;
    }

    /** Offer these processes as well; the one that was chosen stays. */
    _name(names) {
      const chosen = this.worker.value;
      const known = this.names.size;
      for (const name of names) this.names.add(name);
      if (known && known === this.names.size) return;
      const sorted = [...this.names].sort(collator.compare);
      this.worker.replaceChildren(node("option", { value: "" }, "all processes"),
        ...sorted.map((name) => node("option", { value: name }, name)));
      this.worker.value = this.names.has(chosen) ? chosen : "";
    }

    _item([at, host, name, level, source, text, trace]) {
      const label = STREAMS.includes(source) ? source : level;
      const time = new Date(1000 * at);
      return node("li", { "data-level": level },
        node("time", { datetime: time.toISOString(), title: time.toLocaleString() }, time.toLocaleTimeString("en-GB")),
        node("span", { class: "who", title: host }, name), node("span", { class: "label" }, label),
        node("span", { class: "said" }, text), trace ? node("pre", {}, trace) : null);
    }
  }

  Object.assign(downpour, { Workers, Logs });
})(window.downpour = window.downpour || {});
