"use strict";
/**
 * The part of a timeline that is on show: seconds from `from` to `to`, rows from `top` on.
 *
 * Nothing here draws. `follow` keeps the present at the right edge until somebody moves the view.
 */
(function (downpour) {
  const LEAST_SECONDS = 0.02;
  const ROW_MOST = 26;
  const ROW_LEAST = 0.4;
  const MARGIN = 0.04;

  class View {
    constructor() {
      this.from = 0;
      this.to = 60;
      this.top = 0;
      this.rowHeight = ROW_MOST;
      this.follow = true;
      this.whole = true;
      this.width = 600;
      this.height = 300;
      this.rows = 0;
      this.start = 0;
      this.end = 60;
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

  downpour.View = View;
})(window.downpour = window.downpour || {});
