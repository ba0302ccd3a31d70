"use strict";
/**
 * The part of a timeline that is on show, and its bars as pixels, a scan line a row.
 *
 * The view says which seconds and rows are on show; `follow` keeps the present at the right edge until
 * somebody moves it.
 *
 * A canvas call for each of 100,000 bars takes a second where no graphics card helps. Here a bar is
 * one `fill` of a typed array: the first line of a row is painted, and the others are copies of it.
 * Bars below a pixel merge by themselves, and what is rare (a failure, a hand-over) is painted last,
 * so that a thousand common bars never hide it.
 */
(function (downpour) {
  const { OUTCOMES } = downpour;
  const LEAST_SECONDS = 0.02;
  const ROW_MOST = 26;
  const ROW_LEAST = 0.4;
  const MARGIN = 0.04;

  class View {
    constructor() {
      Object.assign(this, { start: 0, end: 60, from: 0, to: 60, follow: true, whole: true });
      Object.assign(this, { rows: 0, top: 0, rowHeight: ROW_MOST, width: 600, height: 300 });
    }

    get scale() { return this.width / (this.to - this.from); }
    x(moment) { return (moment - this.from) * this.scale; }
    moment(x) { return this.from + x / this.scale; }
    y(row) { return (row - this.top) * this.rowHeight; }
    row(y) { return Math.floor(this.top + y / this.rowHeight); }

    /** Say how much there is to see: seconds, rows, and pixels to show them in. */
    fit(start, end, rows, width, height) {
      const rowsFit = this.rows === 0 || this.rowHeight * this.rows <= this.height + 1;
      Object.assign(this, { start, end: Math.max(end, start + 1), rows, width, height });
      if (rowsFit || this.rowHeight * rows < height) this._fitRows();
      if (this.follow) this._followEnd();
      this._clamp();
    }

    _fitRows() {
      this.rowHeight = Math.min(ROW_MOST, this.height / Math.max(1, this.rows));
      this.top = 0;
    }

    _followEnd() {
      const span = this.whole ? this.end - this.start : this.to - this.from;
      this.to = this.end + MARGIN * span;
      this.from = this.whole ? this.start : this.to - span;
    }

    /** Show everything, and go on following the end. */
    showAll() {
      this.whole = this.follow = true;
      this._fitRows();
      this._followEnd();
      this._clamp();
    }

    /** Zoom into time around a moment; a factor below 1 shows less. */
    zoom(factor, around) {
      const span = Math.max(LEAST_SECONDS, (this.to - this.from) * factor);
      const shown = (around - this.from) / (this.to - this.from);
      this.whole = false;
      this.follow = this.follow && around >= this.end;
      this.from = around - shown * span;
      this.to = this.from + span;
      if (this.follow) this._followEnd();
      this._clamp();
    }

    /** Make rows higher or lower around a place on the canvas, `y` pixels below its top. */
    zoomRows(factor, y) {
      const row = this.top + y / this.rowHeight;
      const whole = this.height / Math.max(1, this.rows);
      this.rowHeight = Math.min(Math.max(ROW_MOST, whole), Math.max(whole, this.rowHeight * factor, ROW_LEAST));
      this.top = row - y / this.rowHeight;
      this._clamp();
    }

    /** Move by pixels. */
    pan(dx, dy) {
      const moved = dx / this.scale;
      if (moved) this.follow = this.whole = false;
      this.from += moved;
      this.to += moved;
      this.top += dy / this.rowHeight;
      this._clamp();
    }

    /** Show a span of time and a row, with something around them. */
    show(begin, end, row) {
      const span = Math.max(end - begin, LEAST_SECONDS);
      const wanted = Math.max(8 * span, 60 / this.scale);
      if (begin < this.from || end > this.to || span * this.scale < 40) {
        this.from = (begin + end - wanted) / 2;
        this.to = this.from + wanted;
      }
      this.follow = this.whole = false;
      if (this.rowHeight < 12) this.rowHeight = 18;
      if (this.y(row) < 0 || this.y(row + 1) > this.height) {
        this.top = row - this.height / this.rowHeight / 2;
      }
      this._clamp();
    }

    /** Keep what is shown near what there is. */
    _clamp() {
      const most = (this.end - this.start) * (1 + 2 * MARGIN);
      const span = Math.min(this.to - this.from, most);
      this.from = Math.min(this.from, this.end + 0.5 * span - span);
      this.from = Math.max(this.from, this.start - MARGIN * span);
      this.to = this.from + span;
      const spare = Math.max(0, this.rows - this.height / this.rowHeight);
      this.top = Math.min(Math.max(0, this.top), spare);
    }
  }

  const [LAST, MOVED, STOPPED, FAILED] = ["last", "moved", "stopped", "failed"].map((name) => OUTCOMES.indexOf(name));
  const LABEL_WIDTH = 15;
  const LABEL_HEIGHT = 11;
  const DETAIL_HEIGHT = 7;
  const DETAILS_MOST = 600;

  /** Write a colour of CSS (#rrggbb) as a pixel. `part` of 1 is all of it, 0 all `paper`. */
  function pixel(colour, paper = colour, part = 1) {
    const channels = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
    const [ours, others] = [channels(colour), channels(paper)];
    const [r, g, b] = ours.map((value, at) => Math.round(value * part + others[at] * (1 - part)));
    return (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  }

  /** Make pixels of the colours of a page. @param {Object<string, string>} colours */
  function paletteOf(colours) {
    const [odd, even, paper] = [colours["series-1"], colours["series-6"], colours.paper];
    return {
      paper: pixel(paper), wait: pixel(colours.shade, paper, 0.75), version: pixel(colours.line),
      trained: [pixel(even), pixel(odd)], open: [pixel(even, paper, 0.62), pixel(odd, paper, 0.62)],
      ahead: [pixel(even, paper, 0.22), pixel(odd, paper, 0.22)],
      [LAST]: pixel(colours["series-2"]), [STOPPED]: pixel(colours.muted, paper, 0.8),
      [FAILED]: pixel(colours.failure),
    };
  }

  class Painter {
    constructor() {
      Object.assign(this, { image: null, width: 0, height: 0 });
    }

    /**
     * Paint what the view shows at a moment.
     * @param {object} scene tables, order (row → worker), view, now, palette, ratio (device pixels a pixel)
     * @returns what is wide enough to be drawn upon: {labels, details}, lists of {i, x, y, width, height}
     */
    paint(scene) {
      const { view, ratio } = scene;
      this._resize(Math.max(1, Math.round(view.width * ratio)), Math.max(1, Math.round(view.height * ratio)));
      const shown = { labels: [], details: [] };
      const empty = this._empty(scene);
      for (let at = 0; at < this.height; at += 1) this.pixels.set(empty, at * this.width);
      const first = Math.max(0, Math.floor(view.top));
      const beyond = Math.min(view.rows, Math.ceil(view.top + view.height / view.rowHeight));
      let before = -1;
      for (let row = first; row < beyond; row += 1) {
        const y = Math.max(0, Math.round(view.y(row) * ratio));
        if (y >= this.height) break;
        if (y !== before) this.line.set(empty);
        before = y;
        this._row(scene, row, y, shown);
      }
      return shown;
    }

    _resize(width, height) {
      if (this.image && width === this.width && height === this.height) return;
      Object.assign(this, { width, height, image: new ImageData(width, height) });
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.line = new Uint32Array(width);
      this.rare = [];
    }

    /** Return a line without bars: paper, and where each version was made. */
    _empty({ tables, view, palette, ratio, now }) {
      const line = new Uint32Array(this.width).fill(palette.paper);
      const scale = view.scale * ratio;
      let before = -Infinity;
      for (const { at } of tables.versions.values()) {
        const x = Math.round((at - view.from) * scale);
        if (at > now || x < 0 || x >= this.width || x - before < 5 * ratio) continue;
        line[x] = palette.version;
        before = x;
      }
      return line;
    }

    _row(scene, row, y, shown) {
      const { tables, order, view, ratio } = scene;
      const tall = view.rowHeight * ratio;
      const gap = tall >= 8 ? Math.round(tall * 0.22) : tall >= 3 ? 1 : 0;
      const bottom = Math.min(this.height, Math.max(y + 1, Math.round(view.y(row + 1) * ratio) - gap));
      const own = tables.rows[order[row]];
      if (own) this._bars(scene, own, { y, bottom, tall: view.rowHeight }, shown);
      for (let at = y; at < bottom; at += 1) this.pixels.set(this.line, at * this.width);
      if (view.rowHeight >= DETAIL_HEIGHT) {
        if (own) this._waits(scene, order[row], own, (y + bottom) >> 1);
        for (const bar of this.rare) this._hatch(scene, bar, y, bottom);
      }
      this.rare.length = 0;
    }

    /** Paint the bars of a worker into the line: common ones first, then rare ones over them. */
    _bars(scene, own, place, shown) {
      const { tables: { attempts: all }, view, now, palette, ratio } = scene;
      const [line, scale, width] = [this.line, view.scale * ratio, this.width];
      const rare = this.rare;
      let at = Math.max(0, scene.tables.placeAt(own, view.from) - 1);
      for (; at < own.length; at += 1) {
        const i = own[at];
        const begin = all.begin[i];
        if (begin > view.to || begin > now) break;
        const end = all.end[i];
        const open = !(end <= now);
        const x = Math.max(0, Math.round((begin - view.from) * scale));
        let beyond = Math.min(width, Math.round(((open ? now : end) - view.from) * scale));
        if (beyond < x || x >= width) continue;
        if (beyond === x) beyond = x + 1;
        const outcome = open ? 0 : all.outcome[i];
        const odd = all.round[i] & 1;
        if (outcome > 1) rare.push({ i, x, beyond, outcome, odd });
        else if (beyond - x < 3) {
          for (let column = x; column < beyond; column += 1) line[column] = (open ? palette.open : palette.trained)[odd];
        } else {
          line.fill((open ? palette.open : palette.trained)[odd], x, beyond);
          if (x > 0 && beyond - x > 5 * ratio) line[x] = palette.paper;
        }
        if (open) this._ahead(scene, i, beyond, odd);
        this._noteBar(scene, i, x, beyond, place, outcome, shown);
      }
      for (const { x, beyond, outcome, odd } of rare) {
        const colour = outcome === MOVED ? palette.trained[odd] : palette[outcome];
        line.fill(colour, x, Math.max(beyond, Math.min(width, x + Math.ceil(ratio))));
        if (x > 0 && beyond - x > 5 * ratio) line[x] = palette.paper;
      }
    }

    /** Paint what is forecast: up to the median in one piece, from there to the 90 % quantile striped. */
    _ahead({ tables: { attempts: all }, view, now, palette, ratio }, i, x, odd) {
      const begin = all.begin[i];
      if (Number.isNaN(all.q50[i]) || begin + all.forecastAt[i] > now + 0.001) return;
      const scale = view.scale * ratio;
      const [middle, late] = [all.q50[i], all.q90[i]].map((quantile) =>
        Math.min(this.width, Math.round((begin + quantile - view.from) * scale)));
      if (middle > x) this.line.fill(palette.ahead[odd], x, middle);
      const step = Math.max(2, Math.round(3 * ratio));
      for (let column = Math.max(x, middle); column < late; column += 1) {
        if (column % step < step / 2) this.line[column] = palette.ahead[odd];
      }
    }

    _noteBar({ view, ratio, tables: { attempts: all } }, i, x, beyond, { y, bottom, tall }, outcome, shown) {
      if (tall < DETAIL_HEIGHT) return;
      const bar = { i, outcome, x: x / ratio, y: y / ratio, width: (beyond - x) / ratio, height: (bottom - y) / ratio };
      if (bar.width >= LABEL_WIDTH && tall >= LABEL_HEIGHT) shown.labels.push(bar);
      const special = outcome === FAILED || outcome === 0 || all.previous[i] >= 0 || all.next[i] >= 0;
      if (special && shown.details.length < DETAILS_MOST) shown.details.push(bar);
    }

    /** Draw a thin line where a worker was there and had nothing to train. */
    _waits({ tables, view, now, palette, ratio }, worker, own, y) {
      const { attempts: all } = tables;
      const known = tables.workers[worker] || {};
      const scale = view.scale * ratio;
      const gone = known.left === null || known.left === undefined ? now : Math.min(now, known.left);
      let at = Math.max(0, tables.placeAt(own, view.from) - 1);
      let since = at === 0 ? (known.joined || 0) : all.begin[own[at]];
      const draw = (from, to) => {
        const [x, beyond] = [from, to].map((moment) => Math.min(this.width, Math.max(0, Math.round((moment - view.from) * scale))));
        if (beyond - x > 2 * ratio) this.pixels.fill(palette.wait, y * this.width + x, y * this.width + beyond);
      };
      for (; at < own.length && all.begin[own[at]] <= Math.min(now, view.to); at += 1) {
        draw(since, all.begin[own[at]]);
        const end = all.end[own[at]];
        since = Math.max(since, end <= now ? end : Infinity);
      }
      if (since < gone) draw(since, at < own.length ? Math.min(gone, all.begin[own[at]]) : gone);
    }

    /** Give a bar its pattern: moved slants, stopped is dotted, failed slants the other way. */
    _hatch({ palette, ratio }, { x, beyond, outcome }, y, bottom) {
      if (outcome === LAST) return;
      const period = Math.round(6 * ratio);
      const thick = Math.max(1, Math.round(1.2 * ratio));
      for (let row = y; row < bottom; row += 1) {
        for (let column = x; column < beyond; column += 1) {
          const on = outcome === MOVED ? (column + row) % period < thick
            : outcome === FAILED ? (column - row + 100 * period) % period < thick
              : column % Math.round(4 * ratio) < thick && row % Math.round(4 * ratio) < thick;
          if (on) this.pixels[row * this.width + column] = palette.paper;
        }
      }
    }
  }

  Object.assign(downpour, { View, Painter, paletteOf });
})(window.downpour = window.downpour || {});
