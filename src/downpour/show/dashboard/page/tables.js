"use strict";
/**
 * What a record says, as tables: frames go in, and what the views draw comes out.
 *
 * Every row has a key, and a row that comes again replaces the earlier one. So a frame may come
 * twice, and a viewer that was away goes on from the last line that it knows. Attempts are many
 * (100,000 and more), so each of their columns is one typed array.
 */
(function (downpour) {
  const OUTCOMES = ["open", "trained", "last", "moved", "stopped", "failed"];
  const COLUMNS = {
    worker: Uint32Array, round: Uint32Array, shard: Uint32Array, attempt: Uint16Array,
    begin: Float64Array, end: Float64Array, outcome: Uint8Array, fromStep: Float64Array,
    previous: Int32Array, next: Int32Array,
    forecastAt: Float32Array, done: Float32Array, q10: Float32Array, q50: Float32Array, q90: Float32Array,
  };

  /** Attempts as columns: `begin[i]` is when attempt i began, in seconds since the submission. */
  class Attempts {
    constructor() {
      this.count = 0;
      for (const [name, kind] of Object.entries(COLUMNS)) this[name] = new kind(0);
    }

    /** Make room for attempt i. */
    reach(i) {
      if (i >= this.begin.length) {
        const room = Math.max(256, 2 * this.begin.length, i + 1);
        for (const [name, kind] of Object.entries(COLUMNS)) {
          const column = new kind(room);
          column.set(this[name]);
          this[name] = column;
        }
      }
      for (; this.count <= i; this.count += 1) {
        this.begin[this.count] = this.end[this.count] = this.q50[this.count] = NaN;
        this.previous[this.count] = this.next[this.count] = -1;
      }
    }
  }

  class Tables {
    constructor() {
      Object.assign(this, { seq: 0, experiment: null, totals: {}, latest: 0, clock: 0, received: 0, workers: [] });
      /** @type {number[][]} the attempts of each worker, by their begin */
      this.rows = [];
      this.attempts = new Attempts();
      this.rounds = new Map();
      this.versions = new Map();
      this.evaluations = new Map();
      this.decisions = new Map();
      /** @type {Map<number, object>} those of kind "disturb": somebody slowed or killed a process on purpose */
      this.disturbances = new Map();
      this.newestOf = new Map();
    }

    /** Take a frame; return the names of the tables that it changed. */
    take(frame) {
      const changed = new Set();
      if (frame.experiment) this.experiment = frame.experiment;
      if (frame.totals) this.totals = frame.totals;
      this.isLed = frame.led !== false;
      const takers = {
        workers: (row) => this._worker(row), attempts: (row) => this._attempt(row),
        ends: (row) => this._end(row), forecasts: (row) => this._forecast(row),
        rounds: (row) => this._round(row), versions: (row) => this._version(row),
        evaluations: (row) => this._evaluation(row), decisions: (row) => this._decision(row),
      };
      for (const [name, take] of Object.entries(takers)) {
        if (!frame[name]) continue;
        changed.add(name);
        for (const row of frame[name]) take(row);
      }
      if (frame.experiment) changed.add("experiment");
      if (frame.totals) changed.add("totals");
      this.seq = Math.max(this.seq, frame.seq || 0);
      this.clock = frame.clock || this.clock;
      this.received = performance.now();
      return changed;
    }

    _worker([i, name, state, joined, left, numericClass, done, speed, cpu, memory, address, doing]) {
      this.workers[i] = { i, name, state, joined, left, numericClass, done, speed, cpu, memory, address, doing };
      this.rows[i] = this.rows[i] || [];
      this._seen(joined, left);
    }

    _attempt([i, worker, round, shard, attempt, begin, fromStep]) {
      const all = this.attempts;
      all.reach(i);
      const known = !Number.isNaN(all.begin[i]);
      if (known && (all.worker[i] !== worker || all.begin[i] !== begin)) this._leaveRow(i);
      all.worker[i] = worker;
      all.round[i] = round;
      all.shard[i] = shard;
      all.attempt[i] = attempt;
      all.begin[i] = begin;
      all.fromStep[i] = fromStep || 0;
      if (!known) this._chain(i, `${round}/${shard}`);
      this._enterRow(i, worker);
      this._seen(begin);
    }

    /** Put an attempt into its worker's row, where the order of begins wants it. */
    _enterRow(i, worker) {
      const row = (this.rows[worker] = this.rows[worker] || []);
      let place = row.length;
      while (place > 0 && this.attempts.begin[row[place - 1]] > this.attempts.begin[i]) place -= 1;
      if (row[place - 1] !== i) row.splice(place, 0, i);
    }

    /** Take an attempt out of its row, because a new manager began it once more. */
    _leaveRow(i) {
      const row = this.rows[this.attempts.worker[i]];
      row.splice(row.indexOf(i), 1);
    }

    /** Put a new attempt behind the earlier one of its task. */
    _chain(i, task) {
      const earlier = this.newestOf.get(task);
      if (earlier !== undefined) {
        this.attempts.previous[i] = earlier;
        this.attempts.next[earlier] = i;
      }
      this.newestOf.set(task, i);
    }

    _end([i, end, outcome]) {
      this.attempts.reach(i);
      this.attempts.end[i] = end === null ? NaN : end;
      this.attempts.outcome[i] = Math.max(0, OUTCOMES.indexOf(outcome));
      this._seen(end);
    }

    _forecast([i, at, done, q10, q50, q90]) {
      const all = this.attempts;
      all.reach(i);
      all.forecastAt[i] = at || 0;
      all.done[i] = done || 0;
      all.q10[i] = q10 === null ? NaN : q10;
      all.q50[i] = q50 === null ? NaN : q50;
      all.q90[i] = q90 === null ? NaN : q90;
    }

    _round([round, begin, closed]) {
      this.rounds.set(round, { round, begin, closed });
      this._seen(begin, closed);
    }

    _version([version, at, round, loss, staleness]) {
      this.versions.set(version, { version, at, round, loss, staleness });
      this._seen(at);
    }

    _evaluation([round, part, at, loss, metrics, classes, bytes]) {
      const row = { round, part, at, loss, metrics: metrics || {}, classes, bytes };
      this.evaluations.set(`${part}/${round}`, row);
      this._seen(at);
    }

    _decision([n, at, kind, text, attempt]) {
      const row = { n, at, kind, text, attempt };
      this.decisions.set(n, row);
      if (kind === "disturb") this.disturbances.set(n, row);
      this._seen(at);
    }

    _seen(...moments) {
      for (const moment of moments) if (moment > this.latest) this.latest = moment;
    }

    /** Say whether the experiment goes on. */
    get running() {
      const state = this.experiment && this.experiment.state;
      return ["waiting", "paused", "preparing", "running"].includes(state);
    }

    /** Return the present in seconds since the submission: it stands still after the end. */
    now() {
      if (!this.running) return this.latest;
      const passed = (performance.now() - this.received) / 1000;
      return Math.max(this.latest, this.clock - (this.experiment.start || this.clock) + passed);
    }

    /** Return the attempt that a worker has at a moment, or -1. */
    attemptAt(worker, moment) {
      const row = this.rows[worker] || [];
      const place = this.placeAt(row, moment);
      if (place < 0) return -1;
      const end = this.attempts.end[row[place]];
      return Number.isNaN(end) || end > moment ? row[place] : -1;
    }

    /** Return the place in a row of the last attempt that has begun at a moment, or -1. */
    placeAt(row, moment) {
      let [low, high] = [0, row.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.attempts.begin[row[middle]] <= moment) low = middle + 1;
        else high = middle;
      }
      return low - 1;
    }

    /** Return the attempts of a task, the first one first. */
    attemptsOf(round, shard) {
      const found = [];
      let i = this.newestOf.get(`${round}/${shard}`);
      for (; i !== undefined && i >= 0; i = this.attempts.previous[i]) found.unshift(i);
      return found;
    }

    /** Return what an attempt is at a moment: "open" until its end has come. */
    outcomeAt(i, moment) {
      const end = this.attempts.end[i];
      return Number.isNaN(end) || end > moment ? "open" : OUTCOMES[this.attempts.outcome[i]];
    }

    /** Return until when an attempt has gone on at a moment: its end, if that has come. */
    endAt(i, moment) {
      const end = this.attempts.end[i];
      return end <= moment ? end : moment;
    }

    /** Say whether a worker is there at a moment. */
    isHere({ joined, left }, moment) {
      return joined <= moment && (left === null || left === undefined || left > moment);
    }

    workerName(worker) {
      const known = this.workers[worker];
      return known ? String(known.name) : `worker ${worker}`;
    }
  }

  Object.assign(downpour, { Tables, OUTCOMES });
})(window.downpour = window.downpour || {});
