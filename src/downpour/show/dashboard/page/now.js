"use strict";
/**
 * The time that the page shows, and its head: what runs, how far it is, and how long it will take.
 *
 * Every view draws for a moment that it is given, so replaying a run is moving the clock.
 */
(function (downpour) {
  const { words, node, say } = downpour;
  const WHOLE_RUN_SECONDS = 30;
  const SPEEDS = [[0, "whole run in 30 s"], [1, "1×"], [5, "5×"], [20, "20×"], [100, "100×"], [500, "500×"]];

  class Clock {
    constructor() {
      Object.assign(this, { at: null, speed: 0, playing: false, last: 0 });
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
    present() { Object.assign(this, { at: null, playing: false }); }
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
      this.speed = node("select", { "aria-label": "Speed of the replay", onchange: () => { this.clock.speed = Number(this.speed.value); } },
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

  const SIGNS = { stopped: "✕", waiting: "◷", paused: "❚❚", preparing: "◷", running: "●", finished: "✓", failed: "✕", cancelled: "■" };

  const SILENT_SECONDS = 300;

  class Now {
    constructor(root) {
      this.title = node("h1", { tabindex: "-1" });
      this.state = node("span", { class: "state" });
      this.facts = node("p", { class: "facts muted" });
      this.reason = node("p", { class: "reason", hidden: true });
      this.bar = node("div", {
        class: "done", role: "progressbar", "aria-label": "Rounds done", "aria-valuemin": 0, "aria-valuemax": 100,
      }, node("i"));
      this.tiles = node("dl", { class: "tiles" });
      this.values = {};
      root.append(node("div", { class: "title" }, this.title, this.state), this.facts, this.reason, this.bar, this.tiles);
    }

    draw(tables, now) {
      const told = tables.experiment || {};
      const past = now < tables.latest;
      const orphaned = !past && tables.running && !tables.isLed;
      const state = past ? "replay" : orphaned ? "stopped" : told.state || "loading";
      say(this.title, told.name || told.id || "Experiment");
      say(this.state, past ? "↺ replay" : `${SIGNS[state] || "·"} ${state}`);
      this.state.dataset.state = state;
      say(this.facts, factsOf(told));
      const notes = [past ? null : told.reason, ...(told.warnings || []), past ? null : silence(tables, now, orphaned)].filter(Boolean);
      this.reason.hidden = !notes.length;
      this.reason.classList.toggle("failure", state === "failed" || orphaned);
      say(this.reason, notes.join(" · "));
      this._progress(tables, told, now);
      this._tiles(tables, told, now, past);
    }

    _progress(tables, told, now) {
      const done = [...tables.rounds.values()].filter((round) => round.closed !== null && round.closed <= now).length;
      const share = told.rounds ? Math.min(1, done / told.rounds) : 0;
      this.bar.firstChild.style.width = `${100 * share}%`;
      this.bar.setAttribute("aria-valuenow", Math.round(100 * share));
      this.done = done;
    }

    _tiles(tables, told, now, past) {
      const open = [...tables.rounds.values()].filter(({ begin, closed }) => begin <= now && (closed === null || closed > now));
      const busy = tables.rows.filter((_, worker) => tables.attemptAt(worker, now) >= 0).length;
      const here = tables.workers.filter((worker) => worker && tables.isHere(worker, now)).length;
      const { totals } = tables;
      this._tile("round", "Round", `${this.done + Math.sign(open.length)} of ${told.rounds ?? "–"}`, epochs(told, this.done));
      this._tile("left", ...leftOf(tables, now, past));
      this._measure(tables, told, now);
      const gone = tables.workers.filter((worker) => worker && worker.joined <= now).length - here;
      const idle = words.number(Math.max(0, here - busy));
      this._tile("workers", "Workers", `${words.number(busy)} training`, `${idle} idle, ${words.number(gone)} gone`);
      this._tile("open", open.length === 1 ? "Open round" : "Open rounds",
        open.length ? open.map(({ round }) => round).slice(-3).join(", ") : "none",
        past || totals.queue === undefined ? "" : `${words.count(totals.queue || 0, "shard")} waiting`);
      const [last] = [...tables.versions.values()].filter(({ at }) => at <= now).slice(-1);
      const stale = last && last.staleness;
      this._tile("staleness", "Staleness", stale ? words.number(stale[1]) : "–",
        stale ? `${words.number(stale[0])} to ${words.number(stale[2])} versions` : "no version yet");
      this._tile("bytes", "Exchanged", past ? "–" : words.bytes((totals.bytes_read || 0) + (totals.bytes_written || 0)),
        past ? "" : `${words.bytes(totals.bytes_read)} read, ${words.bytes(totals.bytes_written)} written`);
    }

    _measure(tables, told, now) {
      const [metric] = told.metrics || [];
      const measured = [...tables.evaluations.values()].filter(({ at }) => at <= now);
      const last = measured[measured.length - 1];
      const title = metric ? metric.words || metric.name : "loss";
      const value = last && (metric ? downpour.valueOf(last, metric) : last.loss);
      this._tile("measure", title[0].toUpperCase() + title.slice(1), words.measure(value, metric),
        last ? `loss ${words.number(last.loss)}` : "not measured yet");
    }

    _tile(key, title, value, note) {
      let tile = this.values[key];
      if (!tile) {
        tile = this.values[key] = [node("dt"), node("dd", { class: "value" }), node("dd", { class: "muted" })];
        this.tiles.append(node("div", {}, ...tile));
      }
      [title, value, note].forEach((text, place) => say(tile[place], String(text)));
    }
  }

  /** Say that nothing has come for long, or never will: a manager that was killed writes no last line. */
  function silence(tables, now, orphaned) {
    if (orphaned) return "Its manager has died. Another manager of this folder continues it, or --resume after a run.";
    const { last_line_at: last } = tables.totals;
    const works = ["preparing", "running"].includes(tables.experiment && tables.experiment.state);
    if (!works || last === undefined || last === null || now - last < SILENT_SECONDS) return null;
    return `Nothing new for ${words.seconds(now - last)}: tasks take long, or the manager has stopped.`;
  }

  /** Say in one line what an experiment is. */
  function factsOf(told) {
    const facts = [
      told.dataset, told.splitter && `split: ${told.splitter}`, told.shards && words.count(told.shards, "shard"),
      told.mode && `mode: ${told.mode}`, told.policy && `policy: ${told.policy}`, told.aggregator,
      told.parameters && words.count(told.parameters, "parameter"),
    ];
    return facts.filter(Boolean).join(" · ");
  }

  /** Name the epoch of the open round, as the terminal's status does. */
  function epochs(told, done) {
    if (!told.epochs) return "";
    return `epoch ${Math.min(told.epochs, 1 + Math.floor(downpour.epochsAt(told, done)))} of ${told.epochs}`;
  }

  /** Say how long it will take, and how sure that is; of a run that has ended, how long it took. */
  function leftOf(tables, now, past) {
    const took = words.seconds(Math.max(0, now - beginOf(tables)));
    const { left } = tables.totals;
    if (past || !tables.running) return [past ? "Time passed" : "Took", took, ""];
    if (!left || !tables.isLed) return ["Time left", "–", `${took} so far`];
    const since = Math.max(0, now - (tables.totals.last_line_at ?? now));
    const [low, middle, high] = [left.q10, left.q50, left.q90].map((value) => words.seconds(Math.max(0, value - since)));
    return ["Time left", `≈ ${middle}`, `${low} to ${high}`];
  }

  Object.assign(downpour, { Clock, Player, beginOf, Now, SIGNS });
})(window.downpour = window.downpour || {});
