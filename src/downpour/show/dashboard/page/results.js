"use strict";
/** Results: curves of every measure, another experiment laid over them, classes, and who has which data. */
(function (downpour) {
  const { words, node, say, AXES } = downpour;
  const LOSS = { name: "loss", words: "loss", percent: false, higher_is_better: false };
  const SHARDS_MOST = 60;

  class Results {
    constructor(root, classes, source) {
      Object.assign(this, { source, classes, axis: "epoch", charts: new Map(), other: null, otherId: "", drawn: "" });
      this.axes = node("fieldset", { class: "switch" }, node("legend", {}, "by"),
        Object.keys(AXES).map((name) => node("label", {},
          node("input", { type: "radio", name: "axis", value: name, checked: name === "epoch", onchange: () => this._turn(name) }), name)));
      this.compare = node("select", { onchange: () => this._compare(this.compare.value) }, node("option", { value: "" }, "nothing"));
      this.note = node("span", { class: "muted", role: "status" });
      this.figures = node("div", { class: "figures" });
      this.empty = node("p", { class: "muted" }, "Nothing has been measured yet. The first point comes after the first round.");
      const compare = node("label", {}, "compare with ", this.compare);
      root.append(node("div", { class: "tools" }, this.axes, compare, this.note), this.empty, this.figures);
      new ResizeObserver(() => { this.drawn = ""; this.draw(this.now); }).observe(this.figures);
    }

    use(id, tables) {
      for (const chart of this.charts.values()) chart.close();
      this.charts.clear();
      this.figures.replaceChildren();
      Object.assign(this, { id, tables, other: null, otherId: "", drawn: "" });
      this.compare.value = "";
    }

    /** Offer these experiments for comparison. */
    offer(experiments) {
      const chosen = this.compare.value;
      const others = experiments.filter(({ id }) => id !== this.id);
      this.compare.replaceChildren(node("option", { value: "" }, "nothing"),
        ...others.map(({ id, name }) => node("option", { value: id }, name && name !== id ? `${name} (${id})` : id)));
      this.compare.value = chosen;
      this.compare.parentNode.hidden = !others.length;
    }

    _turn(axis) {
      this.axis = axis;
      this.drawn = "";
      this.draw(this.now);
    }

    async _compare(id) {
      Object.assign(this, { otherId: id, other: null, drawn: "" });
      say(this.note, id ? "Reading…" : "");
      try {
        const tables = new downpour.Tables();
        for (const frame of id ? await this.source.frames(id) : []) tables.take(frame);
        if (this.otherId !== id) return;
        this.other = id ? tables : null;
        say(this.note, "");
      } catch (error) {
        say(this.note, `Cannot read it: ${error.message}`);
      }
      this.draw(this.now);
    }

    recolour() {
      this.drawn = "";
      this.draw(this.now);
    }

    draw(now) {
      this.now = now;
      if (!this.tables || !this.tables.experiment) return;
      const measured = [...this.tables.evaluations.values()].filter(({ at }) => at <= now).length;
      const versions = [...this.tables.versions.values()].filter(({ at }) => at <= now).length;
      const key = `${measured}/${versions}/${this.axis}/${Boolean(this.other)}`;
      if (key === this.drawn) return;
      this.drawn = key;
      this.empty.hidden = measured + versions > 0;
      this.figures.hidden = !this.empty.hidden;
      const told = this.tables.experiment;
      const metrics = (told.metrics || []).filter(({ name }) => name !== "loss");
      const colours = downpour.pageColours();
      for (const metric of [...metrics, LOSS]) this._chart(metric).draw(this._curves(metric, now), this.axis, colours);
      this._classes(now);
    }

    _chart(metric) {
      if (!this.charts.has(metric.name)) {
        const chart = new downpour.Chart(metric.words || metric.name, metric);
        this.charts.set(metric.name, chart);
        this.figures.append(chart.element);
      }
      return this.charts.get(metric.name);
    }

    _curves(metric, now) {
      const own = downpour.curvesOf(this.tables, metric, now);
      if (!this.other) return own;
      const name = this.other.experiment ? this.other.experiment.name : this.otherId;
      const theirs = downpour.curvesOf(this.other, metric, Infinity);
      return [...own, ...theirs.map(({ label, points }) => ({ label: `${label} · ${name}`, points, isOther: true }))];
    }

    /** Show how good the model is at each class: a bar a class, worst ones to be found at a glance. */
    _classes(now) {
      const known = [...this.tables.evaluations.values()].filter(({ at, classes }) => at <= now && classes && classes.length);
      const last = known[known.length - 1];
      this.classes.hidden = !last;
      if (!last) return;
      const names = (this.tables.experiment || {}).classes || [];
      const rows = last.classes.map((value, place) => [String(names[place] ?? place), barOf(value), words.percent(value)]);
      const columns = [{ title: "class", text: true }, { title: "bar", text: true }, { title: "accuracy" }];
      this.classes.replaceChildren(node("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of accuracy by class" },
        downpour.table(`Accuracy by class after round ${last.round} (${last.part})`, columns, rows)));
    }
  }

  function barOf(share) {
    const fill = node("i");
    fill.style.width = `${100 * Math.max(0, Math.min(1, share || 0))}%`;
    return node("span", { class: "bar", "aria-hidden": "true" }, fill);
  }

  /** The classes that each shard holds: darker cells hold more. */
  class Splits {
    constructor(root, source) {
      Object.assign(this, { root, source, id: "" });
      this.place = node("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Classes of each shard" });
      this.more = node("button", { type: "button", class: "more", onclick: () => this._fill(this.splits, Infinity) }, "Show all shards");
      root.append(this.place, this.more);
    }

    use(id) {
      this.root.hidden = true;
      this.id = id;
      this.asked = false;
    }

    /** Ask for them once, if the record has any: a question in vain is an error in a browser's log. */
    async offer(areThere) {
      if (!areThere || this.asked) return;
      this.asked = true;
      const { id } = this;
      let splits = null;
      try {
        splits = await this.source.splits(id);
      } catch { /* the stream says what is wrong with the server */ }
      if (this.id !== id || !splits || !splits.shards.length) return;
      this.splits = splits;
      this.root.hidden = false;
      this._fill(splits, SHARDS_MOST);
    }

    _fill({ classes, shards }, most) {
      const top = Math.max(1, ...shards.map((row) => Math.max(...row)));
      const columns = [{ title: "shard" }, ...classes.map((title) => ({ title: String(title) })), { title: "all" }];
      const sum = (row) => words.number(row.reduce((one, other) => one + other, 0));
      const rows = shards.slice(0, most).map((row, shard) => [shard, ...row.map((value) => cellOf(value, top)), sum(row)]);
      const made = downpour.table("Examples of each class in each shard", columns, rows);
      made.classList.add("heat");
      this.place.replaceChildren(made);
      this.more.hidden = shards.length <= most;
      say(this.more, `Show all ${shards.length} shards`);
    }
  }

  function cellOf(value, most) {
    const cell = node("span", { class: "cell" }, words.number(value));
    cell.style.setProperty("--share", `${Math.round(80 * value / most)}%`);
    cell.classList.toggle("none", value === 0);
    return cell;
  }

  Object.assign(downpour, { Results, Splits });
})(window.downpour = window.downpour || {});
