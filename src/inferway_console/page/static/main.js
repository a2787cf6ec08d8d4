// The connection: who looks, what came, and what is shown while nothing comes.

import { showAlarms, showBreakers, showEvents, showFigures, showTitle } from "./board.js";
import { Charts } from "./charts.js";
import { ask, byId, setText, whyNot } from "./dom.js";
import { Fleet } from "./fleet.js";
import { Requests } from "./requests.js";

const QUIET_MS = 15000; // without an event the link counts as broken: there is one in five seconds
const BREAKERS_MS = 10000;

const state = { engines: new Map(), timeline: new Map(), requests: [], alarms: [], records: null, queued: 0, firstToken: { p50: null, p95: null }, now: 0 };
const charts = new Charts();
const fleet = new Fleet();
const requests = new Requests();
let source = null;
let retry = 0;
let retryTimer = 0;
let lastEvent = 0;
let drawn = 0;

function link(kind, words) {
  document.body.dataset.state = kind;
  setText(byId("link").querySelector("span"), words);
}

function show(part) {
  for (const id of ["login", "refused", "board"]) byId(id).hidden = id !== part;
}

function whole(told) {
  state.engines = new Map(told.engines.map((row) => [row.name, row]));
  state.timeline = new Map(told.timeline.map((bucket) => [bucket[0], bucket]));
  state.requests = told.requests;
  state.alarms = told.alarms;
  setText(byId("version"), told.version);
}

function changes(told) {
  for (const row of told.engines) state.engines.set(row.name, row);
  for (const name of told.gone) state.engines.delete(name);
  for (const bucket of told.timeline) state.timeline.set(bucket[0], bucket);
  const seen = state.requests.length ? state.requests[state.requests.length - 1].seq : 0;
  const fresh = told.requests.filter((row) => row.seq > seen);
  state.requests = [...state.requests, ...fresh].slice(-60);
  if (told.alarms) state.alarms = told.alarms;
}

function came(take) {
  return (event) => {
    const told = JSON.parse(event.data);
    take(told);
    state.now = told.now;
    state.records = told.records;
    state.queued = told.queued || 0;
    state.firstToken = told.first_token || { p50: null, p95: null };
    lastEvent = performance.now();
    retry = 0;
    link("live", "Connected");
    const begins = byId("board").hidden;
    show("board");
    if (begins) readBreakers();
    if (!drawn) drawn = requestAnimationFrame(draw);
  };
}

function draw() {
  drawn = 0;
  const begun = performance.now();
  for (const start of state.timeline.keys()) if (start < state.now - 610) state.timeline.delete(start);
  showAlarms(state.alarms, state.now);
  showTitle(state.engines, state.alarms);
  showFigures(state);
  fleet.show(state.engines, state.now);
  requests.show(state.requests, state.now, state.records);
  showEvents(state.engines, state.now);
  charts.show(state.timeline, state.now);
  performance.measure("inferway-frame", { start: begun, end: performance.now() });
}

function connect() {
  clearTimeout(retryTimer);
  if (source) source.close();
  source = new EventSource("/admin/live");
  source.addEventListener("whole", came(whole));
  source.addEventListener("changes", came(changes));
  source.onerror = lost;
  lastEvent = performance.now();
}

async function lost() {
  source.close();
  const [status, session] = await ask("/page/session");
  if (status === 200 && session.wants_key && !session.in) return askForKey();
  if (status === 403) return refuse(whyNot(status, session));
  retry += 1;
  const seconds = Math.min(15, 2 ** Math.min(retry, 4) / 2);
  link("lost", status === 200 ? "The stream ended; connecting again" : "Link lost; trying again");
  clearTimeout(retryTimer);
  retryTimer = setTimeout(connect, seconds * 1000);
}

function refuse(why) {
  link("refused", "Not connected");
  setText(byId("refused-why"), why);
  show("refused");
}

function askForKey() {
  link("login", "Logged out");
  byId("logout").hidden = true;
  show("login");
  byId("key").focus();
}

async function logIn(event) {
  event.preventDefault();
  const field = byId("key");
  const [status, body] = await ask("/page/login", "POST", { key: field.value });
  field.value = "";
  setText(byId("login-error"), status === 200 ? "" : whyNot(status, body));
  if (status === 200) begin();
  else field.focus();
}

async function begin() {
  const [status, session] = await ask("/page/session");
  if (status === 403) return refuse(whyNot(status, session));
  if (status === 200 && session.wants_key && !session.in) return askForKey();
  byId("logout").hidden = !(session && session.wants_key);
  connect();
}

async function readBreakers() {
  if (!byId("board").hidden && !document.hidden) showBreakers(...(await ask("/admin/cache-breakers")));
}

const THEMES = ["auto", "light", "dark"];

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("inferway-theme", theme); } catch { /* not kept, then */ }
  setText(byId("theme"), `Theme: ${theme}`);
  charts.restyle();
  if (state.now) draw();
}

function nextTheme() {
  const now = document.documentElement.dataset.theme || "auto";
  setTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
}

byId("login-form").addEventListener("submit", logIn);
byId("logout").addEventListener("click", async () => { await ask("/page/logout", "POST"); if (source) source.close(); askForKey(); });
byId("theme").addEventListener("click", nextTheme);
setText(byId("theme"), `Theme: ${document.documentElement.dataset.theme || "auto"}`);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { charts.restyle(); if (state.now) draw(); });
document.addEventListener("keydown", (event) => {
  const typing = event.target instanceof HTMLInputElement;
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { event.preventDefault(); byId("find").focus(); }
  if (event.key === "t") nextTheme();
});
byId("find").addEventListener("input", () => fleet.show(state.engines, state.now));
addEventListener("resize", () => charts.resize());
document.addEventListener("visibilitychange", () => { if (!document.hidden) readBreakers(); });
setInterval(() => {
  if (document.body.dataset.state === "live" && performance.now() - lastEvent > QUIET_MS) lost();
}, 1000);
setInterval(readBreakers, BREAKERS_MS);
begin();
