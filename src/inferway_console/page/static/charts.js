// Two charts over the last ten minutes (uPlot). Lines differ by dash and width, not by colour alone.

import { byId, make, milliseconds, percent } from "./dom.js";

const SECONDS = 600;
const STEP = 2;
const AVERAGED = 5; // buckets that a point of the first chart is made of: ten seconds
const FLOW = [
  { label: "reachable", colour: "--reachable", width: 1.5, dash: [2, 4] },
  { label: "chosen", colour: "--chosen", width: 1.5, dash: [7, 4] },
  { label: "delivered", colour: "--delivered", width: 2.5, fill: true },
];
const TTFT = [
  { label: "expected", colour: "--chosen", width: 1.5, dash: [7, 4] },
  { label: "actual", colour: "--delivered", width: 2.5 },
  { label: "p90", colour: "--reachable", width: 1.5, dash: [2, 4] },
];
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function legend(element, series) {
  element.replaceChildren(...series.map((each) => {
    const line = make("svg:line", { x1: 1, y1: 5, x2: 25, y2: 5, "stroke-width": each.width + 0.5, "stroke-dasharray": (each.dash || []).join(" ") });
    line.style.stroke = `var(${each.colour})`;
    return make("span", {}, make("svg:svg", { width: 26, height: 10, "aria-hidden": "true" }, line), each.label);
  }));
}

class Chart {
  constructor(id, series, shown, range) {
    [this.id, this.series, this.shown, this.range] = [id, series, shown, range];
    this.plot = null;
    legend(byId(`${id}-legend`), series);
  }

  show(data, isEmpty, now) {
    byId(`${this.id}-empty`).hidden = !isEmpty;
    const holder = byId(this.id);
    holder.hidden = isEmpty;
    if (isEmpty) return;
    if (!this.plot) this.plot = new window.uPlot(this.options(holder), data, holder);
    else this.plot.setData(data, false);
    this.plot.batch(() => { this.plot.setScale("x", { min: now - SECONDS, max: now }); });
  }

  options(holder) {
    const axis = { stroke: style("--muted"), grid: { stroke: style("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    return {
      width: holder.clientWidth || 500, height: 190, legend: { show: false }, padding: [10, 8, 0, 0],
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { time: true, auto: false }, y: { range: this.range } },
      axes: [
        { ...axis, size: 28, grid: { show: false }, values: (_, ticks) => ticks.map((at) => new Date(at * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })), space: 70 },
        { ...axis, size: 58, values: (_, ticks) => ticks.map(this.shown) },
      ],
      series: [{}, ...this.series.map((each) => ({
        label: each.label, stroke: style(each.colour), width: each.width, dash: each.dash, spanGaps: true, points: { show: false },
        fill: each.fill ? style("--delivered-fill") : undefined,
      }))],
    };
  }

  forget() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
  }

  resize() {
    if (this.plot) this.plot.setSize({ width: byId(this.id).clientWidth, height: 190 });
  }
}

export class Charts {
  constructor() {
    this.flow = new Chart("flow", FLOW, percent, () => [0, 1]);
    this.ttft = new Chart("ttft", TTFT, milliseconds, (_, low, high) => [0, Math.max(1, high || 1) * 1.1]);
  }

  show(timeline, now) {
    const buckets = [...timeline.values()].filter((bucket) => bucket[0] >= now - SECONDS - AVERAGED * STEP).sort((a, b) => a[0] - b[0]);
    this.flow.show(shares(buckets), !buckets.some((bucket) => bucket[3] > 0), now);
    const timed = buckets.filter((bucket) => bucket[8] !== null);
    this.ttft.show([timed.map((bucket) => bucket[0]), ...[7, 8, 9].map((part) => medians(timed, part))], !timed.length, now);
  }

  restyle() {
    this.flow.forget();
    this.ttft.forget();
  }

  resize() {
    this.flow.resize();
    this.ttft.resize();
  }
}

/** Shares of prompt tokens, each of the ten seconds up to its bucket. */
function shares(buckets) {
  const data = [[], [], [], []];
  buckets.forEach((bucket, place) => {
    const sums = [0, 0, 0, 0];
    for (let i = place; i >= 0 && bucket[0] - buckets[i][0] < AVERAGED * STEP; i -= 1) {
      for (let part = 0; part < 4; part += 1) sums[part] += buckets[i][3 + part];
    }
    data[0].push(bucket[0]);
    for (let part = 1; part < 4; part += 1) data[part].push(sums[0] ? sums[part] / sums[0] : null);
  });
  return data;
}

/** Of each bucket the median of the ten seconds up to it. */
function medians(buckets, part) {
  return buckets.map((bucket, place) => {
    const lately = [];
    for (let i = place; i >= 0 && bucket[0] - buckets[i][0] < AVERAGED * STEP; i -= 1) {
      if (buckets[i][part] !== null) lately.push(buckets[i][part]);
    }
    lately.sort((a, b) => a - b);
    return lately.length ? lately[Math.floor(lately.length / 2)] : null;
  });
}
