"use strict";
/**
 * The stream of frames from the server, which outlives whatever comes between.
 *
 * A viewer's whole state is the last line that its tables know. So a stream that breaks, a server
 * that was killed and a computer that slept for an hour are one case: connect again, after that line.
 */
(function (downpour) {
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

  downpour.Stream = Stream;
})(window.downpour = window.downpour || {});
