// The engines: cards for a few, small tiles for many. Only what has changed is drawn again.

import { openDrawer } from "./drawer.js";
import { ago, ask, byId, make, milliseconds, number, percent, setText, short, sinceWords, whyNot } from "./dom.js";

const MOST_CARDS = 24;
const TIERS = ["GPU", "CPU", "storage"];
const [TILE_WIDTH, TILE_LINE, GAP] = [52, 42, 4]; // pixels, as parts.css has them

const OUT = { unreachable: "cannot be reached", silent: "does not answer", stalled: "computes nothing", invalid: "is no engine", unheard: "not heard yet" };

const SUSPENDED = ["asleep", "paused", "scaling"]; // well, and computes nothing until it is told to

/** [sign, word, class] of an engine; the sign is read without colours, too. */
export function stateOf(row) {
  if (!row.up) return ["✕", OUT[row.state] || "does not answer", "down"];
  if (row.drained) return ["‖", "drained", "drained"];
  if (SUSPENDED.includes(row.state)) return ["☾", row.state, "drained"];
  if (!["closed", "None", ""].includes(row.breaker)) return ["↯", `ejected (${row.breaker})`, "ejected"];
  if (row.trust === "stale" || row.trust === "blind") return ["?", `cache ${row.trust}`, "unsure"];
  if (row.trust === "partial" || row.trust === "repairing") return ["◐", `cache ${row.trust}`, "partly"];
  if (row.late) return ["…", "keeps waiting", "unsure"];
  if (row.slow) return ["▽", `${Math.round(row.slow.times)}× slower`, "unsure"];
  return ["●", "healthy", "well"];
}

const words = (row) => `${row.name} ${stateOf(row)[1]} ${row.trust} ${row.role || ""} ${row.models.join(" ")}`.toLowerCase();

export class Fleet {
  constructor() {
    this.holder = byId("fleet");
    this.drawn = new Map(); // name -> [row, element]
    this.isCompact = false;
    this.focused = null;
    this.holder.addEventListener("keydown", (event) => this.move(event));
    this.holder.addEventListener("scroll", () => requestAnimationFrame(() => this.show(this.engines, this.now)), { passive: true });
    this.holder.addEventListener("focusin", (event) => this.focus(event.target.closest("[data-name]")));
    this.holder.addEventListener("click", (event) => {
      const found = event.target.closest("[data-name]");
      if (found) this.open(found.dataset.name);
    });
  }

  show(engines, now) {
    this.engines = engines;
    this.now = now;
    const wanted = byId("find").value.trim().toLowerCase();
    const rows = [...engines.values()].filter((row) => !wanted || words(row).includes(wanted));
    const isCompact = engines.size > MOST_CARDS;
    if (isCompact !== this.isCompact) this.clear();
    this.isCompact = isCompact;
    this.holder.classList.toggle("compact", isCompact);
    const names = new Set(rows.map((row) => row.name));
    for (const [name, [, element]] of this.drawn) {
      if (!names.has(name)) { element.remove(); this.drawn.delete(name); }
    }
    const added = document.createDocumentFragment();
    const [first, last] = isCompact ? this.inSight(rows.length) : [0, rows.length];
    rows.forEach((row, place) => {
      if (!this.drawn.has(row.name) || (place >= first && place < last)) this.draw(row, added);
    });
    this.holder.append(added);
    this.say(rows, engines, wanted, now);
    if (!this.focused || !this.focused.isConnected) this.focus(this.holder.firstElementChild);
    if (this.opened && byId("drawer").open) this.refresh(engines.get(this.opened), now);
  }

  /** The places of the tiles that can be seen; the others are drawn when they come into sight. */
  inSight(length) {
    const { scrollTop, clientHeight, clientWidth } = this.holder;
    const columns = Math.max(1, Math.floor((clientWidth - 6 + GAP) / (TILE_WIDTH + GAP)));
    const line = Math.floor(scrollTop / TILE_LINE);
    return [line * columns, Math.min(length, (line + Math.ceil((clientHeight || 460) / TILE_LINE) + 1) * columns)];
  }

