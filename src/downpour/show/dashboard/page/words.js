"use strict";
/** Numbers as people read them, and elements whose content is always text. */
(function (downpour) {
  const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

  /** Write a number with three digits that count. @param {number} value */
  function digits(value) {
    const size = Math.abs(value);
    return value.toFixed(size >= 100 || value === 0 ? 0 : size >= 10 ? 1 : 2);
  }

  /** Write a duration. @param {?number} value seconds */
  function seconds(value) {
    if (value === null || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size < 59.95) return `${size < 1 ? value.toFixed(2) : value.toFixed(1)} s`;
    const whole = Math.round(size);
    const sign = value < 0 ? "−" : "";
    const [days, hours] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24];
    const [minutes, rest] = [Math.floor(whole / 60) % 60, whole % 60];
    if (days) return `${sign}${days} d ${hours} h`;
    if (hours) return `${sign}${hours} h ${minutes} min`;
    return `${sign}${minutes} min ${rest} s`;
  }

  /** Write a moment of the run as a clock does: 4:07, 1:02:03, 0:04.25. */
  function moment(value, step = 1) {
    const places = step >= 1 ? 0 : step >= 0.1 ? 1 : step >= 0.01 ? 2 : 3;
    const factor = 10 ** places;
    const size = Math.round(Math.abs(value) * factor) / factor;
    const [hours, minutes] = [Math.floor(size / 3600), Math.floor(size / 60) % 60];
    const rest = (size % 60).toFixed(places).padStart(places ? places + 3 : 2, "0");
    const front = hours ? `${hours}:${String(minutes).padStart(2, "0")}` : String(minutes);
    return `${value < 0 ? "−" : ""}${front}:${rest}`;
  }

  /** Write a size. @param {?number} value bytes */
  function bytes(value) {
    if (value === null || value === undefined) return "–";
    let place = 0;
    while (value >= 999.5 && place < UNITS.length - 1) {
      value /= 1000;
      place += 1;
    }
    return `${place ? digits(value) : Math.round(value)} ${UNITS[place]}`;
  }

  /** Write a share in 0..1 as per cent. */
  function percent(value, places = 1) {
    return value === null || value === undefined ? "–" : `${(100 * value).toFixed(places)} %`;
  }

  /** Write a value of a metric. @param {{percent: boolean}} metric */
  function measure(value, metric) {
    if (value === null || value === undefined) return "–";
    return metric && metric.percent ? percent(value, 2) : number(value);
  }

  function number(value) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    if (Number.isInteger(value)) return value.toLocaleString("en-US");
    const size = Math.abs(value);
    return size !== 0 && (size < 0.001 || size >= 1e6) ? value.toExponential(2) : value.toPrecision(4);
  }

  /** Count things: "1 worker", "3 workers". */
  function count(value, one, many = `${one}s`) {
    return `${value.toLocaleString("en-US")} ${value === 1 ? one : many}`;
  }

  /** Write a forecast of an attempt: its median, and where it lies in eight cases of ten. */
  function forecast(all, i) {
    if (!(all.q50[i] > 0)) return "–";
    return `${seconds(all.q50[i])} (${seconds(all.q10[i])} to ${seconds(all.q90[i])})`;
  }

  /** Cut a long name in its middle: its end often tells it from others. */
  function cut(name, most) {
    if (name.length <= most) return name;
    const front = most >> 1;
    return `${name.slice(0, front)}…${name.slice(name.length - (most - front - 1))}`;
  }

  /** Say how long ago a moment was, roughly. @param {number} at unix seconds */
  function ago(at) {
    const past = Date.now() / 1000 - at;
    if (past < 5) return "just now";
    if (past < 86400) return `${seconds(past < 60 ? Math.round(past) : past)} ago`.replace(".0 s", " s");
    return new Date(at * 1000).toISOString().slice(0, 16).replace("T", " ");
  }

  /**
   * Make an element. Children are elements or values, and a value is never more than text.
   * @param {string} tag
   * @param {Object<string, *>} attributes listeners by `onclick`, the rest as attributes
   */
  function node(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return made;
  }

  /** Make a part that scrolls, also by keys, with a name for those who hear it. */
  function region(label, ...children) {
    return node("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, ...children);
  }

  /** Put a text into an element, if it is another one: readers and layout stay undisturbed. */
  function say(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  /** Wait for an answer; return it, or null and a sentence on the trouble. */
  async function answered(promise, what) {
    try {
      return [await promise, ""];
    } catch (error) {
      return [null, `Cannot read ${what}: ${error.message}`];
    }
  }

  /** Redraw without taking the focus from an element with some value of an attribute. */
  function keepFocus(root, attribute, redraw) {
    const held = root.contains(document.activeElement) ? document.activeElement.getAttribute(attribute) : null;
    redraw();
    const again = held && [...root.querySelectorAll(`[${attribute}]`)].find((one) => one.getAttribute(attribute) === held);
    if (again) again.focus({ preventScroll: true });
  }

  /** Make a table. Cells are values or elements; `text` columns are set to the left. */
  function table(caption, columns, rows) {
    const head = columns.map((column) =>
      node("th", { scope: "col", class: column.text ? "text" : null }, column.title));
    const body = rows.map((row) => node("tr", {}, row.map((cell, place) =>
      node("td", { class: columns[place].text ? "text" : null }, cell))));
    return node("table", {}, node("caption", {}, caption),
      node("thead", {}, node("tr", {}, head)), node("tbody", {}, body));
  }

  Object.assign(downpour, {
    words: { seconds, moment, bytes, percent, measure, number, count, forecast, cut, ago, digits },
    node, region, say, answered, keepFocus, table,
  });
})(window.downpour = window.downpour || {});
