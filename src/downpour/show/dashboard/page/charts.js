"use strict";
/** Curves of one measure: uPlot in the colours of the page, one axis of three, runs side by side. */
(function (downpour) {
  const { words, node } = downpour;
  const HEIGHT = 220;
  const DASH = [6, 4];
  const POINTS_MOST = 2000;
  const COLOURS = ["series-1", "series-2", "series-3", "series-4"];
  const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000];
  const OF_CLOCK = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 604800];
  const AXES = {
    epoch: { title: "epoch", value: (point) => point.epoch, text: (value) => tick(value), incrs: WHOLE },
    second: { title: "time", value: (point) => point.seconds, text: (value) => words.moment(value), incrs: OF_CLOCK },
    byte: { title: "bytes exchanged", value: (point) => point.bytes, text: (value) => words.bytes(value) },
  };

  /** Return how many epochs of the whole training have ended after some rounds. */
  function epochsAt(told, round) {
    return ((told.rounds_before || 0) + round) / (told.rounds_per_epoch || 1);
  }

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

  /** Write a number beside an axis, without zeros that say nothing. */
  function tick(value) {
    return String(Number(value.toPrecision(6)));
  }

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
        width, height: HEIGHT, scales: { x: { time: false } }, cursor: { y: false, points: { size: 7 } },
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

    close() {
      if (this.plot) this.plot.destroy();
      this.plot = null;
    }
  }

  Object.assign(downpour, { Chart, curvesOf, epochsAt, valueOf, AXES });
})(window.downpour = window.downpour || {});
