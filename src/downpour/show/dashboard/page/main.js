"use strict";
/**
 * The page as a whole: which experiment and which time it shows, and when it draws.
 *
 * It draws when something has changed, while a replay plays, and as often as open bars grow by a
 * pixel. In a tab that nobody sees it does not draw at all.
 */
(function (downpour) {
  const { words, say } = downpour;
  const get = (id) => document.getElementById(id);
  const SLOW_MILLISECONDS = 1000;
  const FAST_MILLISECONDS = 120;
  const ANNOUNCE_MILLISECONDS = 4000;

  class Page {
    constructor() {
      this.source = downpour.source();
      this.clock = new downpour.Clock();
      this.tables = new downpour.Tables();
      Object.assign(this, { id: null, stream: null, asked: 0, wake: 0, panelsDrawn: 0 });
      this.said = { state: null, gone: 0, last: 0, waiting: "" };
      this._makeViews();
      this._listen();
      this._route();
    }

    _makeViews() {
      const open = (i) => this._openAttempt(i);
      this.now = new downpour.Now(get("now"));
      this.timeline = new downpour.Timeline(get("bars"));
      this.tip = new downpour.Tip(get("tip"), this.timeline);
      this.gestures = new downpour.Gestures(this.timeline, {
        changed: () => this.changed(), open, follow: () => this._follow(true),
        point: (i, x, y) => this.tip.show(i, x, y),
        pointed: (i) => this._announce(this.tip.lines(i).join(", "), true),
      });
      this.player = new downpour.Player(get("player"), this.clock, { changed: () => this.changed() });
      this.mirror = new downpour.Mirror(get("mirror"), open);
      this.why = new downpour.Why(get("why-list"), (decision) => this._showDecision(decision));
      this.workers = new downpour.Workers(get("workers-table"), open);
      this.results = new downpour.Results(get("results-figures"), get("classes"), this.source);
      this.splits = new downpour.Splits(get("splits"), this.source);
      this.logs = new downpour.Logs(get("logs"), this.source);
      this.history = new downpour.History(get("history"), this.source);
      this.study = new downpour.Study(get("study"), this.source);
      this.task = new downpour.TaskPanel(get("task"), this.source, {
        close: () => this._closeTask(), point: (i) => { this.timeline.reveal(i); this.changed(); },
        hasLogs: () => this.logs.offered, logs: (i) => this._openLogs(i),
      });
      get("legend").append(...downpour.legend());
    }

    _listen() {
      const view = () => this.timeline.view;
      const press = (id, action) => get(id).addEventListener("click", () => { action(); this.changed(); });
      const middle = () => (view().follow ? view().end : (view().from + view().to) / 2);
      press("zoom-in", () => view().zoom(0.6, middle()));
      press("zoom-out", () => view().zoom(1 / 0.6, middle()));
      press("taller", () => view().zoomRows(1.5, 0));
      press("lower", () => view().zoomRows(1 / 1.5, 0));
      press("show-all", () => view().showAll());
      press("follow", () => this._follow(!view().follow));
      press("as-table", () => this._toggleTable());
      get("skip").addEventListener("click", () => get("main").focus());
      window.addEventListener("hashchange", () => this._route());
      window.addEventListener("resize", () => this.changed());
      document.addEventListener("visibilitychange", () => this.changed());
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this._recolour());
    }

    /** Show what the address names: an experiment, one of its tasks, a study or the list. */
    async _route() {
      const parts = location.hash.replace(/^#\/?/, "").split("/").map(safelyDecoded);
      const [kind, name, tasks, round, shard] = parts;
      if (kind === "" || kind === undefined) return this._openFirst();
      const isExperiment = kind === "experiments" && Boolean(name);
      get("experiment").hidden = !isExperiment;
      const isTask = isExperiment && tasks === "tasks" && /^\d+$/.test(round) && /^\d+$/.test(shard);
      const listed = !isExperiment && kind !== "studies";
      get("all").toggleAttribute("aria-current", listed);
      this.study.show(kind === "studies" ? name : null);
      if (isExperiment) this._use(name);
      else this._leave();
      this._showTask(isTask ? [Number(round), Number(shard)] : null);
      this.panelsDrawn = 0;
      this.changed();
      await this.history.show(listed);
    }

    /** Open the experiment that runs, or the newest one. */
    async _openFirst() {
      await this.history.refresh();
      const { known } = this.history;
      const chosen = known.find(({ running }) => running) || known[0];
      location.replace(chosen ? `#/experiments/${encodeURIComponent(chosen.id)}` : "#/history");
    }

    _use(id) {
      if (id === this.id) return;
      this._leave();
      this.id = id;
      this._begin();
      this.history.refresh().then(() => {
        this.results.offer(this.history.known);
        get("logout").hidden = !this.history.canLogOut;
      });
      this.stream = this.source.follow(id, () => this.tables.seq, {
        frame: (frame) => this._take(frame),
        trouble: (text) => this._trouble(text), fine: () => this._trouble(""),
      });
    }

    /** Begin with empty tables, and give them to all views. */
    _begin() {
      this.tables = new downpour.Tables();
      this.said = { state: null, gone: 0, last: 0, waiting: "" };
      for (const view of [this.timeline, this.player, this.mirror, this.why, this.workers]) view.use(this.tables);
      this.results.use(this.id, this.tables);
      this.logs.use(this.id, this.tables);
      this.splits.use(this.id);
    }

    _leave() {
      if (this.stream) this.stream.close();
      this.stream = null;
      this.id = null;
      this._trouble("");
    }

    _take(frame) {
      if (frame.seq < this.tables.seq) this._begin();  // another record has taken this one's place
      const changed = this.tables.take(frame);
      if (changed.has("workers") || this.timeline.order.length !== this.tables.rows.length) this.timeline.reorder();
      if (changed.has("experiment") && this.tables.experiment) {
        this.splits.offer(this.tables.experiment.splits);
        document.title = `${this.tables.experiment.name || this.id} – Downpour`;
      }
      if (frame.logs) this.logs.offer();
      if (this.task.shown && (changed.has("ends") || changed.has("attempts") || changed.has("decisions"))) this.task.read();
      this._announceChanges();
      this.panelsDrawn = 0;
      this.changed();
    }

    _trouble(text) {
      const banner = get("banner");
      say(banner, text);
      banner.hidden = !text;
    }

    /** Ask for a drawing; many changes before the next frame are one. */
    changed() {
      if (this.asked || document.hidden) return;
      this.asked = requestAnimationFrame((time) => this._draw(time));
    }

    _draw(time) {
      this.asked = 0;
      clearTimeout(this.wake);
      if (document.hidden || get("experiment").hidden) return;
      const now = this.clock.moment(this.tables, time);
      this.timeline.draw(now);
      this.player.draw(now);
      get("follow").setAttribute("aria-pressed", String(this.timeline.view.follow));
      // Texts need not follow every frame of a replay or of a zoom.
      if (time - this.panelsDrawn > 200 || !this.panelsDrawn) {
        this.panelsDrawn = time;
        this._drawPanels(now);
      } else this._again(210);
      if (this.clock.playing) this.changed();
      else if (this.tables.running) this._again(this._pace());
    }

    _drawPanels(now) {
      this.now.draw(this.tables, now);
      for (const view of [this.mirror, this.why, this.workers, this.results, this.task]) view.draw(now);
    }

    _again(milliseconds) {
      clearTimeout(this.wake);
      this.wake = setTimeout(() => this.changed(), milliseconds);
    }

    /** Return how long an open bar takes to grow by a pixel, within bounds. */
    _pace() {
      return isCalm() ? SLOW_MILLISECONDS : Math.min(SLOW_MILLISECONDS, Math.max(FAST_MILLISECONDS, 1000 / this.timeline.view.scale));
    }

    _follow(on) {
      const { view } = this.timeline;
      view.follow = on;
      if (on) this.clock.present();
      this.changed();
    }

    _toggleTable() {
      const { mirror } = this;
      mirror.root.hidden = !mirror.root.hidden;
      get("as-table").setAttribute("aria-pressed", String(!mirror.root.hidden));
      get("as-table").setAttribute("aria-expanded", String(!mirror.root.hidden));
      mirror.draw(this.timeline.now);
    }

    _showDecision({ at, attempt }) {
      if (this.clock.replaying && at > this.timeline.now) this.clock.present();
      if (attempt !== null && attempt !== undefined && attempt < this.tables.attempts.count) this.timeline.reveal(attempt);
      else this.timeline.view.show(at, at + 1, this.timeline.view.top);
      get("bars").scrollIntoView({ block: "nearest", behavior: isCalm() ? "auto" : "smooth" });
      this.changed();
    }

    _openAttempt(i) {
      const { round, shard } = this.tables.attempts;
      this.opener = document.activeElement;
      this.timeline.cursor = i;
      location.hash = `#/experiments/${encodeURIComponent(this.id)}/tasks/${round[i]}/${shard[i]}`;
    }

    /** Open what a worker said while it trained an attempt. */
    _openLogs(i) {
      const { worker, begin } = this.tables.attempts;
      if (matchMedia("(max-width: 64rem)").matches) this._closeTask();  // it would cover them
      this.logs.open(this.tables.workerName(worker[i]), begin[i], this.tables.endAt(i, this.timeline.now));
    }

    _showTask(task) {
      this.timeline.selected = task;
      document.body.classList.toggle("with-task", Boolean(task));
      this.task.show(this.id, this.tables, task);
    }

    _closeTask() {
      location.hash = `#/experiments/${encodeURIComponent(this.id)}`;
      const back = this.opener && this.opener.isConnected ? this.opener : get("bars");
      back.focus({ preventScroll: true });
    }

    _recolour() {
      this.timeline.recolour();
      this.results.redraw();
      this.changed();
    }

    /** Tell those who listen what has changed: states and losses, not numbers. */
    _announceChanges() {
      const { tables, said } = this;
      const state = tables.experiment && tables.experiment.state;
      const gone = tables.workers.filter((worker) => worker && worker.state === "lost").length;
      if (said.state && state !== said.state) this._announce(`The experiment is ${state} now.`);
      if (said.state && gone > said.gone) this._announce(`${words.count(gone - said.gone, "worker")} lost.`);
      Object.assign(said, { state, gone });
    }

    _announce(text, atOnce = false) {
      const wait = atOnce ? 0 : Math.max(0, this.said.last + ANNOUNCE_MILLISECONDS - performance.now());
      this.said.waiting = atOnce ? text : `${this.said.waiting} ${text}`.trim();
      clearTimeout(this.said.timer);
      this.said.timer = setTimeout(() => {
        say(get("announce"), this.said.waiting);
        Object.assign(this.said, { waiting: "", last: performance.now() });
      }, wait);
    }
  }

  function isCalm() { return matchMedia("(prefers-reduced-motion: reduce)").matches; }

  /** Decode a part of an address, which anybody may have written. */
  function safelyDecoded(part) {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  }

  const begin = () => { downpour.page = new Page(); };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})(window.downpour = window.downpour || {});
