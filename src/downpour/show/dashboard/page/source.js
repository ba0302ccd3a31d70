"use strict";
/**
 * Where experiments come from: the server beside the page, or the copy inside of it.
 *
 * Both answer the same questions, so no view knows which one it has. The stream of the server's frames
 * outlives whatever comes between. A viewer's whole state is the last line that its tables know. So a
 * stream that breaks, a server that was killed and a computer that slept for an hour are one case:
 * connect again, after that line.
 */
(function (downpour) {
  const path = (...parts) => `/api/${parts.map(encodeURIComponent).join("/")}`;

  /** What the server answers. Errors have a text that a person can read. */
  class Server {
    constructor() { Object.assign(this, { live: true, leftOut: "" }); }

    async _get(url) {
      const answer = await fetch(url, { headers: { Accept: "application/json" } });
      if (answer.status === 401) {
        location.reload();  // the login has expired: the server shows its form
        throw new Error("please log in");
      }
      if (answer.status === 404) return null;
      if (answer.ok) return answer.json();
      const said = await answer.json().catch(() => ({}));
      throw new Error(said.text || `the server answered ${answer.status}`);
    }

    experiments(before) {
      const query = before ? `?before=${encodeURIComponent(before)}` : "";
      return this._get(`${path("experiments")}${query}`);
    }

    study(name) { return this._get(path("studies", name)); }
    splits(id) { return this._get(path("experiments", id, "splits")); }

    /** Fetch lines of the logs. @param {Object<string, *>} query a filter, and `after`; empty values are left out */
    logs(id, query) {
      const given = Object.entries(query).filter(([, value]) => value !== "");
      return this._get(`${path("experiments", id, "logs")}?${new URLSearchParams(given)}`);
    }

    async task(id, round, shard) {
      const found = await this._get(path("experiments", id, "tasks", round, shard));
      return found ? found.lines : null;
    }

    /** Fetch all frames of an experiment that is only compared with. */
    async frames(id) {
      const frames = [];
      for (let after = 0; ;) {
        const frame = await this._get(`${path("experiments", id, "frame")}?after=${after}`);
        if (!frame || (frames.length && frame.seq <= after)) return frames;
        frames.push(frame);
        after = frame.seq;
      }
    }

    /** Follow an experiment from the line that `line()` names; returns a Stream, which must be closed. */
    follow(id, line, listener) { return new Stream(path("experiments", id, "events"), line, listener); }
  }

  /** What a static copy holds: everything, and nothing more comes. */
  class Copy {
    constructor(data) {
      this.live = false;
      this.data = data;
      this.leftOut = data.left_out || "";
    }

    async experiments() {
      const made = this.data.experiments.map(({ id }) => {
        const tables = new downpour.Tables();
        for (const frame of this.data.frames[id] || []) {
          tables.take({ seq: frame.seq, experiment: frame.experiment, evaluations: frame.evaluations, rounds: frame.rounds });
        }
        return summaryOf(id, tables);
      });
      return { experiments: made, studies: [], next: null };
    }

    async study() { return null; }
    async logs() { return null; }
    async splits(id) { return this.data.splits[id] || null; }
    async frames(id) { return this.data.frames[id] || []; }

    async task(id, round, shard) {
      return (this.data.tasks[id] || {})[`${round}/${shard}`] || null;
    }

    follow(id, line, listener) {
      for (const frame of this.data.frames[id] || []) listener.frame(frame);
      return { close() {} };
    }
  }

  /** Describe an experiment as the server's list does, from its tables. */
  function summaryOf(id, tables) {
    const told = tables.experiment || {};
    const done = [...tables.rounds.values()].filter((round) => round.closed !== null).length;
    const [metric] = told.metrics || [];
    const measured = [...tables.evaluations.values()].pop();
    const value = metric && measured ? downpour.valueOf(measured, metric) : undefined;
    return {
      id, name: told.name || id, state: told.state, rounds_done: done, rounds: told.rounds,
      epochs_done: null, epochs: told.epochs, running: false, changed_at: (told.start || 0) + tables.latest,
      measure: value === undefined ? null : { words: metric.words, text: downpour.words.measure(value, metric) },
    };
  }

  /** Return the copy inside of this page, or the server. */
  function source() {
    const inside = document.getElementById("downpour-data");
    return inside ? new Copy(JSON.parse(inside.textContent)) : new Server();
  }

  const RETRY_MILLISECONDS = [500, 1000, 2000, 4000, 8000];
  const PULSE_MILLISECONDS = 5000;
  const ASLEEP_MILLISECONDS = 20000;
  const HIDDEN_MILLISECONDS = 300000;

  class Stream {
    /**
     * @param {string} url without a query
     * @param {function(): number} line names the last line known
     * @param {{frame: function(object), trouble: function(string), fine: function()}} listener
     */
    constructor(url, line, listener) {
      Object.assign(this, { url, line, listener, events: null, failures: 0, closed: false });
      this.retry = this.sleep = 0;
      this.lastPulse = Date.now();
      this.pulse = setInterval(() => this._beat(), PULSE_MILLISECONDS);
      this.stops = [
        this._on(window, "online", () => this._now()),
        this._on(window, "offline", () => this._lost("This computer is offline. What you see may be old.")),
        this._on(document, "visibilitychange", () => this._visible()),
      ];
      this._connect();
    }

    _on(target, name, listener) {
      target.addEventListener(name, listener);
      return () => target.removeEventListener(name, listener);
    }

    close() {
      this.closed = true;
      clearInterval(this.pulse);
      this._disconnect();
      for (const stop of this.stops) stop();
    }

    _connect() {
      if (this.closed) return;
      this._disconnect();
      const events = new EventSource(`${this.url}?after=${this.line()}`);
      this.events = events;
      events.addEventListener("open", () => this._arrived());
      events.addEventListener("frame", (event) => {
        this._arrived();
        this.listener.frame(JSON.parse(event.data));
      });
      events.addEventListener("trouble", (event) => this.listener.trouble(JSON.parse(event.data).text));
      events.addEventListener("over", (event) => this._lost(JSON.parse(event.data).text));
      events.addEventListener("fine", () => this.listener.fine());
      events.addEventListener("error", () => this._lost("No connection to the page’s server. What you see may be old."));
    }

    _disconnect() {
      clearTimeout(this.retry);
      clearTimeout(this.sleep);
      if (this.events) this.events.close();
      this.events = null;
    }

    _arrived() {
      if (this.failures) this.listener.fine();
      this.failures = 0;
    }

    /** Try again later, and always from the last line known: a browser's own retry would go back. */
    _lost(text) {
      if (this.closed) return;
      this._disconnect();
      const place = Math.min(this.failures, RETRY_MILLISECONDS.length - 1);
      this.failures += 1;
      this.retry = setTimeout(() => this._connect(), RETRY_MILLISECONDS[place]);
      this.listener.trouble(text);
    }

    _now() {
      this.failures = Math.max(1, this.failures);
      this._connect();
    }

    /** A pulse that comes late says that the computer slept: the old connection is dead, silently. */
    _beat() {
      const late = Date.now() - this.lastPulse > ASLEEP_MILLISECONDS;
      this.lastPulse = Date.now();
      if (late && !document.hidden && !this.closed) this._connect();
    }

    /** A tab that nobody looks at costs the server nothing after some minutes. */
    _visible() {
      clearTimeout(this.sleep);
      if (document.hidden) {
        this.sleep = setTimeout(() => this._disconnect(), HIDDEN_MILLISECONDS);
      } else if (!this.events) this._connect();
    }
  }

  downpour.source = source;
})(window.downpour = window.downpour || {});
