"use strict";
/**
 * The timeline: one canvas that shows who trained what and when.
 *
 * `draw(now)` takes time as a parameter: a run that goes on, one that has ended and a replay are
 * drawn by the same code. The bars are pixels (painting.js); letters, arrows and axes lie on top.
 */
(function (downpour) {
  const { words } = downpour;
  /** Draw it for these bars; the canvas is moved to the corner of the plot. */
  function drawDetails(timeline, bars) {
    for (const bar of bars) {
      if (bar.outcome === 0) drawForecast(timeline, bar);
      if (bar.outcome === 5) drawFailure(timeline, bar);
      drawLink(timeline, bar);
    }
    drawSelection(timeline);
  }

  /** Draw straight lines, each [x0, y0, x1, y1], in one colour. */
  function stroke(context, colour, wide, ...lines) {
    Object.assign(context, { strokeStyle: colour, lineWidth: wide });
    context.beginPath();
    for (const [x0, y0, x1, y1] of lines) {
      context.moveTo(x0, y0);
      context.lineTo(x1, y1);
    }
    context.stroke();
  }

  /** Draw the interval in which the end is expected: a line from the 10 to the 90 % quantile. */
  function drawForecast({ context, colours, view, now, tables: { attempts: all } }, { i, y, height }) {
    const begin = all.begin[i];
    if (!(all.q50[i] > 0) || height < 8 || begin + all.forecastAt[i] > now + 0.001) return;
    const [low, middle, high] = [all.q10[i], all.q50[i], all.q90[i]].map((value) => view.x(begin + value));
    const centre = Math.round(y + height / 2) + 0.5;
    const ends = [low, high].map((x) => [x, centre - 3, x, centre + 3]);
    stroke(context, colours.muted, 1, [low, centre, high, centre], ...ends);
    context.fillStyle = colours.muted;
    context.fillRect(Math.round(middle) - 1, centre - 4, 2, 8);
  }

  /** Cross out the end of an attempt that failed. */
  function drawFailure({ context, colours }, { x, y, width, height }) {
    const [left, centre, arm] = [x + width + 2, y + height / 2, Math.min(4, height / 3)];
    stroke(context, colours.failure, 2, ...[-arm, arm].map((up) => [left, centre + up, left + 2 * arm, centre - up]));
  }

  /** Draw the arrow from the attempt before: solid if it went on with that work, dashed for a copy. */
  function drawLink({ context, colours, view, rank, tables, now }, { i, x, y, width, height }) {
    const all = tables.attempts;
    const earlier = all.previous[i];
    if (earlier < 0) return;
    const copy = isCopy(tables, i);
    if (copy) {
      context.setLineDash([3, 2]);
      context.strokeStyle = colours.ink;
      context.lineWidth = 1;
      context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    }
    const from = copy ? all.begin[i] : Math.min(all.end[earlier], now);
    const start = [view.x(from), view.y(rank[all.worker[earlier]]) + height / 2];
    arrow(context, colours, start, [Math.max(0, view.x(all.begin[i])), y + height / 2], Math.min(1, width / 14));
    context.setLineDash([]);
  }

  /** Say whether an attempt copies another one that still went on, rather than continuing it. */
  function isCopy(tables, i) {
    const all = tables.attempts;
    const earlier = all.previous[i];
    if (earlier < 0) return false;
    const ended = all.end[earlier];
    const given = downpour.OUTCOMES[all.outcome[earlier]] === "moved";
    return !given && !(ended <= all.begin[i]);
  }

  /** Mark when somebody slowed or killed a process on purpose: dashed lines through all rows. */
  function drawDisturbances({ context, colours, view, tables, now }) {
    let before = -Infinity;
    for (const { at } of tables.disturbances.values()) {
      const x = Math.round(view.x(at)) + 0.5;
      if (at > now || x < 0 || x > view.width || x - before < 2) continue;
      stroke(context, colours.paper, 3, [x, -3, x, view.height]);
      context.setLineDash([5, 3]);
      stroke(context, colours.failure, 1.5, [x, -3, x, view.height]);
      context.setLineDash([]);
      before = x;
    }
  }

  /** Draw an arrow with a rim of paper, so that it stands out from bars; a small one beside small bars. */
  function arrow(context, colours, [x0, y0], [x1, y1], size) {
    const lean = Math.min(14, Math.max(6, Math.abs(x1 - x0) / 2));
    for (const [colour, wide] of [[colours.paper, 1 + 2.5 * size], [colours.ink, 0.7 + 0.7 * size]]) {
      context.strokeStyle = colour;
      context.lineWidth = wide;
      context.beginPath();
      context.moveTo(x0, y0);
      context.bezierCurveTo(x0 + lean, y0, x1 - lean, y1, x1, y1);
      context.stroke();
    }
    context.fillStyle = colours.ink;
    context.beginPath();
    context.moveTo(x1 + 3 * size, y1);
    context.lineTo(x1 - 4 * size, y1 - 3.5 * size);
    context.lineTo(x1 - 4 * size, y1 + 3.5 * size);
    context.fill();
  }

  /** Frame the attempts of the selected task, and the one that the keys or a decision point to. */
  function drawSelection({ context, colours, view, rank, tables, selected, cursor, now }) {
    const chosen = selected ? tables.attemptsOf(...selected) : [];
    for (const i of cursor >= 0 && !chosen.includes(cursor) ? [...chosen, cursor] : chosen) {
      const { begin, worker } = tables.attempts;
      const [x, y] = [view.x(begin[i]), view.y(rank[worker[i]])];
      const size = [Math.max(3, view.x(tables.endAt(i, now)) - x), Math.max(2, view.rowHeight * 0.78)];
      for (const [colour, wide] of [[colours.paper, 5], [i === cursor ? colours["series-2"] : colours.ink, 2]]) {
        Object.assign(context, { strokeStyle: colour, lineWidth: wide });
        context.strokeRect(x - 1, y - 1, size[0] + 2, size[1] + 2);
      }
    }
  }

  const AXIS = 38;
  const FOOT = 4;
  const HEIGHT_MOST = 560;
  const NEAR = 4;
  const DISTURBANCES_TOLD = 4;
  const STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800,
    3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];
  const COLOURS = ["paper", "ink", "muted", "line", "shade", "failure",
    "series-1", "series-2", "series-3", "series-4", "series-5", "series-6"];

  /** Read the page's colours; the dark ones where the page is dark. */
  function pageColours() {
    const style = getComputedStyle(document.documentElement);
    return Object.fromEntries(COLOURS.map((name) => {
      const colour = style.getPropertyValue(`--${name}`).trim();
      return [name, /^#[0-9a-f]{6}$/i.test(colour) ? colour : "#808080"];
    }));
  }

  class Timeline {
    /** @param {HTMLCanvasElement} canvas */
    constructor(canvas) {
      this.canvas = canvas;
      this.context = canvas.getContext("2d", { alpha: false });
      this.painter = new downpour.Painter();
      this.view = new downpour.View();
      this.tables = new downpour.Tables();
      Object.assign(this, { order: [], rank: [], longest: 0, selected: null, cursor: -1, frames: 0 });
      this.recolour();
    }

    recolour() {
      this.colours = pageColours();
      this.palette = downpour.paletteOf(this.colours);
    }

    /** Show these tables; the view begins anew if they are another experiment's. */
    use(tables) {
      if (tables !== this.tables) {
        Object.assign(this, { tables, view: new downpour.View(), selected: null, cursor: -1 });
      }
      this.reorder();
    }

    /** Give every worker its row, by name: worker-10 comes after worker-9. */
    reorder() {
      const collator = new Intl.Collator("en", { numeric: true });
      const names = this.tables.rows.map((_, worker) => this.tables.workerName(worker));
      this.order = [...names.keys()].sort((one, other) => collator.compare(names[one], names[other]));
      this.rank = [];
      this.order.forEach((worker, row) => { this.rank[worker] = row; });
      this.context.font = this._font(12);
      this.longest = names.reduce((most, name) => Math.max(most, name.length < 40 ? this.context.measureText(name).width : 300), 0);
    }

    /** Fit canvas and view to the page. Returns false while there is no room. */
    layout(now) {
      const wide = this.canvas.clientWidth;
      if (!wide) return false;
      this.ratio = Math.min(3, window.devicePixelRatio || 1);
      this.gutter = Math.round(Math.min(150, 0.24 * wide, Math.max(36, this.longest) + 10));
      const rows = Math.max(1, this.order.length);
      const most = Math.max(180, Math.min(HEIGHT_MOST, window.innerHeight * 0.62));
      const high = Math.round(Math.max(60, Math.min(most, rows * 26))) + AXIS + FOOT;
      this._size(wide, high);
      // A finger moves the page, unless there are rows to move.
      this.canvas.style.touchAction = this.view.rowHeight * rows > high - AXIS ? "none" : "pan-y";
      this.view.fit(downpour.beginOf(this.tables), this._horizon(now), rows, wide - this.gutter - 8, high - AXIS - FOOT);
      return true;
    }

    _size(wide, high) {
      const [width, height] = [Math.round(wide * this.ratio), Math.round(high * this.ratio)];
      if (this.canvas.width !== width || this.canvas.height !== height) {
        Object.assign(this.canvas, { width, height });
        this.canvas.style.height = `${high}px`;
      }
      this.size = { wide, high };
    }

    /** Return the last moment to show: now, and as far ahead as open tasks are forecast. */
    _horizon(now) {
      const { tables } = this;
      const { attempts: all } = tables;
      let latest = now;
      if (!tables.running && now >= tables.latest) return latest;
      for (let worker = 0; worker < tables.rows.length; worker += 1) {
        const i = tables.attemptAt(worker, now);
        if (i < 0 || !(all.q50[i] > 0)) continue;
        latest = Math.max(latest, Math.min(all.begin[i] + all.q90[i], now + 0.5 * (now - this.view.start)));
      }
      return latest;
    }

    draw(now) {
      if (!this.layout(now)) return;
      const { context, ratio, view, tables, order, palette } = this;
      this.now = now;
      this.frames += 1;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.fillStyle = this.colours.paper;
      context.fillRect(0, 0, this.size.wide, this.size.high);
      const shown = this.painter.paint({ tables, order, view, now, palette, ratio });
      context.putImageData(this.painter.image, Math.round(this.gutter * ratio), Math.round(AXIS * ratio));
      context.textBaseline = "middle";
      this._drawAxis();
      this._drawNames();
      context.save();
      context.beginPath();
      context.rect(this.gutter, 0, view.width, this.size.high);
      context.clip();
      this._drawVersions(now);
      context.translate(this.gutter, AXIS);
      this._drawLabels(shown.labels);
      drawDetails(this, shown.details);
      drawDisturbances(this);
      this._drawNow(now);
      context.restore();
      if (!tables.attempts.count) this._drawNothing();
    }

    _drawAxis() {
      const { context, view, colours } = this;
      const step = STEPS.find((one) => one * view.scale >= 68) || STEPS[STEPS.length - 1];
      context.font = this._font(11);
      context.textAlign = "center";
      for (let tick = Math.ceil(view.from / step) * step; tick <= view.to; tick += step) {
        const x = this.gutter + view.x(tick);
        const text = words.moment(Math.abs(tick) < step / 1000 ? 0 : tick, step);
        if (x < this.gutter + 14 || x > this.size.wide - 20) continue;
        context.fillStyle = colours.muted;
        context.fillText(text, x, 8);
        context.fillStyle = colours.line;
        context.fillRect(Math.round(x), 15, 1, 3);
      }
      context.fillStyle = colours.line;
      context.fillRect(this.gutter, AXIS - 4, view.width, 1);
    }

    _drawNames() {
      const { context, view, colours, order, tables } = this;
      const every = Math.max(1, Math.ceil(13 / view.rowHeight));
      const first = Math.floor(view.top / every) * every;
      context.font = this._font(Math.min(12, Math.max(10, view.rowHeight * 0.7)));
      context.textAlign = "right";
      for (let row = first; row < order.length; row += every) {
        const y = view.y(row) + Math.max(view.rowHeight, 1) * 0.42;
        if (y < 0 || y > view.height - 2) continue;
        const worker = tables.workers[order[row]];
        const gone = worker && !tables.isHere(worker, this.now);
        context.fillStyle = gone ? colours.muted : colours.ink;
        context.fillText(this._short(tables.workerName(order[row])), this.gutter - 8, AXIS + y);
      }
    }

    /** Shorten a name to the room on the left, in its middle: the number at its end tells workers apart. */
    _short(name) {
      const room = this.gutter - 9;
      if (this.context.measureText(name).width <= room) return name;
      let most = Math.min(name.length, 40);
      while (most > 3 && this.context.measureText(words.cut(name, most)).width > room) most -= 1;
      return words.cut(name, most);
    }

    _drawVersions(now) {
      const { context, view, colours } = this;
      let before = -Infinity;
      context.font = this._font(9.5);
      context.textAlign = "left";
      for (const { version, at } of this.tables.versions.values()) {
        const x = view.x(at);
        if (at > now || x < 0 || x > view.width || x - before < 34) continue;
        context.fillStyle = colours.muted;
        context.fillText(`v${version}`, this.gutter + x + 3, AXIS - 11);
        context.fillRect(Math.round(this.gutter + x), AXIS - 16, 1, 12);
        before = x;
      }
    }

    _drawLabels(labels) {
      const { context, colours, tables: { attempts: all } } = this;
      context.font = this._font(10.5);
      context.textAlign = "center";
      for (const bar of labels) {
        const text = String(all.shard[bar.i]);
        const wide = 6.2 * text.length;
        if (bar.width < wide + 6) continue;
        const [x, y] = [bar.x + bar.width / 2, bar.y + bar.height / 2 + 0.5];
        context.fillStyle = colours.ink;
        if (bar.outcome >= 3) {  // a pattern would cross the letters
          context.fillStyle = colours.paper;
          context.fillRect(x - wide / 2 - 2, bar.y + 2, wide + 4, bar.height - 4);
          context.fillStyle = colours.ink;
        } else if (bar.outcome) context.fillStyle = colours.paper;
        context.fillText(text, x, y);
      }
    }

    _drawNothing() {
      const { context, size, colours } = this;
      context.font = this._font(13);
      context.textAlign = "center";
      context.fillStyle = colours.muted;
      context.fillText("No worker has been given a task yet.", size.wide / 2, AXIS + (size.high - AXIS) / 2);
    }

    _drawNow(now) {
      const { context, view, colours } = this;
      if (!this.tables.running && now >= this.tables.latest) return;
      context.fillStyle = colours.ink;
      context.fillRect(Math.round(view.x(now)), -3, 1, view.height + 3);
    }

    _font(size) { return `${size}px system-ui, sans-serif`; }

    /** Return the attempt at a place of the canvas, or -1. */
    hit(x, y) {
      const [inside, down] = [x - this.gutter, y - AXIS];
      if (inside < 0 || down < 0 || down > this.view.height) return -1;
      const row = this.tables.rows[this.order[this.view.row(down)]];
      if (!row) return -1;
      const moment = Math.min(this.view.moment(inside), this.now);
      const slack = 3 / this.view.scale;
      const newest = this.tables.placeAt(row, moment + slack);
      // A long attempt may lie below a short one that began later.
      for (let at = newest; at >= Math.max(0, newest - 2); at -= 1) {
        if (!(this.tables.attempts.end[row[at]] < moment - slack)) return row[at];
      }
      return -1;
    }

    /** Return the first disturbances whose line passes a place of the canvas. */
    disturbancesAt(x, y) {
      const inside = x - this.gutter;
      if (inside < 0 || y < AXIS) return [];
      return [...this.tables.disturbances.values()].filter(({ at }) =>
        at <= this.now && Math.abs(this.view.x(at) - inside) <= NEAR).slice(0, DISTURBANCES_TOLD);
    }

    /** Scroll and zoom to an attempt. */
    reveal(i) {
      const { begin, worker } = this.tables.attempts;
      this.cursor = i;
      this.view.show(begin[i], this.tables.endAt(i, this.now), this.rank[worker[i]] || 0);
    }
  }

  Object.assign(downpour, { isCopy, Timeline, AXIS, pageColours });
})(window.downpour = window.downpour || {});
