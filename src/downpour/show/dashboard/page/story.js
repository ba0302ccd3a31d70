"use strict";
/**
 * What happened, as text: the history of a task in a panel, the timeline as a table, the decisions.
 *
 * The table is for those who read rather than look: a page of attempts, the newest first. Each
 * decision leads to its place in the timeline.
 */
(function (downpour) {
  const { words, node, say } = downpour;
  const ENDS = {
    open: "still trains", trained: "trained", last: "trained: its round waited for it",
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
      let lines = null;
      let trouble = "The record says nothing more about this task.";
      try {
        lines = await this.source.task(this.id, ...this.task);
        if (!lines && this.source.leftOut) trouble = `This copy is of ${this.source.leftOut}.`;
      } catch (error) {
        trouble = `Cannot read the history: ${error.message}`;
      }
      if (asked !== this.asked) return;
      this.lines = lines || [];
      this.note.hidden = this.lines.length > 0;
      say(this.note, trouble);
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
        const took = (outcome === "open" ? now : all.end[i]) - all.begin[i];
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
        node("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Timeline as a table" },
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
      this._fill(shown, rows);
    }

    _cells(i, now) {
      const { attempts: all } = this.tables;
      const outcome = this.tables.outcomeAt(i, now);
      const task = `${all.round[i]}/${all.shard[i]}`;
      const took = outcome === "open" ? "–" : words.seconds(all.end[i] - all.begin[i]);
      return [this.tables.workerName(all.worker[i]), task, String(all.attempt[i]), words.moment(all.begin[i], 0.1), took, ENDS[outcome]];
    }

    /** Put texts into the rows; their buttons stay, so that the focus does. */
    _fill(shown, rows) {
      while (this.body.rows.length > rows.length) this.body.lastChild.remove();
      while (this.body.rows.length < rows.length) this.body.append(this._line());
      rows.forEach((cells, place) => {
        const line = this.body.rows[place];
        line.dataset.i = shown[place];
        cells.forEach((text, column) => say(column === 1 ? line.cells[1].firstChild : line.cells[column], text));
        line.cells[1].firstChild.setAttribute("aria-label", `Open the history of round ${cells[1].replace("/", ", shard ")}`);
      });
    }

    _line() {
      const line = node("tr");
      const button = node("button", { type: "button", class: "link", onclick: () => this.open(Number(line.dataset.i)) });
      line.append(...TITLES.map((_, column) => node("td", { class: "text" }, column === 1 ? button : null)));
      return line;
    }
  }

  const DECISIONS_A_PAGE = 40;
  const SIGNS = {
    "hand-over": "⇄", copy: "⇉", drop: "−", resize: "⇔", wait: "◷", worker: "+", fail: "✕", end: "■", differ: "≠", disturb: "↯",
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
      this._keepFocus(() => this.list.replaceChildren(...shown.map((decision) => this._item(decision))));
    }

    _item(decision) {
      const chosen = decision.n === this.marked;
      const button = node("button", { type: "button", class: `decision${chosen ? " marked" : ""}`, "data-n": decision.n,
        "aria-current": chosen ? "true" : null, title: "Show it in the timeline", onclick: () => this._choose(decision) },
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

    /** Redraw without taking the focus from the decision that has it. */
    _keepFocus(redraw) {
      const held = this.list.contains(document.activeElement) ? document.activeElement.dataset.n : null;
      redraw();
      const again = held === null ? null : this.list.querySelector(`[data-n="${Number(held)}"]`);
      if (again) again.focus({ preventScroll: true });
    }
  }

  /** Say whether a text begins with its kind: "hand over from d to a". */
  function saysKind({ kind, text }) {
    const plain = (words) => String(words).toLowerCase().replace(/-/g, " ");
    return plain(text).startsWith(plain(kind));
  }

  Object.assign(downpour, { TaskPanel, ENDS, Mirror, Why });
})(window.downpour = window.downpour || {});
