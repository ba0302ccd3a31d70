"use strict";
/**
 * The time that the page shows: the present, or a moment of a replay.
 *
 * Every view draws for a moment that it is given, so replaying a run is moving this clock.
 */
(function (downpour) {
  const { words, node, say } = downpour;
  const WHOLE_RUN_SECONDS = 30;
  const SPEEDS = [[0, "whole run in 30 s"], [1, "1×"], [5, "5×"], [20, "20×"], [100, "100×"], [500, "500×"]];

  class Clock {
    constructor() {
      this.at = null;
      this.speed = 0;
      this.playing = false;
      this.last = 0;
    }

    get replaying() { return this.at !== null; }

    /** Return the moment to show, and move on if it plays. @param {number} time milliseconds of a frame */
    moment(tables, time) {
      if (this.playing && this.last) {
        const length = Math.max(1, tables.latest - beginOf(tables));
        const speed = this.speed || length / WHOLE_RUN_SECONDS;
        this.at += speed * Math.min(0.25, (time - this.last) / 1000);
        if (this.at >= tables.now()) this.present();
      }
      this.last = this.playing ? time : 0;
      return this.replaying ? this.at : tables.now();
    }

    play(tables) {
      if (!this.replaying) this.at = beginOf(tables);
      this.playing = true;
      this.last = 0;
    }

    pause() { this.playing = false; }

    seek(at) { this.at = at; }

    /** Go back to the present, or to the end of a run that has ended. */
    present() {
      this.at = null;
      this.playing = false;
    }
  }

  function beginOf(tables) {
    for (const round of tables.rounds.values()) return round.begin;
    return 0;
  }

  /** The buttons and the slider of a clock. */
  class Player {
    /** @param {{changed: function()}} listener */
    constructor(root, clock, listener) {
      Object.assign(this, { clock, listener, tables: new downpour.Tables() });
      this.toggle = node("button", { type: "button", class: "play", onclick: () => this._toggle() }, "▶ Replay");
      this.slider = node("input", { type: "range", min: 0, max: 1000, step: 1, value: 1000, "aria-label": "Moment of the run",
        oninput: () => this._seek() });
      this.label = node("output", { class: "moment" });
      this.speed = node("select", { "aria-label": "Speed of the replay", onchange: () => this._speed() },
        SPEEDS.map(([value, text]) => node("option", { value }, text)));
      this.back = node("button", { type: "button", onclick: () => this._present() }, "Live");
      root.append(this.toggle, this.slider, this.label, this.speed, this.back);
    }

    use(tables) {
      this.tables = tables;
      this.clock.present();
    }

    _toggle() {
      if (this.clock.playing) this.clock.pause();
      else this.clock.play(this.tables);
      this.listener.changed();
    }

    _seek() {
      const begin = beginOf(this.tables);
      this.clock.seek(begin + (this.tables.now() - begin) * this.slider.value / 1000);
      this.listener.changed();
    }

    _speed() { this.clock.speed = Number(this.speed.value); }

    _present() {
      this.clock.present();
      this.listener.changed();
    }

    /** Show where the clock is. */
    draw(now) {
      const { clock, tables } = this;
      const begin = beginOf(tables);
      const length = Math.max(0.001, tables.now() - begin);
      say(this.toggle, clock.playing ? "❚❚ Pause" : "▶ Replay");
      const place = String(Math.round(1000 * (now - begin) / length));
      if (this.slider.value !== place) this.slider.value = place;
      const text = words.moment(now);
      say(this.label, text);
      this.slider.setAttribute("aria-valuetext", text);
      say(this.back, tables.running ? "Live" : "End");
      this.back.disabled = !clock.replaying;
    }
  }

  Object.assign(downpour, { Clock, Player, beginOf });
})(window.downpour = window.downpour || {});
