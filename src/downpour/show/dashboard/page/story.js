"use strict";
/**
 * The timeline for readers: as text, and under the pointer.
 *
 * Text is the history of a task in a panel, the timeline as a table, and the decisions. The table is for
 * those who read rather than look: a page of attempts, the newest first. Each decision leads to its place
 * in the timeline. Wheel, pointers and keys move the timeline, point at tasks and open them; a tooltip
 * and the key say what is there.
 */
(function (downpour) {
  const { words, node, region, say, answered, keepFocus } = downpour;
  const ENDS = {
    open: "still trains", trained: "trained", last: "trained late: its round waited for it",
    moved: "went on elsewhere", stopped: "not needed any more", failed: "failed",
  };

  class TaskPanel {
    /**
     * @param {HTMLElement} root hidden while no task is shown
     * @param {{close: function(), point: function(number), hasLogs: function(), logs: function(number)}} listener
     *   `point(i)` shows an attempt in the timeline, `logs(i)` what its worker said meanwhile
     */
    constructor(root, source, listener) {
      Object.assign(this, { root, source, listener, shown: null, asked: 0, lines: [] });
      this.title = node("h2", { tabindex: "-1" });
      this.attempts = node("div", { class: "wide" });
      this.list = node("ol", { class: "lines" });
      this.note = node("p", { class: "muted" });
      const close = node("button", {
        type: "button", class: "close", "aria-label": "Close the history of the task", onclick: () => listener.close(),
      }, "×");
      const head = node("div", { class: "head" }, this.title, close);
      root.append(head, this.attempts, node("h3", {}, "History"), this.note, this.list);
      root.addEventListener("keydown", (event) => {
        if (event.key === "Escape") listener.close();
      });
    }

    /** Show a task of an experiment; null hides the panel. */
    show(id, tables, task) {
      const key = task ? `${id} ${task}` : null;
      if (key === this.shown) return;
      Object.assign(this, { shown: key, id, tables, task, lines: [], drawn: "" });
      this.root.hidden = !task;
      if (!task) return;
      say(this.title, `Round ${task[0]}, shard ${task[1]}`);
      this.list.replaceChildren();
      say(this.note, "Reading the record…");
      this.title.focus({ preventScroll: false });
      this.read();
    }

    /** Ask for the lines; what comes for a task that has been closed since is dropped. */
    async read() {
      if (!this.shown) return;
      const asked = (this.asked += 1);
      const [lines, trouble] = await answered(this.source.task(this.id, ...this.task), "the history");
      if (asked !== this.asked) return;
      const isLeftOut = !lines && this.source.leftOut;
      const nothing = isLeftOut ? `This copy is of ${isLeftOut}.` : "The record says nothing more about this task.";
      this.lines = lines || [];
      this.note.hidden = this.lines.length > 0;
      say(this.note, trouble || nothing);
      this.list.replaceChildren(...this.lines.map(([at, text]) =>
        node("li", {}, node("time", {}, words.moment(at, 0.1)), node("span", {}, text))));
    }

    /** Draw the attempts at a moment. */
    draw(now) {
      if (!this.shown) return;
      const { tables, task } = this;
      const all = tables.attempts;
      const found = tables.attemptsOf(...task).filter((i) => all.begin[i] <= now);
      const rows = found.map((i) => {
        const outcome = tables.outcomeAt(i, now);
        const took = tables.endAt(i, now) - all.begin[i];
        const times = [words.moment(all.begin[i], 0.1), words.seconds(took), words.forecast(all, i)];
        return [i, all.attempt[i], tables.workerName(all.worker[i]), ...times, ENDS[outcome]];
      });
      const key = JSON.stringify([rows, this.listener.hasLogs()]);
      if (key === this.drawn) return;
      this.drawn = key;
      this.attempts.replaceChildren(...rows.map(([i, ...row]) => this._card(i, row)));
    }

    _card(i, [attempt, worker, begin, took, forecast, end]) {
      const pair = (title, value) => node("div", {}, node("dt", {}, title), node("dd", {}, value));
      return node("div", { class: "attempt" },
        node("button", { type: "button", class: "link", title: "Show it in the timeline", onclick: () => this.listener.point(i) }, worker),
        node("span", { class: "muted" }, ` attempt ${attempt}`),
        node("dl", {}, pair("Began", begin), pair("Took", took), pair("Forecast", forecast), pair("End", end)),
        this.listener.hasLogs() ? node("button", { type: "button", class: "link logs", onclick: () => this.listener.logs(i) },
          "Logs of these seconds") : null);
    }
  }

  const ROWS_A_PAGE = 25;
  const TITLES = ["Worker", "Task", "Attempt", "Began", "Took", "Outcome"];

  class Mirror {
    /** @param {function(number)} open called with an attempt */
    constructor(root, open) {
      Object.assign(this, { root, open, page: 0, drawn: "", tables: new downpour.Tables() });
      this.body = node("tbody");
      this.place = node("span", { role: "status" });
      this.newer = node("button", { type: "button", onclick: () => this._turn(-1) }, "Newer");
      this.older = node("button", { type: "button", onclick: () => this._turn(1) }, "Older");
      root.append(
        region("Timeline as a table",
          node("table", {}, node("caption", { class: "hidden" }, "Attempts, the newest first"),
            node("thead", {}, node("tr", {}, TITLES.map((title) => node("th", { scope: "col", class: "text" }, title)))), this.body)),
        node("div", { class: "tools" }, this.newer, this.older, this.place));
    }

    use(tables) { Object.assign(this, { tables, page: 0, drawn: "" }); }

    _turn(pages) {
      this.page += pages;
      this.draw(this.now);
    }

    draw(now) {
      this.now = now;
      if (this.root.hidden) return;
      const { attempts: all } = this.tables;
      let known = all.count;
      while (known > 0 && !(all.begin[known - 1] <= now)) known -= 1;
      this.page = Math.max(0, Math.min(this.page, Math.ceil(known / ROWS_A_PAGE) - 1));
      const top = known - this.page * ROWS_A_PAGE;
      const shown = [];
      for (let i = top - 1; i >= Math.max(0, top - ROWS_A_PAGE); i -= 1) shown.push(i);
      const place = `${known - top + 1} to ${known - top + shown.length} of ${words.count(known, "attempt")}`;
      say(this.place, known ? place : "No worker has been given a task yet.");
      [this.newer.disabled, this.older.disabled] = [this.page === 0, top <= ROWS_A_PAGE];
      const rows = shown.map((i) => this._cells(i, now));
      const key = JSON.stringify(rows);
      if (key === this.drawn) return;
      this.drawn = key;
      keepFocus(this.body, "data-i", () => this.body.replaceChildren(...rows.map((cells, place) => this._line(shown[place], cells))));
    }

    _cells(i, now) {
      const { attempts: all } = this.tables;
      const outcome = this.tables.outcomeAt(i, now);
      const task = `${all.round[i]}/${all.shard[i]}`;
      const took = outcome === "open" ? "–" : words.seconds(all.end[i] - all.begin[i]);
      return [this.tables.workerName(all.worker[i]), task, String(all.attempt[i]), words.moment(all.begin[i], 0.1), took, ENDS[outcome]];
    }

    _line(i, cells) {
      const name = `Open the history of round ${cells[1].replace("/", ", shard ")}`;
      const open = node("button", { type: "button", class: "link", "data-i": i, "aria-label": name, onclick: () => this.open(i) }, cells[1]);
      return node("tr", {}, cells.map((text, column) => node("td", { class: "text" }, column === 1 ? open : text)));
    }
  }

  const DECISIONS_A_PAGE = 40;
  const SIGNS = {
    "hand-over": "⇄", copy: "⇉", drop: "−", resize: "⇔", wait: "◷", worker: "+", fail: "✕", end: "■", differ: "≠", disturb: "↯",
  };

  const MEANINGS = {
    "hand-over": "A task goes on at another worker, from where it is", copy: "A second worker trains the same task; the first update counts",
    drop: "The round ends without this shard", resize: "Shards of this round change their sizes", wait: "Work stays where it is",
    worker: "One more worker is asked for", fail: "An attempt has failed", end: "The experiment has ended",
    differ: "Two attempts at one task gave other bytes", disturb: "Somebody slows or kills a process on purpose",
  };

  class Why {
    /** @param {function(object)} show called with the decision that was chosen */
    constructor(root, show) {
      Object.assign(this, { show, most: DECISIONS_A_PAGE, drawn: "", marked: null });
      this.list = node("ol", { class: "decisions" });
      this.empty = node("p", { class: "muted" },
        "No decisions yet. The policy’s reasons appear here when it moves, copies or drops work.");
      this.more = node("button", { type: "button", class: "more", onclick: () => this._more() }, "Show older");
      root.append(this.empty, this.list, this.more);
    }

    use(tables) { Object.assign(this, { tables, most: DECISIONS_A_PAGE, drawn: "", marked: null }); }

    _more() {
      this.most += DECISIONS_A_PAGE;
      this.draw(this.now);
    }

    draw(now) {
      this.now = now;
      const known = [...this.tables.decisions.values()].filter(({ at }) => at <= now).sort((one, other) => other.n - one.n);
      const shown = known.slice(0, this.most);
      const key = `${known.length}/${shown.length}/${shown.length ? shown[0].n : ""}/${this.marked}`;
      if (key === this.drawn) return;
      this.drawn = key;
      this.empty.hidden = known.length > 0;
      this.more.hidden = known.length <= shown.length;
      say(this.more, `Show older (${words.count(known.length - shown.length, "more", "more")})`);
      keepFocus(this.list, "data-n", () => this.list.replaceChildren(...shown.map((decision) => this._item(decision))));
    }

    _item(decision) {
      const chosen = decision.n === this.marked;
      const button = node("button", { type: "button", class: `decision${chosen ? " marked" : ""}`, "data-n": decision.n,
        "aria-current": chosen ? "true" : null, title: [MEANINGS[decision.kind], "Choose it to see it in the timeline"].filter(Boolean).join(". "),
        onclick: () => this._choose(decision) },
        node("span", { class: `sign ${decision.kind === "fail" ? "failure" : ""}`, "aria-hidden": "true" }, SIGNS[decision.kind] || "·"),
        node("span", { class: "said" }, saysKind(decision) ? null : node("span", { class: "kind" }, `${decision.kind} `), decision.text),
        node("time", {}, words.moment(decision.at)));
      return node("li", {}, button);
    }

    _choose(decision) {
      this.marked = decision.n;
      this.draw(this.now);
      this.show(decision);
    }
  }

  /** Say whether a text begins with its kind: "hand over from d to a". */
  function saysKind({ kind, text }) {
    const plain = (words) => String(words).toLowerCase().replace(/-/g, " ");
    return plain(text).startsWith(plain(kind));
  }

  const KEY = [
    ["odd", "trained, odd rounds"], ["even", "even rounds"], ["open", "still trains, forecast ahead"],
    ["last", "late: its round waited for it"], ["moved", "went on elsewhere"], ["stopped", "not needed any more"],
    ["failed", "failed"], ["wait", "waits"], ["version", "new model version"],
    ["disturb", "slowed or killed on purpose"],
  ];

  /** Return the key: a sample and words for each look of a bar. */
  function legend() {
    return KEY.map(([look, text]) => node("li", {}, node("i", { class: `look ${look}`, "aria-hidden": "true" }), text));
  }

  class Tip {
    constructor(element, timeline) {
      Object.assign(this, { element, timeline, shown: -1 });
    }

    /** Show what is known of an attempt, and of what lies across it, beside a place of the canvas; -1 is no attempt. */
    show(i, x, y) {
      const across = this.timeline.disturbancesAt(x, y).map(({ at, text }) => `${words.moment(at, 0.1)} ${text}`);
      this.element.hidden = i < 0 && !across.length;
      this.timeline.canvas.classList.toggle("pointing", i >= 0);
      if (this.element.hidden) return;
      const [title, ...lines] = [...across, ...(i < 0 ? [] : this.lines(i))];
      const parts = [node("strong", {}, title), ...lines.map((line) => node("span", {}, line))];
      if (i !== this.shown || this.element.childElementCount !== parts.length) this.element.replaceChildren(...parts);
      else parts.forEach((part, place) => say(this.element.children[place], part.textContent));
      this.shown = i;
      const { wide } = this.timeline.size;
      const left = Math.max(4, Math.min(x + 14, wide - this.element.offsetWidth - 4));
      const above = y + 18 + this.element.offsetHeight > this.timeline.size.high;
      this.element.style.transform = `translate(${left}px, ${above ? y - this.element.offsetHeight - 12 : y + 18}px)`;
    }

    /** Say what is known of an attempt, in lines. */
    lines(i) {
      const { tables, now } = this.timeline;
      const all = tables.attempts;
      const outcome = tables.outcomeAt(i, now);
      const took = tables.endAt(i, now) - all.begin[i];
      const lines = [`Round ${all.round[i]}, shard ${all.shard[i]}`, `${tables.workerName(all.worker[i])}, attempt ${all.attempt[i]}`,
        `${ENDS[outcome]} · ${words.seconds(took)} from ${words.moment(all.begin[i], 0.1)}`];
      if (downpour.isCopy(tables, i)) lines.push("a copy: the first update counts");
      else if (all.fromStep[i] > 0) lines.push(`went on from step ${all.fromStep[i]}`);
      if (all.q50[i] > 0) lines.push(`forecast ${words.forecast(all, i)}`);
      return lines;
    }
  }

  const ZOOM_STEP = 1.35;
  const CLICK_PIXELS = 5;

  class Gestures {
    /**
     * @param {downpour.Timeline} timeline
     * @param {{changed: function(), point: function(number, number, number), open: function(number)}} listener
     *   `point(i, x, y)` names the attempt below the pointer, -1 for none; `open(i)` was clicked
     */
    constructor(timeline, listener) {
      Object.assign(this, { timeline, listener, pointers: new Map(), moved: 0, spread: null });
      const { canvas } = timeline;
      const { _down, _move, _up, _lose, _key } = this;
      const actions = { pointerdown: _down, pointermove: _move, pointerup: _up, pointercancel: _lose, keydown: _key };
      for (const [name, action] of Object.entries(actions)) canvas.addEventListener(name, action.bind(this));
      canvas.addEventListener("wheel", (event) => this._wheel(event), { passive: false });
      canvas.addEventListener("pointerleave", () => listener.point(-1, 0, 0));
    }

    _place(event) {
      const box = this.timeline.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    }

    _moment(x) { return this.timeline.view.moment(x - this.timeline.gutter); }

    /** The wheel zooms into time; with Shift it moves along it, with Ctrl or Alt rows grow. */
    _wheel(event) {
      event.preventDefault();
      const { view } = this.timeline;
      const [x, y] = this._place(event);
      const lines = event.deltaMode === 1 ? 16 : 1;
      const [dx, dy] = [event.deltaX * lines, event.deltaY * lines];
      if (event.shiftKey || Math.abs(dx) > Math.abs(dy)) view.pan(dx || dy, 0);
      else if (event.altKey) view.zoomRows(Math.exp(-dy / 300), y - downpour.AXIS);
      else if (x < this.timeline.gutter) view.pan(0, dy);
      else view.zoom(Math.exp(dy / 300), this._moment(x));
      this.listener.changed();
    }

    _down(event) {
      this.timeline.canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, this._place(event));
      this.moved = this.pointers.size > 1 ? Infinity : 0;
      this.spread = null;
    }

    _move(event) {
      const place = this._place(event);
      const before = this.pointers.get(event.pointerId);
      if (!before) {
        this.listener.point(this.timeline.hit(...place), ...place);
        return;
      }
      this.pointers.set(event.pointerId, place);
      if (this.pointers.size === 2) this._pinch();
      else {
        const [dx, dy] = [before[0] - place[0], before[1] - place[1]];
        this.moved += Math.abs(dx) + Math.abs(dy);
        if (this.moved > CLICK_PIXELS) this.timeline.view.pan(dx, dy);
      }
      this.listener.changed();
    }

    /** Two fingers: across they zoom into time, up and down they make rows higher. */
    _pinch() {
      const [[x0, y0], [x1, y1]] = [...this.pointers.values()];
      const spread = [Math.max(30, Math.abs(x0 - x1)), Math.max(30, Math.abs(y0 - y1))];
      if (this.spread) {
        const { view } = this.timeline;
        view.zoom(this.spread[0] / spread[0], this._moment((x0 + x1) / 2));
        if (Math.abs(y0 - y1) > 60) {
          view.zoomRows(spread[1] / this.spread[1], (y0 + y1) / 2 - downpour.AXIS);
        }
      }
      this.spread = spread;
    }

    _up(event) {
      const clicked = this.pointers.size === 1 && this.moved <= CLICK_PIXELS;
      this._lose(event);
      if (!clicked) return;
      const i = this.timeline.hit(...this._place(event));
      if (i >= 0) this.listener.open(i);
    }

    _lose(event) {
      this.pointers.delete(event.pointerId);
      this.spread = null;
    }

    _key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const action = event.shiftKey && event.key.startsWith("Arrow") ? () => this._step(event.key) : this._action(event.key);
      if (!action) return;
      event.preventDefault();
      action();
      this.listener.changed();
    }

    _action(key) {
      const { view, cursor } = this.timeline;
      const middle = view.follow ? view.end : (view.from + view.to) / 2;
      const [across, down] = [view.width / 8, Math.max(26, view.height / 8)];
      return {
        "+": () => view.zoom(1 / ZOOM_STEP, middle), "=": () => view.zoom(1 / ZOOM_STEP, middle),
        "-": () => view.zoom(ZOOM_STEP, middle),
        ">": () => view.zoomRows(ZOOM_STEP, 0), "<": () => view.zoomRows(1 / ZOOM_STEP, 0),
        ArrowLeft: () => view.pan(-across, 0), ArrowRight: () => view.pan(across, 0),
        ArrowUp: () => view.pan(0, -down), ArrowDown: () => view.pan(0, down),
        Home: () => view.pan(-1e9, 0), End: () => this.listener.follow(), f: () => this.listener.follow(),
        0: () => view.showAll(), n: () => this._step("ArrowRight"), p: () => this._step("ArrowLeft"),
        Enter: cursor >= 0 ? () => this.listener.open(cursor) : null,
      }[key];
    }

    /** Point at the next task of a worker, or at one of the next worker at the same time. */
    _step(key) {
      const { timeline } = this;
      const { tables, order, rank, now } = timeline;
      const next = timeline.cursor < 0 ? this._first() : this._beside(key);
      if (next === undefined || next < 0 || tables.attempts.begin[next] > now) return;
      timeline.reveal(next);
      this.listener.pointed(next, rank[tables.attempts.worker[next]], order.length);
    }

    _first() {
      const { tables, order, now } = this.timeline;
      const row = tables.rows[order[0]] || [];
      return row[tables.placeAt(row, now)];
    }

    _beside(key) {
      const { tables, order, rank, cursor } = this.timeline;
      const { begin, worker } = tables.attempts;
      const own = tables.rows[worker[cursor]];
      if (key === "ArrowLeft" || key === "ArrowRight") {
        return own[own.indexOf(cursor) + (key === "ArrowRight" ? 1 : -1)];
      }
      const way = key === "ArrowDown" ? 1 : -1;
      for (let row = rank[worker[cursor]] + way; row >= 0 && row < order.length; row += way) {
        const other = tables.rows[order[row]] || [];
        if (other.length) return other[Math.max(0, tables.placeAt(other, begin[cursor] + 0.001))];
      }
      return -1;
    }
  }

  Object.assign(downpour, { TaskPanel, Mirror, Why, Tip, legend, Gestures });
})(window.downpour = window.downpour || {});