  draw(row, added) {
    const known = this.drawn.get(row.name);
    if (known && known[0] === row) return;
    const element = known ? known[1] : (this.isCompact ? tile : card)(row.name);
    (this.isCompact ? fillTile : fillCard)(element, row);
    if (!known) added.append(element);
    this.drawn.set(row.name, [row, element]);
  }

  clear() {
    this.drawn.clear();
    this.holder.replaceChildren();
  }

  say(rows, engines, wanted) {
    const counts = new Map();
    for (const row of engines.values()) {
      const [sign, word] = stateOf(row);
      counts.set(`${sign} ${word}`, (counts.get(`${sign} ${word}`) || 0) + 1);
    }
    setText(byId("fleet-count"), [...counts].map(([word, count]) => `${number(count)} ${word}`).join("   "));
    const empty = byId("fleet-empty");
    empty.hidden = rows.length > 0;
    setText(empty, wanted ? `No engine is called or is “${wanted}”.` : "No engine is known yet. Give one: inferway serve http://HOST:PORT");
  }

  focus(element) {
    if (!element || element === this.focused) return;
    if (this.focused) this.focused.tabIndex = -1;
    this.focused = element;
    element.tabIndex = 0;
  }

  move(event) {
    const at = event.target.closest("[data-name]");
    if (!at) return;
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.open(at.dataset.name); return; }
    const all = [...this.holder.children];
    const place = all.indexOf(at);
    const top = at.offsetTop;
    const across = all.findIndex((element) => element.offsetTop !== all[0].offsetTop);
    const line = across < 0 ? all.length : across;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: line, ArrowUp: -line, Home: -place, End: all.length - 1 - place };
    if (!(event.key in steps) || top === undefined) return;
    event.preventDefault();
    const next = all[Math.max(0, Math.min(all.length - 1, place + steps[event.key]))];
    this.focus(next);
    next.focus();
  }

  open(name) {
    this.opened = name;
    this.said = "";
    openDrawer(name, this.details(this.engines.get(name)), () => { this.opened = null; });
  }

  refresh(row, now) {
    const key = JSON.stringify(row) + Math.floor(now / 5);
    if (key === this.key || !row) return;
    this.key = key;
    const body = byId("drawer-body");
    const hadFocus = body.contains(document.activeElement) && document.activeElement.tagName === "BUTTON";
    body.replaceChildren(...this.details(row, now));
    if (hadFocus) body.querySelector("button")?.focus();
  }

  details(row, now = row.events_at || 0) {
    const [sign, word] = stateOf(row);
    const facts = [
      ["State", stateInWords(row, `${sign} ${word}`, now)], ...outageFacts(row, now), ["Address", row.url], ["Models", row.models.join(", ") || "none told"],
      ["Version", row.version || "not told"], ["Role", row.role || "both prefill and decode"],
      ["From this gateway", number(row.in_flight)], ["Running, waiting", `${number(row.running)}, ${number(row.waiting)}`],
      ["Cache in use", percent(row.kv)], ["Blocks known", tiersInWords(row)], ["Block size", row.block_size ? `${row.block_size} tokens` : "not known"],
      ["View of its cache", row.trust], ["Events", row.events_at === null ? "none has come" : `${number(row.events)} batches, the last ${ago(Math.max(0, now - row.events_at))}; ${number(row.gaps)} gaps`],
    ];
    facts.push(...answerFacts(row));
    if (row.hand_over) facts.push(["Handing over", `${row.hand_over.state}: ${row.hand_over.handed_over} prefixes done, ${row.hand_over.left} left`]);
    const what = row.drained ? "resume" : "drain";
    const button = make("button", { class: "primary", onclick: (event) => this.change(event.currentTarget, row.name, what) }, row.drained ? "Give it requests again" : "Drain");
    const about = row.drained ? "It gets no new requests." : "It gets no new requests then; those that it has end as they would have.";
    return [
      make("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
      ...row.problems.map((problem) => make("p", { class: "alarm warn" }, make("b", { class: "sign", "aria-label": "Warning" }, "!"), problem)),
      make("p", { class: "act" }, button, make("span", { class: "muted" }, about)), make("p", { class: "error", role: "alert" }, this.said || ""),
    ];
  }

  async change(button, name, what) {
    button.disabled = true;
    const [status, body] = await ask(`/admin/engines/${encodeURIComponent(name)}/${what}`, "POST");
    this.said = status === 200 ? "" : `It was not done: ${whyNot(status, body)}`;
    button.disabled = false;
    const error = byId("drawer-body").querySelector(".error");
    if (error) setText(error, this.said);
    this.key = "";
  }
}

