"use strict";
/** The one tooltip of the timeline, and the key to its bars. */
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

  Object.assign(downpour, { Tip, legend });
})(window.downpour = window.downpour || {});
