// What all parts need: elements without markup in strings, and figures as people read them.

export const byId = (id) => document.getElementById(id);

/** An element with attributes and children. Text is text: nothing is read as markup. */
export function make(name, attributes = {}, ...children) {
  const element = name.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4))
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") element.addEventListener("click", value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const GROUPED = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const number = (value) => GROUPED.format(value);
export const short = (value) => (value < 10000 ? GROUPED.format(Math.round(value)) : SHORT.format(value));

export function milliseconds(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  if (ms === 0) return "0 ms";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
}

export const percent = (share) => (share === null || Number.isNaN(share) ? "–" : `${Math.round(share * 100)}%`);

export function ago(seconds) {
  if (seconds < 1.5) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return `${Math.round(seconds / 3600)} h ago`;
}

const UNITS = [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]];

/** A time span as people say it: 4 s, 3 min 31 s, 2 h 5 min. */
export function span(seconds) {
  const left = Math.max(0, Math.round(seconds));
  for (const [unit, size, part, partSize] of UNITS) {
    const rest = Math.floor((left % size) / partSize);
    if (left >= size) return `${Math.floor(left / size)} ${unit}${rest ? ` ${rest} ${part}` : ""}`;
  }
  return `${left} s`;
}

/** "since 10:22:07 (12 s)", with the day if it was another one. Both are Unix times. */
export function sinceWords(since, now) {
  const day = new Date(since * 1000).toDateString() === new Date(now * 1000).toDateString() ? "" : `${new Date(since * 1000).toISOString().slice(0, 10)} `;
  return `since ${day}${clockTime(since)} (${span(now - since)})`;
}

export const clockTime = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");

/** Asks the gateway, as its own page. Returns [status, body]; status 0: it does not answer. */
export async function ask(path, method = "GET", body = undefined) {
  try {
    const answer = await fetch(path, {
      method, body: body === undefined ? undefined : JSON.stringify(body),
      headers: { "x-inferway-page": "1" }, credentials: "same-origin", cache: "no-store",
    });
    const text = await answer.text();
    let told = null;
    try { told = JSON.parse(text); } catch { /* a proxy's page */ }
    return [answer.status, told];
  } catch {
    return [0, null];
  }
}

export function whyNot(status, body) {
  if (status === 0) return "the gateway does not answer";
  const said = body && body.error && body.error.message;
  return said || `the gateway answered ${status}`;
}
