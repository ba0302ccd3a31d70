"use strict";
/**
 * Results: curves of every measure, another experiment laid over them, classes, and who has which data.
 *
 * uPlot draws the curves in the colours of the page, along one of three axes, runs side by side.
 */
(function (downpour) {
  const { words, node, region, say, answered } = downpour;
  const HEIGHT = 220;
  const DASH = [6, 4];
  const POINTS_MOST = 2000;
  // The second colour of the others stands for what is late.
  const COLOURS = ["series-1", "series-6", "series-3", "series-4"];
  const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000];
  const OF_CLOCK = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 604800];
  const AXES = {
    epoch: { title: "epoch", value: (point) => point.epoch, text: (value) => tick(value), incrs: WHOLE },
    second: { title: "time", value: (point) => point.seconds, text: (value) => words.moment(value), incrs: OF_CLOCK },
    byte: { title: "bytes exchanged", value: (point) => point.bytes, text: (value) => words.bytes(value) },
  };

  /** Return how many epochs of the whole training have ended after some rounds. */
  function epochsAt(told, round) { return ((told.rounds_before || 0) + round) / (told.rounds_per_epoch || 1); }

  /** Return a value of an evaluation: the loss is a measure like the others. */
  function valueOf(evaluation, metric) {
    const value = metric.name === "loss" ? evaluation.loss : evaluation.metrics[metric.name];
    return value === undefined ? null : value;
  }

  /**
   * Return the curves of a measure in a run: a list of {label, points}, where a point has
   * {epoch, seconds, bytes, value}.
   */
  function curvesOf(tables, metric, now) {
    const told = tables.experiment || {};
    const begin = downpour.beginOf(tables);
    const parts = new Map();
    const bytes = new Map();
    const point = (row, sent, value) => ({ epoch: epochsAt(told, row.round), seconds: row.at - begin, bytes: sent, value });
    for (const row of tables.evaluations.values()) {
      if (row.at > now) continue;
      bytes.set(row.round, row.bytes);
      if (!parts.has(row.part)) parts.set(row.part, []);
      parts.get(row.part).push(point(row, row.bytes, valueOf(row, metric)));
    }
    if (metric.name === "loss") {
      const trained = [...tables.versions.values()].filter((row) => row.at <= now && row.loss !== null);
      if (trained.length) parts.set("training", trained.map((row) => point(row, bytes.get(row.round) ?? null, row.loss)));
    }
    return [...parts].map(([label, points]) => ({ label, points: thinned(points) }));
  }

  /** Keep every nth point, and the last one, where there are more than a screen has pixels. */
  function thinned(points) {
    const every = Math.ceil(points.length / POINTS_MOST);
    return every < 2 ? points : points.filter((_, place) => place % every === 0 || place === points.length - 1);
  }

  /** Leave a margin around shares, but none where no share can be. */
  function withinPercent(_, low, high) {
    if (low === null) return [0, 100];
    const margin = Math.max(1, 0.1 * (high - low));
    return [Math.max(0, low - margin), Math.min(100, high + margin)];
  }

  /** Write a number beside an axis, without zeros that say nothing. */
  function tick(value) { return String(Number(value.toPrecision(6))); }

  class Chart {
    constructor(title, metric) {
      Object.assign(this, { metric, plot: null, key: "" });
      this.place = node("div", { class: "plot" });
      this.element = node("figure", {}, node("figcaption", {}, title), this.place);
    }

    /**
     * Draw curves along an axis.
     * @param {{label: string, points: object[]}[]} curves
     * @param {string} axis epoch, second or byte
     */
    draw(curves, axis, colours) {
      const wide = this.place.clientWidth;
      if (!wide) return;
      const { value } = AXES[axis];
      const sets = curves.map(({ points }) => {
        const known = points.filter((point) => value(point) !== null && point.value !== null)
          .sort((one, other) => value(one) - value(other));
        return [known.map(value), known.map((point) => (this.metric.percent ? 100 : 1) * point.value)];
      });
      const data = sets.length ? uPlot.join(sets) : [[], []];
      const key = JSON.stringify([wide, axis, colours.ink, curves.map(({ label }) => label)]);
      if (key !== this.key || !this.plot) this._make(curves, axis, colours, wide, data);
      else this.plot.setData(data);
      this.last = data[0].length - 1;
      this._showLast();
      this.key = key;
      this._describe(curves);
    }

    _make(curves, axis, colours, width, data) {
      if (this.plot) this.plot.destroy();
      const grid = { stroke: colours.line, width: 1 };
      const ticks = { stroke: colours.muted, grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      const { percent } = this.metric;
      const number = (value) => (percent && value !== null && value !== undefined ? `${value.toFixed(2)} %` : words.number(value));
      const { text, title, incrs } = AXES[axis];
      this.plot = new uPlot({
        width, height: HEIGHT, scales: { x: { time: false }, y: percent ? { range: withinPercent } : {} }, cursor: { y: false, points: { size: 7 } },
        axes: [
          { ...ticks, size: 30, space: 60, incrs, values: (_, all) => all.map(text) },
          { ...ticks, size: 48, space: 30, values: (_, all) => all.map((value) => tick(value) + (percent ? " %" : "")) },
        ],
        hooks: { setCursor: [() => this._showLast()] },
        series: [{ label: title, value: (_, value) => (value === null ? "–" : text(value)) },
          ...curves.map(({ label, isOther }, place) => ({
            label, stroke: colours[COLOURS[place % COLOURS.length]], width: 2, dash: isOther ? DASH : [],
            spanGaps: true, value: (_, value) => number(value), points: { show: data[0].length < 40, size: 5 },
          }))],
      }, data.length > 1 ? data : [[], ...curves.map(() => [])], this.place);
    }

    /** Show the last values below the curves, unless somebody points at others. */
    _showLast() {
      const { plot, last } = this;
      if (plot && last >= 0 && (plot.cursor.idx === null || plot.cursor.idx === undefined)) plot.setLegend({ idx: last });
    }

    /** Say the last values to those who do not see the curves. */
    _describe(curves) {
      const said = curves.filter(({ points }) => points.length).map(({ label, points }) =>
        `${label}: ${words.measure(points[points.length - 1].value, this.metric)}`);
      this.place.setAttribute("role", "img");
      this.place.setAttribute("aria-label", `Last values: ${said.join("; ") || "none yet"}`);
    }

    close() { if (this.plot) this.plot.destroy(); }
  }

  const LOSS = { name: "loss", words: "loss", percent: false };
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
      new ResizeObserver(() => this.redraw()).observe(this.figures);
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
      this.redraw();
    }

    async _compare(id) {
      Object.assign(this, { otherId: id, other: null, drawn: "" });
      say(this.note, id ? "Reading…" : "");
      const [frames, trouble] = id ? await answered(this.source.frames(id), "it") : [null, ""];
      if (this.otherId !== id) return;
      say(this.note, trouble);
      if (frames) {
        this.other = new downpour.Tables();
        for (const frame of frames) this.other.take(frame);
      }
      this.draw(this.now);
    }

    redraw() {
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
        const chart = new Chart(metric.words || metric.name, metric);
        this.charts.set(metric.name, chart);
        this.figures.append(chart.element);
      }
      return this.charts.get(metric.name);
    }

    _curves(metric, now) {
      const own = curvesOf(this.tables, metric, now);
      if (!this.other) return own;
      const name = this.other.experiment ? this.other.experiment.name : this.otherId;
      const theirs = curvesOf(this.other, metric, Infinity);
      return [...own, ...theirs.map(({ label, points }) => ({ label: `${label} · ${name}`, points, isOther: true }))];
    }

    /** Show how good the model is at each class: a bar a class, worst ones to be found at a glance. */
    _classes(now) {
      const known = [...this.tables.evaluations.values()].filter(({ at, classes }) => at <= now && classes && classes.length);
      const last = known[known.length - 1];
      this.classes.hidden = !last;
      if (!last) return;
      const rows = last.classes.map((value, place) => [String(place), barOf(value), words.percent(value)]);
      const columns = [{ title: "class", text: true }, { title: "bar", text: true }, { title: "accuracy" }];
      this.classes.replaceChildren(region("Table of accuracy by class",
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
      this.place = region("Classes of each shard");
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
      const [splits] = await answered(this.source.splits(id), "splits");  // the stream tells the trouble
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

  Object.assign(downpour, { epochsAt, valueOf, Results, Splits });
})(window.downpour = window.downpour || {});
