"use strict";
/** The list of experiments in the folder, and the tables of grids and searches. */
(function (downpour) {
  const { words, node, say, SIGNS } = downpour;
  const AGAIN_MILLISECONDS = 5000;

  class History {
    constructor(root, source) {
      Object.assign(this, { root, source, next: null, known: [], timer: 0 });
      this.list = node("ul", { class: "experiments" });
      this.studies = node("ul", { class: "experiments studies" });
      this.studiesTitle = node("h2", {}, "Grids and searches");
      this.note = node("p", { class: "muted", role: "status" });
      this.more = node("button", { type: "button", class: "more", onclick: () => this._more() }, "Show older");
      root.append(node("h1", { tabindex: "-1" }, "Experiments"), this.note, this.list, this.more, this.studiesTitle, this.studies);
    }

    /** Show the list, and keep its head up to date while it is on show. */
    async show(shown) {
      clearTimeout(this.timer);
      this.root.hidden = !shown;
      if (!shown) return;
      if (!document.hidden) await this.refresh();
      if (this.source.live && !this.root.hidden) {
        this.timer = setTimeout(() => this.show(!this.root.hidden), AGAIN_MILLISECONDS);
      }
    }

    /** Fetch the newest page; older ones that have been fetched stay below it. */
    async refresh() {
      await this._read(null, (answer) => {
        const fresh = new Set(answer.experiments.map(({ id }) => id));
        const older = this.known.filter(({ id }) => !fresh.has(id));
        if (!older.length) this.next = answer.next;
        this.canLogOut = answer.login === true;
        this.known = [...answer.experiments, ...older];
      });
    }

    async _more() {
      await this._read(this.next, (answer) => {
        this.next = answer.next;
        this.known = [...this.known, ...answer.experiments];
      });
    }

    async _read(before, take) {
      try {
        const answer = await this.source.experiments(before) || { experiments: [] };
        take(answer);
        this._draw(answer.studies || []);
      } catch (error) {
        this.note.hidden = false;
        say(this.note, `Cannot read the list: ${error.message}`);
      }
    }

    _draw(studies) {
      const nothing = "There is no experiment in this folder yet. Start one with “downpour run”; it will appear here.";
      say(this.note, this.known.length ? "" : nothing);
      this.note.hidden = this.known.length > 0;
      const held = document.activeElement && document.activeElement.getAttribute("href");
      this.list.replaceChildren(...this.known.map((one) => this._item(one)));
      this.more.hidden = !this.next;
      this.studiesTitle.hidden = !studies.length;
      this.studies.replaceChildren(...studies.map((name) =>
        node("li", {}, node("a", { href: `#/studies/${encodeURIComponent(name)}` }, node("span", { class: "name" }, name)))));
      const again = held && [...this.root.querySelectorAll("a")].find((link) => link.getAttribute("href") === held);
      if (again) again.focus({ preventScroll: true });
    }

    _item(one) {
      const share = one.rounds ? Math.min(1, (one.rounds_done || 0) / one.rounds) : 0;
      const bar = node("i");
      bar.style.width = `${100 * share}%`;
      const state = String(one.state || "unknown");
      const id = one.name && one.name !== one.id ? node("small", { class: "muted" }, ` ${one.id}`) : null;
      const rounds = one.rounds ? `${one.rounds_done} of ${words.count(one.rounds, "round")}` : "–";
      return node("li", {}, node("a", { href: `#/experiments/${encodeURIComponent(one.id)}` },
        node("span", { class: "state", "data-state": state }, `${SIGNS[state] || "·"} ${state}`),
        node("span", { class: "name" }, one.name || one.id, id),
        node("span", { class: "measure" }, one.measure ? `${one.measure.words}: ${one.measure.text}` : "–"),
        node("span", { class: "rounds muted" }, rounds, node("span", { class: "done", "aria-hidden": "true" }, bar)),
        node("time", { class: "muted" }, one.changed_at ? words.ago(one.changed_at) : "")));
    }
  }

  /** A grid or a search: its table, and in every row the way to its run. */
  class Study {
    constructor(root, source) {
      Object.assign(this, { root, source });
      this.title = node("h1", { tabindex: "-1" });
      this.place = node("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Runs" });
      this.note = node("p", { class: "muted", role: "status" });
      root.append(this.title, this.note, this.place);
    }

    async show(name) {
      this.root.hidden = !name;
      this.name = name;
      if (!name) return;
      say(this.title, name);
      this.note.hidden = false;
      say(this.note, "Reading…");
      this.place.replaceChildren();
      let study = null;
      try {
        study = await this.source.study(name);
      } catch (error) {
        if (this.name === name) say(this.note, `Cannot read the study: ${error.message}`);
        return;
      }
      if (this.name !== name) return;
      say(this.note, study ? "" : "There is no such study here.");
      this.note.hidden = Boolean(study);
      if (study) this._fill(study);
    }

    _fill({ columns, rows, runs }) {
      const isText = columns.map((_, place) => rows.some((row) => typeof row[place] === "string" && !/^[-−\d]/.test(row[place])));
      const heads = columns.map((column, place) => ({ title: String(column), text: isText[place] }));
      const cells = rows.map((row, place) => row.map((value, column) => {
        const text = value === null ? "–" : typeof value === "number" ? words.number(value) : String(value);
        if (column !== 0 || !runs || !runs[place]) return text;
        return node("a", { href: `#/experiments/${encodeURIComponent(runs[place])}` }, text || runs[place]);
      }));
      this.place.replaceChildren(downpour.table(words.count(rows.length, "run"), heads, cells));
    }
  }

  Object.assign(downpour, { History, Study });
})(window.downpour = window.downpour || {});
