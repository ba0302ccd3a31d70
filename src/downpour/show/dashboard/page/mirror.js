"use strict";
/** The timeline as a table, for those who read rather than look: a page of attempts, the newest first. */
(function (downpour) {
  const { words, node, say, ENDS } = downpour;
  const PAGE = 25;
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
      this.page = Math.max(0, Math.min(this.page, Math.ceil(known / PAGE) - 1));
      const top = known - this.page * PAGE;
      const shown = [];
      for (let i = top - 1; i >= Math.max(0, top - PAGE); i -= 1) shown.push(i);
      const place = `${known - top + 1} to ${known - top + shown.length} of ${words.count(known, "attempt")}`;
      say(this.place, known ? place : "No worker has been given a task yet.");
      [this.newer.disabled, this.older.disabled] = [this.page === 0, top <= PAGE];
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

  downpour.Mirror = Mirror;
})(window.downpour = window.downpour || {});
