"use strict";
/** The timeline under the pointer: wheel, pointers and keys move it, point at tasks and open them; the tooltip and the key. */
(function (downpour) {
  const { words, node, say, ENDS } = downpour;
  const KEY = [
    ["odd", "trained, odd rounds"], ["even", "even rounds"], ["open", "still trains, forecast ahead"],
    ["last", "its round waited for it"], ["moved", "went on elsewhere"], ["stopped", "not needed any more"],
    ["failed", "failed"], ["wait", "waits"], ["version", "new model version"],
    ["disturb", "slowed or killed on purpose"],
  ];

  /** Return the key: a sample and words for each look of a bar. */
  function legend() {
    return KEY.map(([look, text]) => node("li", {}, node("i", { class: `look ${look}`, "aria-hidden": "true" }), text));
  }

  class Tip {
    constructor(element, timeline) {
      Object.assign(this, { element, timeline, shown: -1 });
    }

    /** Show what is known of an attempt, and of what lies across it, beside a place of the canvas; -1 is no attempt. */
    show(i, x, y) {
      const across = this.timeline.disturbancesAt(x, y).map(({ at, text }) => `${words.moment(at, 0.1)} ${text}`);
      this.element.hidden = i < 0 && !across.length;
      this.timeline.canvas.classList.toggle("pointing", i >= 0);
      if (this.element.hidden) return;
      const [title, ...lines] = [...across, ...(i < 0 ? [] : this.lines(i))];
      const parts = [node("strong", {}, title), ...lines.map((line) => node("span", {}, line))];
      if (i !== this.shown || this.element.childElementCount !== parts.length) this.element.replaceChildren(...parts);
      else parts.forEach((part, place) => say(this.element.children[place], part.textContent));
      this.shown = i;
      const { wide } = this.timeline.size;
      const left = Math.max(4, Math.min(x + 14, wide - this.element.offsetWidth - 4));
      const above = y + 18 + this.element.offsetHeight > this.timeline.size.high;
      this.element.style.transform = `translate(${left}px, ${above ? y - this.element.offsetHeight - 12 : y + 18}px)`;
    }

    /** Say what is known of an attempt, in lines. */
    lines(i) {
      const { tables, now } = this.timeline;
      const all = tables.attempts;
      const outcome = tables.outcomeAt(i, now);
      const took = (outcome === "open" ? now : all.end[i]) - all.begin[i];
      const lines = [`Round ${all.round[i]}, shard ${all.shard[i]}`, `${tables.workerName(all.worker[i])}, attempt ${all.attempt[i]}`,
        `${ENDS[outcome]} · ${words.seconds(took)} from ${words.moment(all.begin[i], 0.1)}`];
      if (downpour.isCopy(tables, i)) lines.push("a copy: the first update counts");
      else if (all.fromStep[i] > 0) lines.push(`went on from step ${all.fromStep[i]}`);
      if (all.q50[i] > 0) lines.push(`forecast ${words.forecast(all, i)}`);
      return lines;
    }
  }

  const ZOOM_STEP = 1.35;
  const CLICK_PIXELS = 5;

  class Gestures {
    /**
     * @param {downpour.Timeline} timeline
     * @param {{changed: function(), point: function(number, number, number), open: function(number)}} listener
     *   `point(i, x, y)` names the attempt below the pointer, -1 for none; `open(i)` was clicked
     */
    constructor(timeline, listener) {
      Object.assign(this, { timeline, listener, pointers: new Map(), moved: 0, spread: null });
      const { canvas } = timeline;
      canvas.addEventListener("wheel", (event) => this._wheel(event), { passive: false });
      canvas.addEventListener("pointerdown", (event) => this._down(event));
      canvas.addEventListener("pointermove", (event) => this._move(event));
      canvas.addEventListener("pointerup", (event) => this._up(event));
      canvas.addEventListener("pointercancel", (event) => this._lose(event));
      canvas.addEventListener("pointerleave", () => listener.point(-1, 0, 0));
      canvas.addEventListener("keydown", (event) => this._key(event));
    }

    _place(event) {
      const box = this.timeline.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    }

    _moment(x) { return this.timeline.view.moment(x - this.timeline.gutter); }

    /** The wheel zooms into time; with Shift it moves along it, with Ctrl or Alt rows grow. */
    _wheel(event) {
      event.preventDefault();
      const { view } = this.timeline;
      const [x, y] = this._place(event);
      const lines = event.deltaMode === 1 ? 16 : 1;
      const [dx, dy] = [event.deltaX * lines, event.deltaY * lines];
      if (event.shiftKey || Math.abs(dx) > Math.abs(dy)) view.pan(dx || dy, 0);
      else if (event.altKey) view.zoomRows(Math.exp(-dy / 300), y - downpour.AXIS);
      else if (x < this.timeline.gutter) view.pan(0, dy);
      else view.zoom(Math.exp(dy / 300), this._moment(x));
      this.listener.changed();
    }

    _down(event) {
      this.timeline.canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, this._place(event));
      this.moved = this.pointers.size > 1 ? Infinity : 0;
      this.spread = null;
    }

    _move(event) {
      const place = this._place(event);
      const before = this.pointers.get(event.pointerId);
      if (!before) {
        this.listener.point(this.timeline.hit(...place), ...place);
        return;
      }
      this.pointers.set(event.pointerId, place);
      if (this.pointers.size === 2) this._pinch();
      else {
        const [dx, dy] = [before[0] - place[0], before[1] - place[1]];
        this.moved += Math.abs(dx) + Math.abs(dy);
        if (this.moved > CLICK_PIXELS) this.timeline.view.pan(dx, dy);
      }
      this.listener.changed();
    }

    /** Two fingers: across they zoom into time, up and down they make rows higher. */
    _pinch() {
      const [[x0, y0], [x1, y1]] = [...this.pointers.values()];
      const spread = [Math.max(30, Math.abs(x0 - x1)), Math.max(30, Math.abs(y0 - y1))];
      if (this.spread) {
        const { view } = this.timeline;
        view.zoom(this.spread[0] / spread[0], this._moment((x0 + x1) / 2));
        if (Math.abs(y0 - y1) > 60) {
          view.zoomRows(spread[1] / this.spread[1], (y0 + y1) / 2 - downpour.AXIS);
        }
      }
      this.spread = spread;
    }

    _up(event) {
      const clicked = this.pointers.size === 1 && this.moved <= CLICK_PIXELS;
      this._lose(event);
      if (!clicked) return;
      const i = this.timeline.hit(...this._place(event));
      if (i >= 0) this.listener.open(i);
    }

    _lose(event) {
      this.pointers.delete(event.pointerId);
      this.spread = null;
    }

    _key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const action = event.shiftKey && event.key.startsWith("Arrow") ? () => this._step(event.key) : this._action(event.key);
      if (!action) return;
      event.preventDefault();
      action();
      this.listener.changed();
    }

    _action(key) {
      const { view, cursor } = this.timeline;
      const middle = view.follow ? view.end : (view.from + view.to) / 2;
      const [across, down] = [view.width / 8, Math.max(26, view.height / 8)];
      return {
        "+": () => view.zoom(1 / ZOOM_STEP, middle), "=": () => view.zoom(1 / ZOOM_STEP, middle),
        "-": () => view.zoom(ZOOM_STEP, middle),
        ">": () => view.zoomRows(ZOOM_STEP, 0), "<": () => view.zoomRows(1 / ZOOM_STEP, 0),
        ArrowLeft: () => view.pan(-across, 0), ArrowRight: () => view.pan(across, 0),
        ArrowUp: () => view.pan(0, -down), ArrowDown: () => view.pan(0, down),
        Home: () => view.pan(-1e9, 0), End: () => this.listener.follow(), f: () => this.listener.follow(),
        0: () => view.showAll(), n: () => this._step("ArrowRight"), p: () => this._step("ArrowLeft"),
        Enter: cursor >= 0 ? () => this.listener.open(cursor) : null,
      }[key];
    }

    /** Point at the next task of a worker, or at one of the next worker at the same time. */
    _step(key) {
      const { timeline } = this;
      const { tables, order, rank, now } = timeline;
      const next = timeline.cursor < 0 ? this._first() : this._beside(key);
      if (next === undefined || next < 0 || tables.attempts.begin[next] > now) return;
      timeline.reveal(next);
      this.listener.pointed(next, rank[tables.attempts.worker[next]], order.length);
    }

    _first() {
      const { tables, order, now } = this.timeline;
      const row = tables.rows[order[0]] || [];
      return row[tables.placeAt(row, now)];
    }

    _beside(key) {
      const { tables, order, rank, cursor } = this.timeline;
      const { begin, worker } = tables.attempts;
      const own = tables.rows[worker[cursor]];
      if (key === "ArrowLeft" || key === "ArrowRight") {
        return own[own.indexOf(cursor) + (key === "ArrowRight" ? 1 : -1)];
      }
      const way = key === "ArrowDown" ? 1 : -1;
      for (let row = rank[worker[cursor]] + way; row >= 0 && row < order.length; row += way) {
        const other = tables.rows[order[row]] || [];
        if (other.length) return other[Math.max(0, tables.placeAt(other, begin[cursor] + 0.001))];
      }
      return -1;
    }
  }

  Object.assign(downpour, { Tip, legend, Gestures });
})(window.downpour = window.downpour || {});
