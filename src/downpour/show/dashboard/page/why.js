"use strict";
/** Decisions in words, the newest first; each leads to its place in the timeline. */
(function (downpour) {
  const { words, node, say } = downpour;
  const PAGE = 40;
  const SIGNS = {
    "hand-over": "⇄", copy: "⇉", drop: "−", resize: "⇔", wait: "◷", worker: "+", fail: "✕", end: "■", differ: "≠", disturb: "↯",
  };

  class Why {
    /** @param {function(object)} show called with the decision that was chosen */
    constructor(root, show) {
      Object.assign(this, { show, most: PAGE, drawn: "", marked: null });
      this.list = node("ol", { class: "decisions" });
      this.empty = node("p", { class: "muted" },
        "No decisions yet. The policy’s reasons appear here when it moves, copies or drops work.");
      this.more = node("button", { type: "button", class: "more", onclick: () => this._more() }, "Show older");
      root.append(this.empty, this.list, this.more);
    }

    use(tables) {
      Object.assign(this, { tables, most: PAGE, drawn: "", marked: null });
    }

    _more() {
      this.most += PAGE;
      this.draw(this.now);
    }

    draw(now) {
      this.now = now;
      const known = [...this.tables.decisions.values()].filter(({ at }) => at <= now).sort((one, other) => other.n - one.n);
      const shown = known.slice(0, this.most);
      const key = `${known.length}/${shown.length}/${shown.length ? shown[0].n : ""}/${this.marked}`;
      if (key === this.drawn) return;
      this.drawn = key;
      this.empty.hidden = known.length > 0;
      this.more.hidden = known.length <= shown.length;
      say(this.more, `Show older (${words.count(known.length - shown.length, "more", "more")})`);
      this._keepFocus(() => this.list.replaceChildren(...shown.map((decision) => this._item(decision))));
    }

    _item(decision) {
      const chosen = decision.n === this.marked;
      const button = node("button", { type: "button", class: `decision${chosen ? " marked" : ""}`, "data-n": decision.n,
        "aria-current": chosen ? "true" : null, title: "Show it in the timeline", onclick: () => this._choose(decision) },
        node("span", { class: `sign ${decision.kind === "fail" ? "failure" : ""}`, "aria-hidden": "true" }, SIGNS[decision.kind] || "·"),
        node("span", { class: "said" }, saysKind(decision) ? null : node("span", { class: "kind" }, `${decision.kind} `), decision.text),
        node("time", {}, words.moment(decision.at)));
      return node("li", {}, button);
    }

    _choose(decision) {
      this.marked = decision.n;
      this.draw(this.now);
      this.show(decision);
    }

    /** Redraw without taking the focus from the decision that has it. */
    _keepFocus(redraw) {
      const held = this.list.contains(document.activeElement) ? document.activeElement.dataset.n : null;
      redraw();
      const again = held === null ? null : this.list.querySelector(`[data-n="${Number(held)}"]`);
      if (again) again.focus({ preventScroll: true });
    }
  }

  /** Say whether a text begins with its kind: "hand over from d to a". */
  function saysKind({ kind, text }) {
    const plain = (words) => String(words).toLowerCase().replace(/-/g, " ");
    return plain(text).startsWith(plain(kind));
  }

  downpour.Why = Why;
})(window.downpour = window.downpour || {});
