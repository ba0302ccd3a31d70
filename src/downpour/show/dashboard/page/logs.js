"use strict";
/**
 * What the processes logged and printed: loaded when somebody opens it, and followed while it is in sight.
 *
 * Lines are text, whatever they hold. The server says from which line on to go on (`next`), and when
 * to begin anew.
 */
(function (downpour) {
  const { words, node, say } = downpour;
  const AGAIN_MILLISECONDS = 2000;
  const READS_AFTER_END = 2;
  const LINES_MOST = 1000;
  const STREAMS = ["stdout", "stderr"];
  const collator = new Intl.Collator("en", { numeric: true });

  class Logs {
    /** @param {HTMLElement} root hidden while the folder has no logs */
    constructor(root, source) {
      Object.assign(this, { root, source, id: null, tables: new downpour.Tables(), asked: 0, timer: 0 });
      this.worker = node("select", { "aria-label": "Process", onchange: () => this._begin() });
      this.level = node("select", { "aria-label": "Level", onchange: () => this._begin() },
        [["debug", "all levels"], ["warning", "warnings and errors"]].map(([value, text]) => node("option", { value }, text)));
      this.span = node("button", { type: "button", onclick: () => this._forget() });
      this.note = node("p", { class: "muted", role: "status" });
      this.list = node("ol", { class: "log" });
      this.frame = node("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Lines of the logs" }, this.list);
      this.details = root.querySelector("details");
      this.details.append(node("div", { class: "tools" }, this.worker, this.level, this.span), this.note, this.frame);
      this.details.addEventListener("toggle", () => this._begin());
      document.addEventListener("visibilitychange", () => this._read());
    }

    /** Show nothing of this experiment until `offer` says that there is something. */
    use(id, tables) {
      Object.assign(this, { id, tables, names: new Set(), moments: null, left: 0 });
      this.root.hidden = true;
      this.details.open = false;
      this.level.value = "debug";
      this._name([]);
      this._begin();
    }

    offer() { this.root.hidden = false; }

    get offered() { return !this.root.hidden; }

    /** Open the logs of one process in some seconds of the run. */
    open(name, from, to) {
      this.moments = [from, to];
      this.arriving = true;
      this._name([name]);
      this.worker.value = name;
      if (this.details.open) this._begin();
      else this.details.open = true;  // its event begins
      this.details.firstElementChild.focus({ preventScroll: true });
    }

    _forget() {
      this.moments = null;
      this._begin();
      this.worker.focus();
    }

    /** Begin with an empty list: the filter is another one. */
    _begin() {
      this.next = "";
      this.list.replaceChildren();
      this.span.hidden = !this.moments;
      if (this.moments) say(this.span, `${this.moments.map((at) => words.moment(at)).join(" to ")} ×`);
      this.span.setAttribute("aria-label", "Show all times");
      say(this.note, "Reading the logs…");
      this._read();
    }

    /** Ask for what is new; what comes for another filter is dropped. */
    async _read() {
      clearTimeout(this.timer);
      const asked = (this.asked += 1);
      if (!this.details.open || this.root.hidden || document.hidden) return;
      this.left = this.tables.running ? READS_AFTER_END : this.left - 1;
      const [from, to] = this.moments || ["", ""];
      let answer = null;
      let trouble = "";
      try {
        answer = await this.source.logs(this.id, { after: this.next, worker: this.worker.value, level: this.level.value, from, to });
      } catch (error) {
        trouble = `Cannot read the logs: ${error.message}`;
      }
      if (asked !== this.asked) return;
      if (answer) this._take(answer);
      this._tell(answer, trouble);
      if (this.left >= 0 || trouble) this.timer = setTimeout(() => this._read(), AGAIN_MILLISECONDS);
    }

    _take({ lines, next, anew, names }) {
      const { frame, list } = this;
      const atEnd = anew || frame.scrollHeight - frame.scrollTop - frame.clientHeight < 8;
      this.next = next;
      this._name(names);
      if (anew) list.replaceChildren();
      list.append(...lines.map((line) => this._item(line)));
      while (list.childElementCount > LINES_MOST) list.firstElementChild.remove();
      if (atEnd) frame.scrollTop = frame.scrollHeight;
      if (this.arriving) this.root.scrollIntoView({ block: "start" });  // only now it has its height
      this.arriving = false;
    }

    _tell(answer, trouble) {
      if (answer && answer.anew) this.older = answer.older;
      const empty = this.list.childElementCount ? "" : "There are no such lines.";
      const older = this.older ? `Older lines are left out. All of them: downpour logs ${this.id}` : "";
      say(this.note, trouble || empty || older);
      this.note.hidden = !this.note.textContent;
      this.frame.hidden = !this.list.childElementCount;
    }

    /** Offer these processes as well; the one that was chosen stays. */
    _name(names) {
      const chosen = this.worker.value;
      const known = this.names.size;
      for (const name of names) this.names.add(name);
      if (known && known === this.names.size) return;
      const sorted = [...this.names].sort(collator.compare);
      this.worker.replaceChildren(node("option", { value: "" }, "all processes"),
        ...sorted.map((name) => node("option", { value: name }, name)));
      this.worker.value = this.names.has(chosen) ? chosen : "";
    }

    _item([at, host, name, level, source, text, trace]) {
      const label = STREAMS.includes(source) ? source : level;
      const time = new Date(1000 * at);
      return node("li", { "data-level": level },
        node("time", { datetime: time.toISOString(), title: time.toLocaleString() }, time.toLocaleTimeString("en-GB")),
        node("span", { class: "who", title: host }, name), node("span", { class: "label" }, label),
        node("span", { class: "said" }, text), trace ? node("pre", {}, trace) : null);
    }
  }

  downpour.Logs = Logs;
})(window.downpour = window.downpour || {});
