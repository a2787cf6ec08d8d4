// Alarms, the figures of the last minute, cache breakers, and the health of events.

import { ago, byId, make, milliseconds, number, percent, setText, short, whyNot } from "./dom.js";

const MOST_EVENTS = 12;
let shownAlarms = "";

export function showAlarms(alarms) {
  const key = JSON.stringify(alarms);
  if (key === shownAlarms) return;
  shownAlarms = key;
  byId("alarms").replaceChildren(...alarms.slice(0, 6).map(alarm), alarms.length > 6 ? rest(alarms.slice(6)) : "");
}

function alarm({ level, subject, evidence, cure }) {
  const [sign, word] = level === "fail" ? ["✕", "Fault"] : ["!", "Warning"];
  return make("article", { class: `alarm ${level}` },
    make("b", { class: "sign", "aria-label": word, title: word }, sign),
    make("p", {}, make("strong", {}, subject), ` ${evidence}`, cure ? make("span", { class: "cure" }, make("b", {}, "Fix: "), cure) : ""));
}

function rest(alarms) {
  return make("details", { class: "more" }, make("summary", {}, `${alarms.length} more`), ...alarms.map(alarm));
}

export function showFigures(state) {
  const buckets = [...state.timeline.values()].filter((bucket) => bucket[0] >= state.now - 60);
  const sum = (place) => buckets.reduce((total, bucket) => total + bucket[place], 0);
  const [requests, failed, prompt, reachable, , delivered] = [1, 2, 3, 4, 5, 6].map(sum);
  const engines = [...state.engines.values()];
  const up = engines.filter((row) => row.up).length;
  const came = buckets.filter((bucket) => bucket[8] !== null);
  const ttft = came.length ? came.map((bucket) => bucket[8]).sort((a, b) => a - b)[Math.floor(came.length / 2)] : null;
  const flying = engines.reduce((total, row) => total + row.in_flight, 0);
  const waiting = engines.reduce((total, row) => total + row.waiting, 0);
  figure("rate", "Requests a second", (requests / 60).toFixed(requests < 600 ? 1 : 0), failed ? `${number(failed)} failed in the last minute` : "none failed in the last minute");
  figure("flying", "In flight", number(flying), `${number(waiting)} wait in engines`);
  figure("cached", "Taken from caches", prompt ? percent(delivered / prompt) : "–", prompt ? `of prompt tokens; ${percent(reachable / prompt)} reachable` : "no prompt in the last minute");
  figure("first", "First token", milliseconds(ttft), "median of the last minute");
  figure("up", "Engines", `${number(up)}`, up === engines.length ? "all answer" : `of ${number(engines.length)} answer`);
}

function figure(id, name, value, about) {
  let element = byId(`figure-${id}`);
  if (!element) {
    element = make("div", { class: "card figure", id: `figure-${id}` }, make("span", { class: "name" }, name), make("b"), make("span", { class: "muted" }));
    byId("figures").append(element);
  }
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