function tiersInWords(row) {
  return row.tiers.map((blocks, tier) => `${number(blocks)} ${TIERS[tier] || `tier ${tier}`}`).join(", ");
}

function card(name) {
  return make("div", { class: "engine", role: "row", tabindex: "-1", "data-name": name },
    make("div", { class: "head", role: "gridcell" }, make("b", { class: "sign" }), make("strong", {}, name), make("span", { class: "role muted" })),
    make("div", { class: "meter", role: "gridcell" }, make("span", { class: "name" }, "cache"), make("span", { class: "bar" }, make("i")), make("span", { class: "value" })),
    make("div", { class: "numbers", role: "gridcell" }, make("span"), make("span"), make("span")),
    make("div", { class: "foot muted", role: "gridcell" }));
}

function fillCard(element, row) {
  const [sign, word, kind] = stateOf(row);
  element.className = `engine ${kind}`;
  element.setAttribute("aria-label", `${row.name}, ${word}`);
  const [head, meter, numbers, foot] = element.children;
  setText(head.children[0], sign);
  setText(head.children[2], row.role || "");
  meter.querySelector("i").style.width = `${Math.round(row.kv * 100)}%`;
  setText(meter.querySelector(".value"), percent(row.kv));
  ["in flight", "running", "waiting"].forEach((name, place) => {
    const value = [row.in_flight, row.running, row.waiting][place];
    const shown = numbers.children[place];
    if (shown.dataset.value === String(value)) return;
    shown.dataset.value = value;
    shown.replaceChildren(make("b", {}, number(value)), name);
  });
  setText(foot, `${row.tiers.map((blocks, tier) => `${short(blocks)} ${TIERS[tier] || `tier ${tier}`}`).join(" · ")} blocks · ${word === "healthy" ? row.trust : word}`);
}

/** How it is, and since when: what is said of one that answers beside that is no state of its own. */
function stateInWords(row, words, now) {
  if (!row.since) return words;
  const apart = row.up && row.state === "ready" ? "; it answers" : "";
  return `${words}${apart} ${sinceWords(row.since, now)}`;
}

/** What is heard of an engine that is out, and what that means. */
function outageFacts(row, now) {
  if (!row.outage) return [];
  const heard = row.outage.heard === null ? "never" : ago(Math.max(0, now - row.outage.heard));
  return [["Last error", row.outage.error], ["Last heard", heard], ["Its requests", `${number(row.lost)} failed, ${number(row.moved)} moved to other engines`]];
}

/** What its answers take, as far as it is known. */
function answerFacts(row) {
  const { speed, slow, times } = row;
  const facts = [];
  if (times) facts.push(["First token", times.ttft_p50 === null ? "none was streamed" : `median ${milliseconds(times.ttft_p50)}, p95 ${milliseconds(times.ttft_p95)}, of its last ${number(times.requests)} answers`]);
  if (times) facts.push(["Failed", `${number(times.failed)} of ${number(times.requests)}`]);
  if (speed) facts.push(["Speed", `${speed.prompt_token_ms} ms a prompt token${speed.answer_token_ms === null ? "" : `, ${speed.answer_token_ms} ms an answer token`}${slow ? `; fellows ${slow.fellows_ms} ms a ${slow.of}` : ""}`]);
  return facts;
}

function tile(name) {
  return make("div", { class: "tile", role: "row", tabindex: "-1", "data-name": name }, make("span", { role: "gridcell" }, make("b", { class: "sign" }), make("span", { class: "load" })), make("i"));
}

function fillTile(element, row) {
  const [sign, word, kind] = stateOf(row);
  element.className = `tile ${kind}`;
  const busy = row.running + row.waiting;
  const said = `${row.name}: ${word}, ${busy} requests, cache ${percent(row.kv)}`;
  element.title = said;
  setText(element.firstChild.children[0], sign);
  setText(element.firstChild.children[1], short(busy));
  element.lastChild.style.width = `${Math.round(row.kv * 100)}%`;
}
