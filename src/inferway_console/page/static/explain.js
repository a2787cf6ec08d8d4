// A request's record in words, with a picture of its blocks: what each engine held of the prompt.

import { clockTime, make, milliseconds, number } from "./dom.js";

const TIERS = ["gpu", "cpu", "storage"];
const TIER_WORDS = ["GPU memory", "CPU memory", "storage"];
const WIDTH = 480;

export function explain(record) {
  return [
    make("p", { class: "story" }, ...story(record)),
    ...record.missed.map((miss) => make("p", { class: "alarm warn" }, make("b", { class: "sign", "aria-label": "Missed" }, "!"),
      make("span", {}, make("strong", {}, `${miss.kind}:`), ` ${number(miss.blocks)} blocks`, miss.detail ? `; ${miss.detail}` : ""))),
    make("h3", {}, "What each engine held of the prompt"), picture(record), key(),
    make("h3", {}, isScored(record) ? "What it was chosen by" : "What each would have cost"), costs(record), make("h3", {}, "The rest"), facts(record),
  ];
}

function story(record) {
  const said = [`It came at ${clockTime(record.at)} and went to `, make("strong", {}, record.chosen || "no engine"), ", "];
  said.push(`which was believed to hold ${number(record.chosen_blocks)} of its ${number(record.prompt_blocks)} blocks. `);
  if (record.reachable_blocks > record.chosen_blocks) said.push(`The most, ${number(record.reachable_blocks)}, was at `, make("strong", {}, record.reachable_at), ". ");
  else if (record.reachable_blocks > 0) said.push("No engine held more. ");
  if (record.delivered_tokens >= 0) said.push(`Its engine took ${number(record.delivered_tokens)} of ${number(record.usage_prompt_tokens < 0 ? record.prompt_tokens : record.usage_prompt_tokens)} prompt tokens from its cache. `);
  else said.push("Its engine did not say what it took from its cache. ");
  if (record.ttft_ms >= 0) said.push(`Its first token came after ${milliseconds(record.ttft_ms)}`, record.expected_ttft_ms >= 0 ? `; ${milliseconds(record.expected_ttft_ms)} were expected.` : ".");
  return said;
}

function picture(record) {
  const all = Math.max(1, record.prompt_blocks);
  const rows = record.candidates.map((each) => {
    const isChosen = each.endpoint === record.chosen;
    const box = make("svg:svg", { class: "held", viewBox: `0 0 ${WIDTH} 16`, preserveAspectRatio: "none", role: "img", "aria-label": `${each.endpoint} held ${each.blocks} of ${all} blocks` }, patterns());
    box.append(make("svg:rect", { class: "none", x: 0, y: 0, width: WIDTH, height: 16 }));
    let at = 0;
    const runs = each.tiers.length ? each.tiers : [[0, each.blocks]];
    for (const [tier, blocks] of runs) {
      box.append(make("svg:rect", { class: TIERS[Math.min(tier, 2)], x: (at / all) * WIDTH, y: 0, width: (blocks / all) * WIDTH, height: 16 }));
      at += blocks;
    }
    for (let place = 1; all <= 96 && place < all; place += 1) box.append(make("svg:line", { x1: (place / all) * WIDTH, x2: (place / all) * WIDTH, y1: 0, y2: 16 }));
    return make("tr", { class: isChosen ? "chosen" : null }, make("th", { scope: "row" }, isChosen ? "▸ " : "", each.endpoint), make("td", { class: "wide" }, box), make("td", { class: "number" }, `${number(each.blocks)} of ${number(all)}`));
  });
  if (!rows.length) return make("p", { class: "empty" }, "Candidates were not kept: it was not decided by its prompt, or it was refused before.");
  const left = record.num_candidates - record.candidates.length;
  return make("div", { class: "scroll" }, make("table", { class: "small held" }, make("tbody", {}, ...rows)), left > 0 ? make("p", { class: "muted" }, `${number(left)} more candidates were not kept.`) : "");
}

