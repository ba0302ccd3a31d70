"use strict";
/** What lies on the bars of a timeline: arrows of hand-overs and copies, failures, forecasts, the selection. */
(function (downpour) {
  /** Draw it for these bars; the canvas is moved to the corner of the plot. */
  function drawDetails(timeline, bars) {
    for (const bar of bars) {
      if (bar.outcome === 0) drawForecast(timeline, bar);
      if (bar.outcome === 5) drawFailure(timeline, bar);
      drawLink(timeline, bar);
    }
    drawSelection(timeline);
  }

  /** Draw the interval in which the end is expected: a line from the 10 to the 90 % quantile. */
  function drawForecast({ context, colours, view, now, tables: { attempts: all } }, { i, y, height }) {
    const begin = all.begin[i];
    if (!(all.q50[i] > 0) || height < 8 || begin + all.forecastAt[i] > now + 0.001) return;
    const [low, middle, high] = [all.q10[i], all.q50[i], all.q90[i]].map((value) => view.x(begin + value));
    const centre = Math.round(y + height / 2) + 0.5;
    context.strokeStyle = context.fillStyle = colours.muted;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(low, centre);
    context.lineTo(high, centre);
    for (const x of [low, high]) {
      context.moveTo(x, centre - 3);
      context.lineTo(x, centre + 3);
    }
    context.stroke();
    context.fillRect(Math.round(middle) - 1, centre - 4, 2, 8);
  }

  /** Cross out the end of an attempt that failed. */
  function drawFailure({ context, colours }, { x, y, width, height }) {
    const [at, centre, arm] = [x + width, y + height / 2, Math.min(4, height / 3)];
    context.strokeStyle = colours.failure;
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(at + 2, centre - arm);
    context.lineTo(at + 2 + 2 * arm, centre + arm);
    context.moveTo(at + 2, centre + arm);
    context.lineTo(at + 2 + 2 * arm, centre - arm);
    context.stroke();
  }

  /** Draw the arrow from the attempt before: solid if it went on with that work, dashed for a copy. */
  function drawLink({ context, colours, view, rank, tables, now }, { i, x, y, width, height }) {
    const all = tables.attempts;
    const earlier = all.previous[i];
    if (earlier < 0) return;
    const copy = isCopy(tables, i);
    if (copy) {
      context.setLineDash([3, 2]);
      context.strokeStyle = colours.ink;
      context.lineWidth = 1;
      context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    }
    const from = copy ? all.begin[i] : Math.min(all.end[earlier], now);
    const start = [view.x(from), view.y(rank[all.worker[earlier]]) + height / 2];
    arrow(context, colours, start, [Math.max(0, view.x(all.begin[i])), y + height / 2], Math.min(1, width / 14));
    context.setLineDash([]);
  }

  /** Say whether an attempt copies another one that still went on, rather than continuing it. */
  function isCopy(tables, i) {
    const all = tables.attempts;
    const earlier = all.previous[i];
    if (earlier < 0) return false;
    const ended = all.end[earlier];
    const given = downpour.OUTCOMES[all.outcome[earlier]] === "moved";
    return !given && !(ended <= all.begin[i]);
  }

  /** Mark when somebody slowed or killed a process on purpose: dashed lines through all rows. */
  function drawDisturbances({ context, colours, view, tables, now }) {
    let before = -Infinity;
    for (const { at } of tables.disturbances.values()) {
      const x = Math.round(view.x(at)) + 0.5;
      if (at > now || x < 0 || x > view.width || x - before < 2) continue;
      for (const [colour, wide] of [[colours.paper, 3], [colours.failure, 1.5]]) {
        context.strokeStyle = colour;
        context.lineWidth = wide;
        context.setLineDash(colour === colours.paper ? [] : [5, 3]);
        context.beginPath();
        context.moveTo(x, -3);
        context.lineTo(x, view.height);
        context.stroke();
      }
      before = x;
    }
    context.setLineDash([]);
  }

  /** Draw an arrow with a rim of paper, so that it stands out from bars; a small one beside small bars. */
  function arrow(context, colours, [x0, y0], [x1, y1], size) {
    const lean = Math.min(14, Math.max(6, Math.abs(x1 - x0) / 2));
    const line = () => {
      context.beginPath();
      context.moveTo(x0, y0);
      context.bezierCurveTo(x0 + lean, y0, x1 - lean, y1, x1, y1);
      context.stroke();
    };
    for (const [colour, wide] of [[colours.paper, 1 + 2.5 * size], [colours.ink, 0.7 + 0.7 * size]]) {
      context.strokeStyle = colour;
      context.lineWidth = wide;
      line();
    }
    context.fillStyle = colours.ink;
    context.beginPath();
    context.moveTo(x1 + 3 * size, y1);
    context.lineTo(x1 - 4 * size, y1 - 3.5 * size);
    context.lineTo(x1 - 4 * size, y1 + 3.5 * size);
    context.fill();
  }

  /** Frame the attempts of the selected task, and the one that the keys or a decision point to. */
  function drawSelection({ context, colours, view, rank, tables, selected, cursor, now }) {
    const chosen = selected ? tables.attemptsOf(...selected) : [];
    for (const i of cursor >= 0 && !chosen.includes(cursor) ? [...chosen, cursor] : chosen) {
      const { begin, end, worker } = tables.attempts;
      const last = end[i] <= now ? end[i] : now;
      const [x, y] = [view.x(begin[i]), view.y(rank[worker[i]])];
      const size = [Math.max(3, view.x(last) - x), Math.max(2, view.rowHeight * 0.78)];
      context.strokeStyle = colours.paper;
      context.lineWidth = 5;
      context.strokeRect(x - 1, y - 1, size[0] + 2, size[1] + 2);
      context.strokeStyle = i === cursor ? colours["series-2"] : colours.ink;
      context.lineWidth = 2;
      context.strokeRect(x - 1, y - 1, size[0] + 2, size[1] + 2);
    }
  }

  Object.assign(downpour, { drawDetails, drawDisturbances, isCopy });
})(window.downpour = window.downpour || {});
