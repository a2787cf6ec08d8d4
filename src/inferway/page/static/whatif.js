// What if: a question about the recorded hours, how far its answer is, and the answer.

import { ask, byId, make, milliseconds, number, setText, whyNot } from "./dom.js";

const PATH = "/admin/what-if";
const IDLE_MS = 10000;
const RUNNING_MS = 1000;
const OFF = "the model is off by";
let timer = 0;
let shown = "";

/** Begins to look; the board is there. */
export function followWhatIf() {
  byId("whatif-form").addEventListener("submit", begin);
  byId("whatif-stop").addEventListener("click", () => change("DELETE"));
  document.addEventListener("visibilitychange", () => { if (!document.hidden) readWhatIf(); });
}

export async function readWhatIf() {
  clearTimeout(timer);
  if (byId("board").hidden || document.hidden) return;
  show(...(await ask(PATH)));
}

async function begin(event) {
  event.preventDefault();
  const form = byId("whatif-form").elements;
  await change("POST", {
    policy: form.policy.value || null,
    engines: form.engines.value ? Number(form.engines.value) : null,
    cache: form.cache.value,
    prefill_apart: form.prefill_apart.checked,
    hours: form.hours.value ? Number(form.hours.value) : null,
  });
}

async function change(method, body) {
  const [status, told] = await ask(PATH, method, body);
  if (status === 200 || status === 202) show(200, told);
  else say(whyNot(status, told));
}

function show(status, told) {
  const running = status === 200 && told.state === "running";
  clearTimeout(timer);
  timer = setTimeout(readWhatIf, running ? RUNNING_MS : IDLE_MS);
  if (status !== 200) {
    if (status !== 401) say(whyNot(status, told));
    return;
  }
  byId("whatif-record").hidden = told.lacks !== "record";
  byId("whatif-bench").hidden = told.lacks !== "bench";
  const form = byId("whatif-form");
  form.hidden = told.lacks !== "" && !running;
  offer(form.elements.policy, told.policies);
  form.elements.run.disabled = running;
  byId("whatif-running").hidden = !running;
  if (running) showProgress(told);
  const key = JSON.stringify([told.state, told.question, told.message, told.result]);
  if (key === shown) return;
  shown = key;
  say(told.state === "failed" ? `No answer: ${told.message}.` : "");
  byId("whatif-result").replaceChildren(...(told.state === "done" ? answer(told) : []));
}

function say(words) {
  setText(byId("whatif-error"), words);
}

function offer(select, policies) {
  if (select.options.length > 1) return;
  select.append(...policies.map((name) => make("option", { value: name }, name)));
}

function showProgress({ seconds, progress, question }) {
  setText(byId("whatif-progress"), `${capital(asked(question))}: ${progress}, for ${Math.round(seconds)} s`);
  const counted = /([\d,]+) of ([\d,]+)/.exec(progress);
  const bar = byId("whatif-bar");
  if (counted) {
    [bar.value, bar.max] = counted.slice(1).map((each) => Number(each.replaceAll(",", "")));
  } else {
    bar.removeAttribute("value");
  }
}

/** The question in words. */
function asked(question) {
  const words = [
    question.policy,
    question.engines && `${number(question.engines)} engine${question.engines > 1 ? "s" : ""}`,
    question.cache !== "1x" && `caches of ${question.cache}`,
    question.prefill_apart && "prefill apart",
  ].filter(Boolean);
  const when = question.hours ? `the last ${question.hours === 1 ? "hour" : `${question.hours} hours`}` : "all recorded hours";
  return `${words.length ? words.join(", ") : "the other policies"}, on ${when}`;
}

function answer({ question, result }) {
  const inWords = result.sentences.filter((each) => each.startsWith("with "));
  const how = result.sentences.filter((each) => !each.startsWith("with "));
  return [
    make("h3", {}, `What if: ${asked(question)}`),
    make("ul", { class: "said" }, ...inWords.map((each) => make("li", {}, capital(each)))),
    picture(result.cases.filter((each) => each.name !== OFF)),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "All figures" }, table(result.cases)),
    make("details", { class: "more" }, make("summary", {}, "What this was computed from"), make("ul", { class: "said muted" }, ...how.map((each) => make("li", {}, capital(each))))),
  ];
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

/** Two bars of each case, with its figures in words. */
function picture(cases) {
  const most = Math.max(1e-9, ...cases.map((each) => each.ttft_p90 || 0));
  const bar = (name, ms) => {
    const filled = make("i", { class: name });
    filled.style.width = `${Math.max(0.5, (100 * ms) / most)}%`;
    return make("div", { class: "beam" }, make("span", { class: "name" }, name), make("span", { class: "track" }, filled, make("span", { class: "value" }, milliseconds(ms))));
  };
  return make("figure", { class: "cases" },
    make("figcaption", { class: "muted" }, "Time to the first token: half of the requests (p50) and nine of ten (p90) had it within"),
    ...cases.map((each) => make("div", { class: each.name === "measured" ? "case measured" : "case" },
      make("b", {}, each.name), bar("p50", each.ttft_p50), bar("p90", each.ttft_p90))));
}

const share = (value, digits) => `${value.toFixed(digits)}%`;
const COLUMNS = [
  ["Engines", "engines", number],
  ["p50", "ttft_p50", milliseconds],
  ["p90", "ttft_p90", milliseconds],
  ["p99", "ttft_p99", milliseconds],
  ["Cached", "cached", (value) => share(value, 1)],
  ["Utilization", "busy", (value) => share(value, 0)],
  ["Engine-hours", "cost", (value) => value.toFixed(2)],
];

function table(cases) {
  const cell = (value, form) => (value === null ? "–" : typeof value === "string" ? value : form(value));
  return make("table", { class: "small" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Case"), ...COLUMNS.map(([head]) => make("th", { scope: "col", class: "number" }, head)))),
    make("tbody", {}, ...cases.map((each) => make("tr", { class: each.name === OFF ? "muted" : null },
      make("th", { scope: "row" }, each.name),
      ...COLUMNS.map(([, key, form]) => make("td", { class: "number" }, each.name === OFF && each[key] === null ? "" : cell(each[key], form)))))));
}
