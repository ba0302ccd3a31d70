"use strict";
/**
 * Where experiments come from: the server beside the page, or the copy inside of it.
 *
 * Both answer the same questions, so no view knows which one it has.
 */
(function (downpour) {
  const path = (...parts) => `/api/${parts.map(encodeURIComponent).join("/")}`;

  /** What the server answers. Errors have a text that a person can read. */
  class Server {
    constructor() {
      this.live = true;
      this.leftOut = "";
    }

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
    follow(id, line, listener) {
      return new downpour.Stream(path("experiments", id, "events"), line, listener);
    }
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
        return downpour.summaryOf(id, tables);
      });
      return { experiments: made, studies: [], next: null };
    }

    async study() { return null; }
    async logs() { return null; }
    async splits(id) { return (this.data.splits || {})[id] || null; }
    async frames(id) { return this.data.frames[id] || []; }

    async task(id, round, shard) {
      const lines = ((this.data.tasks || {})[id] || {})[`${round}/${shard}`];
      return lines ? lines.lines || lines : null;
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

  Object.assign(downpour, { source, summaryOf });
})(window.downpour = window.downpour || {});
