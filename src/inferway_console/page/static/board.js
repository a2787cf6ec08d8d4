// Alarms, the figures of the last minute, cache breakers, and the health of events.

import { ago, byId, make, milliseconds, number, percent, setText, short, sinceWords, whyNot } from "./dom.js";

const MOST_EVENTS = 12;
const MOST_ALARMS = 6;
let shownAlarms = "";

export function showAlarms(alarms, now) {
  const key = JSON.stringify(alarms);
  if (key !== shownAlarms) {
    shownAlarms = key;
    const total = alarms.filter((each) => each.is_total);
    const others = alarms.filter((each) => !each.is_total);
    const most = total.length ? 0 : MOST_ALARMS; // the banner says it, and the rest is how
    const left = others.slice(most);
    byId("alarms").replaceChildren(...total.map(alarm), ...others.slice(0, most).map(alarm), left.length ? rest(left, total.length ? "Engine by engine" : `${left.length} more`) : "");
  }
  for (const element of byId("alarms").querySelectorAll("[data-since]")) setText(element, ` ${sinceWords(Number(element.dataset.since), now)}`);
}

/** The title says how many engines are down, for who looks at another tab. */
export function showTitle(engines, alarms) {
  const down = [...engines.values()].filter((row) => !row.up && !row.drained).length;
  const title = down ? `(${down} down) Inferway` : "Inferway";
  if (document.title !== title) document.title = title;
  document.body.dataset.health = alarms.some((each) => each.is_total) ? "out" : "";
}

const LEVELS = { fail: ["✕", "Fault"], warn: ["!", "Warning"], info: ["i", "Note"] };

function alarm({ level, subject, evidence, cure, since, detail, effect, see, is_total: isTotal }) {
  const [sign, word] = LEVELS[level] || LEVELS.warn;
  const words = [isTotal ? make("strong", {}, capital(evidence)) : make("strong", {}, subject), isTotal ? "" : ` ${evidence}`,
    since ? make("span", { class: "since", "data-since": since }) : "", detail ? `: ${detail}` : "", `${effect || isTotal ? ". " : ""}${effect ? `${capital(effect)}.` : ""}`];
  const more = see ? [" ", make("a", { href: see, target: "_blank", rel: "noopener" }, "More")] : [];
  return make("article", { class: `alarm ${level}${isTotal ? " total" : ""}` },
    make("b", { class: "sign", "aria-label": word, title: word }, sign),
    make("p", {}, ...words, cure ? make("span", { class: "cure" }, make("b", {}, "Fix: "), cure, ...more) : ""));
}

function rest(alarms, words) {
  return make("details", { class: "more" }, make("summary", {}, words), ...alarms.map(alarm));
}

export function showFigures(state) {
  const buckets = [...state.timeline.values()].filter((bucket) => bucket[0] >= state.now - 60);
  const sum = (place) => buckets.reduce((total, bucket) => total + bucket[place], 0);
  const [requests, failed, prompt, reachable, , delivered] = [1, 2, 3, 4, 5, 6].map(sum);
  const unseen = sum(10);
  const engines = [...state.engines.values()];
  const up = engines.filter((row) => row.up).length;
  const { p50, p95 } = state.firstToken;
  const flying = engines.reduce((total, row) => total + row.in_flight, 0);
  const waiting = engines.reduce((total, row) => total + (row.up ? row.waiting : 0), 0);
  figure("rate", "Requests a second", (requests / 60).toFixed(requests < 600 ? 1 : 0), `${number(requests)} in the last minute`);
  figure("failed", "Failed", requests ? share(failed / requests) : "–", failed ? `${number(failed)} of ${number(requests)}` : "none in the last minute", failed > 0);
  figure("flying", "In flight", number(flying), "not ended yet");
  figure("waiting", "Waiting", number(waiting + state.queued), `${number(waiting)} in engines, ${number(state.queued)} here`);
  figure("first", "First token, p95", milliseconds(p95), p50 === null ? "none in the last minute" : `median ${milliseconds(p50)}`);
  figure("cached", "Taken from caches", prompt ? percent(delivered / prompt) : "–", prompt ? cached(reachable / prompt, unseen / prompt) : "none in the last minute");
  figure("up", "Engines", `${number(up)}`, up === engines.length ? "all answer" : `of ${number(engines.length)} answer`, up < engines.length && !up);
}

const share = (part) => (part > 0 && part < 0.01 ? `${(part * 100).toFixed(1)}%` : percent(part));

/** What an engine without events holds cannot be reached: what it delivers is counted apart. */
const cached = (reachable, unseen) => `of prompt tokens; ${percent(reachable)} reachable${unseen >= 0.005 ? `, ${percent(unseen)} at engines without events` : ""}`;

function figure(id, name, value, about, isBad = false) {
  let element = byId(`figure-${id}`);
  if (!element) {
    element = make("div", { class: "card figure", id: `figure-${id}` }, make("span", { class: "name" }, name), make("b"), make("span", { class: "muted" }));
    byId("figures").append(element);
  }
  element.classList.toggle("bad", isBad);
  setText(element.children[1], value);
  setText(element.children[2], about);
}

export function showBreakers(status, body) {
  const holder = byId("breakers");
  const found = body && body.breakers;
  if (status !== 200) {
    holder.replaceChildren(make("p", { class: "empty" }, status === 404 ? "This gateway does not look for them." : `Not known: ${whyNot(status, body)}.`));
    return;
  }
  if (!found.length) {
    holder.replaceChildren(make("p", { class: "empty" }, "No cache breakers found."));
    return;
  }
  holder.replaceChildren(make("ol", { class: "breakers" }, ...found.slice(0, 10).map((each) => make("li", {},
    make("p", {}, make("strong", {}, each.kind), make("span", { class: "muted" }, ` ${each.model}`)),
    make("p", {}, capital(each.what)),
    make("p", { class: "muted" }, `About ${short(each.tokens_a_day)} tokens a day are computed again, ${percent(each.share)} of the model's; ${number(each.requests)} prompts, last ${ago(each.last_seconds_ago)}`),
    make("p", { class: "cure" }, make("b", {}, "Fix: "), each.cure)))));
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

const TRUST = { exact: "known exactly", partial: "known in part", repairing: "being repaired", stale: "link lost", blind: "not known", "not followed": "not followed" };
const ORDER = ["blind", "stale", "repairing", "partial", "exact", "not followed"];

export function showEvents(engines, now) {
  const rows = [...engines.values()];
  const sorted = rows.sort((a, b) => ORDER.indexOf(a.trust) - ORDER.indexOf(b.trust) || b.gaps - a.gaps);
  const counts = ORDER.map((trust) => [trust, rows.filter((row) => row.trust === trust).length]).filter(([, count]) => count);
  const summary = counts.map(([trust, count]) => `${number(count)} ${TRUST[trust]}`).join(" · ") || "no engine";
  const lines = sorted.slice(0, MOST_EVENTS).map((row) => make("tr", {},
    make("th", { scope: "row" }, row.name), make("td", {}, TRUST[row.trust]),
    make("td", { class: "number" }, row.events_at === null ? "none yet" : ago(now - row.events_at)),
    make("td", { class: "number" }, number(row.events)), make("td", { class: "number" }, number(row.gaps))));
  const head = ["Engine", "Cache", "Last", "Batches", "Gaps"].map((name, place) => make("th", { scope: "col", class: place > 1 ? "number" : null }, name));
  byId("events").replaceChildren(make("p", { class: "muted" }, summary),
    make("div", { class: "scroll" }, make("table", { class: "small" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...lines))));
}