function patterns() {
  return make("svg:defs", {},
    make("svg:pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, make("svg:rect", { class: "ink", width: 3, height: 6 })),
    make("svg:pattern", { id: "dots", width: 6, height: 6, patternUnits: "userSpaceOnUse" }, make("svg:circle", { class: "ink", cx: 3, cy: 3, r: 1.6 })));
}

function key() {
  return make("p", { class: "legend" }, ...[...TIER_WORDS, "not held"].map((word, tier) => make("span", {},
    make("svg:svg", { class: "held", width: 26, height: 12, viewBox: "0 0 26 12", "aria-hidden": "true" }, patterns(), make("svg:rect", { class: TIERS[tier] || "none", width: 26, height: 12 })), word)));
}

const TERMS = { fixed: "fixed", own: "own tokens", pairs: "token pairs", waiting: "waiting tokens", queue: "waiting requests", batch: "running requests", late: "lateness", prefill: "prefill leg", transfer: "transfer" };

const isScored = (record) => record.candidates.some((each) => each.terms.score !== undefined);

/** By weights: the score of the chosen one is kept, and none of the others'. */
function scores(record) {
  const rows = record.candidates.map((each) => make("tr", { class: each.endpoint === record.chosen ? "chosen" : null },
    make("th", { scope: "row" }, each.endpoint === record.chosen ? "▸ " : "", each.endpoint),
    make("td", { class: "number" }, each.endpoint === record.chosen ? (each.terms.score ?? 0).toFixed(2) : "–"),
    make("td", { class: "number" }, `${number(each.running)}, ${number(each.waiting)}`)));
  const head = ["Engine", "score", "running, waiting"].map((name, place) => make("th", { scope: "col", class: place ? "number" : null }, name));
  return make("div", {}, make("table", { class: "small" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)),
    make("p", { class: "muted unit" }, "The highest score wins; only that of the chosen engine is kept."));
}

function costs(record) {
  const names = [...new Set(record.candidates.flatMap((each) => Object.keys(each.terms)))];
  if (!names.length) return make("p", { class: "empty" }, "It was not chosen by expected time.");
  if (isScored(record)) return scores(record);
  const head = ["Engine", ...names.map((name) => TERMS[name] || name), "to others", "total", "running, waiting"];
  const rows = record.candidates.map((each) => make("tr", { class: each.endpoint === record.chosen ? "chosen" : null },
    make("th", { scope: "row" }, each.endpoint === record.chosen ? "▸ " : "", each.endpoint),
    ...names.map((name) => make("td", { class: "number" }, each.terms[name] === undefined ? "–" : each.terms[name].toFixed(1))),
    make("td", { class: "number" }, each.others_ms.toFixed(1)), make("td", { class: "number" }, each.cost.toFixed(1)),
    make("td", { class: "number" }, `${number(each.running)}, ${number(each.waiting)}`)));
  return make("div", { class: "scroll" }, make("table", { class: "small wraps" },
    make("thead", {}, make("tr", {}, ...head.map((name, place) => make("th", { scope: "col", class: place ? "number" : null }, name)))), make("tbody", {}, ...rows)),
  make("p", { class: "muted unit" }, "Milliseconds; the lowest total wins."));
}

function facts(record) {
  const shown = [
    ["Model", record.model], ["Path", record.path], ["Reason", `${record.reason}${record.picked_by ? `, by ${record.picked_by}` : ""}`],
    ["Outcome", `${record.status} ${record.outcome}`], ["Tries", number(record.attempts)], ["Waited for its turn", milliseconds(record.waited_ms)],
    ["Decided in", milliseconds(record.decided_ms)], ["Total", milliseconds(record.total_ms)],
    ["Between tokens", record.itl_p50_ms < 0 ? "–" : `${milliseconds(record.itl_p50_ms)} (median), ${milliseconds(record.itl_max_ms)} at most`],
    ["Tokens generated", record.output_tokens < 0 ? "not told" : number(record.output_tokens)],
  ];
  if (record.prefill) shown.push(["Prompt computed by", record.prefill]);
  if (record.edits.length) shown.push(["Edited", record.edits.join(", ")]);
  return make("dl", { class: "facts" }, ...shown.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}
