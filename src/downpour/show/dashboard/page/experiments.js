"use strict";
/**
 * Where experiments come from, the list of them, and the tables of grids and searches.
 *
 * The server beside the page and the copy inside of it answer the same questions, so no view knows
 * which one it has. The stream of the server's frames outlives whatever comes between. A viewer's whole
 * state is the last line that its tables know. So a stream that breaks, a server that was killed and a
 * computer that slept for an hour are one case: connect again, after that line.
 */
(function (downpour) {
  const { words, node, region, say, answered, keepFocus, SIGNS } = downpour;
  const AGAIN_MILLISECONDS = 5000;
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

    async experiments() { return { experiments: this.data.experiments, studies: [], next: null }; }
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
      this.ending = new AbortController();
      const { signal } = this.ending;
      window.addEventListener("online", () => this._now(), { signal });
      window.addEventListener("offline", () => this._lost("This computer is offline. What you see may be old."), { signal });
      document.addEventListener("visibilitychange", () => this._visible(), { signal });
      this._connect();
    }

    close() {
      this.closed = true;
      clearInterval(this.pulse);
      this._disconnect();
      this.ending.abort();
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

  class History {
    constructor(root, source) {
      Object.assign(this, { root, source, next: null, known: [], timer: 0 });
      this.list = node("ul", { class: "experiments" });
      this.studies = node("ul", { class: "experiments studies" });
      this.studiesTitle = node("h2", {}, "Grids and searches");
      this.note = node("p", { class: "muted", role: "status" });
      this.more = node("button", { type: "button", class: "more", onclick: () => this._more() }, "Show older");
      root.append(node("h1", { tabindex: "-1" }, "Experiments"), this.note, this.list, this.more, this.studiesTitle, this.studies);
    }

    /** Show the list, and keep its head up to date while it is on show. */
    async show(shown) {
      clearTimeout(this.timer);
      this.root.hidden = !shown;
      if (!shown) return;
      if (!document.hidden) await this.refresh();
      if (this.source.live && !this.root.hidden) {
        this.timer = setTimeout(() => this.show(!this.root.hidden), AGAIN_MILLISECONDS);
      }
    }

    /** Fetch the newest page; older ones that have been fetched stay below it. */
    async refresh() {
      await this._read(null, (answer) => {
        const fresh = new Set(answer.experiments.map(({ id }) => id));
        const older = this.known.filter(({ id }) => !fresh.has(id));
        if (!older.length) this.next = answer.next;
        this.canLogOut = answer.login === true;
        this.known = [...answer.experiments, ...older];
      });
    }

    async _more() {
      await this._read(this.next, (answer) => {
        this.next = answer.next;
        this.known = [...this.known, ...answer.experiments];
      });
    }

    async _read(before, take) {
      const [answer, trouble] = await answered(this.source.experiments(before), "the list");
      if (!trouble) {
        take(answer || { experiments: [] });
        this._draw((answer && answer.studies) || []);
      } else {
        this.note.hidden = false;
        say(this.note, trouble);
      }
    }

    _draw(studies) {
      const nothing = "There is no experiment in this folder yet. Start one with “downpour run”; it will appear here.";
      say(this.note, this.known.length ? "" : nothing);
      this.note.hidden = this.known.length > 0;
      this.more.hidden = !this.next;
      this.studiesTitle.hidden = !studies.length;
      const found = studies.map((name) =>
        node("li", {}, node("a", { href: `#/studies/${encodeURIComponent(name)}` }, node("span", { class: "name" }, name))));
      keepFocus(this.root, "href", () => {
        this.list.replaceChildren(...this.known.map((one) => this._item(one)));
        this.studies.replaceChildren(...found);
      });
    }

    _item(one) {
      const share = one.rounds ? Math.min(1, (one.rounds_done || 0) / one.rounds) : 0;
      const bar = node("i");
      bar.style.width = `${100 * share}%`;
      const state = String(one.state || "unknown");
      const id = one.name && one.name !== one.id ? node("small", { class: "muted" }, ` ${one.id}`) : null;
      const rounds = one.rounds ? `${one.rounds_done} of ${words.count(one.rounds, "round")}` : "–";
      return node("li", {}, node("a", { href: `#/experiments/${encodeURIComponent(one.id)}` },
        node("span", { class: "state", "data-state": state }, `${SIGNS[state] || "·"} ${state}`),
        node("span", { class: "name" }, one.name || one.id, id),
        node("span", { class: "measure" }, one.measure ? `${one.measure.words}: ${one.measure.text}` : "–"),
        node("span", { class: "rounds muted" }, rounds, node("span", { class: "done", "aria-hidden": "true" }, bar)),
        node("time", { class: "muted" }, one.changed_at ? words.ago(one.changed_at) : "")));
    }
  }

  /** A grid or a search: its table, and in every row the way to its run. */
  class Study {
    constructor(root, source) {
      Object.assign(this, { root, source });
      this.title = node("h1", { tabindex: "-1" });
      this.place = region("Runs");
      this.note = node("p", { class: "muted", role: "status" });
      root.append(this.title, this.note, this.place);
    }

    async show(name) {
      this.root.hidden = !name;
      this.name = name;
      if (!name) return;
      say(this.title, name);
      this.note.hidden = false;
      say(this.note, "Reading…");
      this.place.replaceChildren();
      const [study, trouble] = await answered(this.source.study(name), "the study");
      if (this.name !== name) return;
      say(this.note, trouble || (study ? "" : "There is no such study here."));
      this.note.hidden = Boolean(study);
      if (study) this._fill(study);
    }

    _fill({ columns, rows, runs }) {
      const isText = columns.map((_, place) => rows.some((row) => typeof row[place] === "string" && !/^[-−\d]/.test(row[place])));
      const heads = columns.map((column, place) => ({ title: String(column), text: isText[place] }));
      const cells = rows.map((row, place) => row.map((value, column) => {
        const text = value === null ? "–" : typeof value === "number" ? words.number(value) : String(value);
        if (column !== 0 || !runs || !runs[place]) return text;
        return node("a", { href: `#/experiments/${encodeURIComponent(runs[place])}` }, text || runs[place]);
      }));
      this.place.replaceChildren(downpour.table(words.count(rows.length, "run"), heads, cells));
    }
  }

  Object.assign(downpour, { source, History, Study });
})(window.downpour = window.downpour || {});
