"use strict";
/** The history of a task, in a panel beside the page: why it was assigned, forecasts, what became of it. */
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

  Object.assign(downpour, { TaskPanel, ENDS });
})(window.downpour = window.downpour || {});
