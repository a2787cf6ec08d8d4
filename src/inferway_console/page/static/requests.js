// The last requests as rows; each opens into its explanation.

import { explain } from "./explain.js";
import { openDrawer } from "./drawer.js";
import { ask, byId, clockTime, make, milliseconds, number, setText, whyNot } from "./dom.js";

const MOST = 25;

/** A bar of three lengths: what was delivered, chosen and reachable of a prompt's blocks. */
export function blocksBar(row) {
  const all = Math.max(1, row.prompt_blocks);
  const delivered = row.delivered_tokens < 0 ? 0 : Math.floor(row.delivered_tokens / (row.block_size || 1));
  const box = make("svg:svg", { class: "blocks", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const [kind, value, y, height] of [["all", all, 0, 10], ["reachable", row.reachable_blocks, 0, 10], ["chosen", row.chosen_blocks, 2, 6], ["delivered", delivered, 3.5, 3]]) {
    box.append(make("svg:rect", { class: kind, x: 0, y, width: Math.min(100, (100 * value) / all), height }));
  }
  const said = row.delivered_tokens < 0 ? "?" : delivered;
  return [box, make("span", { class: "number" }, `${said} · ${row.chosen_blocks} · ${row.reachable_blocks} of ${row.prompt_blocks}`)];
}

export class Requests {
  constructor() {
    this.body = byId("requests").tBodies[0];
    this.held = null;
    this.newest = -1;
    byId("hold").addEventListener("click", () => {
      this.held = this.held ? null : this.rows;
      byId("hold").setAttribute("aria-pressed", String(Boolean(this.held)));
      setText(byId("hold"), this.held ? "Resume" : "Pause");
      this.newest = -1;
    });
    this.body.addEventListener("click", (event) => { // anywhere in the row, as its button says
      if (!event.target.closest("button") && !String(getSelection())) event.target.closest("tr").querySelector("button").click();
    });
    this.body.addEventListener("keydown", (event) => {
      const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
      const next = step && event.target.closest("tr")[step];
      if (next) { event.preventDefault(); next.querySelector("button").focus(); }
    });
  }

  show(rows, now, records) {
    this.rows = rows;
    byId("requests-empty").hidden = rows.length > 0;
    setText(byId("requests-empty"), records === null ? "Requests are not kept here (records.requests is 0)." : "No request has ended since the gateway started.");
    byId("requests").hidden = !rows.length;
    setText(byId("requests-count"), records ? `${number(records.kept)} of at most ${number(records.most)} are kept` : "");
    const shown = (this.held || rows).slice(-MOST).reverse();
    const newest = shown.length ? shown[0].seq : -1;
    if (newest === this.newest) return;
    const known = new Map([...this.body.children].map((line) => [Number(line.dataset.seq), line]));
    this.body.replaceChildren(...shown.map((row) => known.get(row.seq) || this.line(row)));
    this.newest = newest;
  }

  line(row) {
    const missed = row.missed.filter((miss) => miss.kind !== "silent");
    const isWell = row.status === 200 && row.outcome === "ok";
    const button = make("button", { class: "row", onclick: () => this.open(row) }, row.id.length > 14 ? `…${row.id.slice(-12)}` : row.id);
    return make("tr", { "data-seq": row.seq, class: isWell ? null : "bad" },
      make("td", {}, clockTime(row.at)), make("td", {}, button, make("span", { class: "muted model" }, row.model)),
      make("td", {}, row.chosen || "–"), make("td", { class: "wide" }, ...blocksBar(row)),
      make("td", { class: "number" }, row.streamed ? milliseconds(row.ttft_ms) : "in one piece"), make("td", { class: "number" }, milliseconds(row.expected_ttft_ms)),
      make("td", { class: "number" }, milliseconds(row.total_ms)),
      make("td", {}, isWell ? "✓ ok" : `✕ ${row.status || ""} ${row.outcome}`, ...missed.slice(0, 1).map((miss) => make("span", { class: "tag" }, miss.kind))));
  }

  async open(row) {
    openDrawer(`Request ${row.id}`, [make("p", { class: "empty" }, "Reading…")]);
    const [status, record] = await ask(`/admin/requests/${encodeURIComponent(row.id)}`);
    if (!byId("drawer").open) return;
    const found = status === 200 ? explain(record.request || record) : [make("p", { class: "error", role: "alert" }, `It cannot be explained: ${whyNot(status, record)}`)];
    byId("drawer-body").replaceChildren(...found);
  }
}
