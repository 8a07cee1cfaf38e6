// The live page: reads the API in intervals, and shows what changed.

import * as actions from "./actions.js";
import { get, keepToken, takeToken } from "./api.js";
import { compare, readText } from "./config.js";
import { follow, showEvents } from "./events.js";
import { showHealth } from "./health.js";
import { readLunRates } from "./metrics.js";
import { Plot } from "./plot.js";
import { showRouters } from "./routers.js";
import { showAccess, showLuns, showSessions, showSubsystems, watchFilter } from "./tables.js";
import { byId, byteRate, commandRate, duration, latency, setText, shown } from "./view.js";

const TICK_MS = 2000;
/** Ticks between two comparisons of the files, which the server reads for it. */
const DIFF_TICKS = 15;
const HOUR_SAMPLES = 720;

const state = {
  server: null, fault: null, mayWrite: false, version: "", objects: [], sessions: [], sessionsBefore: new Map(),
  routers: [], rates: null, noMetrics: false, metricsBefore: null, capacities: new Map(), notReady: [], events: [], noEvents: "", diff: [], diffFault: null, samples: [],
};
let plots = [];
let ticks = 0;
let isBusy = false;

const again = () => tick(true);

function showAll() {
  showHealth(state);
  showLuns(state, (lun) => actions.removeLun(state, lun, again));
  showSubsystems(state);
  showSessions(state, (session) => actions.endSession(session, again));
  showRouters(state, (router, action) => actions.controlRouter(router, action, again));
}

async function readServer() {
  state.server = await get("/v1/server");
  const { version, process, uptime_s } = state.server;
  setText(byId("server"), `version ${version}, process ${process}, up ${duration(uptime_s)}`);
}

async function readConfiguration() {
  const { config_version: version } = state.server;
  if (version === state.version) return;
  state.objects = (await get("/v1/objects")).items;
  state.version = version;
  showAccess(state);
  await readText();
  await compare(state);
}

async function readSessions() {
  state.sessionsBefore = new Map(state.sessions.map((session) => [session.tsih, session]));
  const { items } = await get("/v1/sessions");
  const at = Date.now();
  state.sessions = items.map((session) => ({ ...session, at }));
}

async function readRates() {
  const last = state.samples.length > 0 ? state.samples[state.samples.length - 1].sequence : 0;
  const { items } = await get(`/v1/history/rates?since=${last}`);
  if (items.length === 0 && state.samples.length > 0) return;
  const added = items.map((sample) => ({ ...sample, t: new Date(sample.time).getTime() / 1000 }));
  state.samples = [...state.samples, ...added].slice(-HOUR_SAMPLES);
  plots.forEach((plot) => plot.set(state.samples));
}

/** Reads everything that may have changed. */
async function tick(isNow = false) {
  if (isBusy || (document.hidden && !isNow)) return;
  isBusy = true;
  try {
    const before = state.server && state.server.process;
    await readServer();
    if (before && before !== state.server.process) state.samples = [];
    await readConfiguration();
    await readSessions();
    if (ticks % 2 === 0) state.routers = (await get("/v1/routers")).items;
    await readRates();
    if (ticks % 2 === 0) await readLunRates(state);
    if (ticks % DIFF_TICKS === DIFF_TICKS - 1) await compare(state);
    state.fault = null;
  } catch (e) {
    if (e.status === 401) return askToken(e);
    state.fault = e;
  } finally {
    isBusy = false;
    ticks += 1;
  }
  return showAll();
}

function askToken(e) {
  byId("main").hidden = true;
  byId("login").hidden = false;
  setText(byId("server"), "");
  setText(byId("login-fault"), `${shown(e.message)}; hint: ${shown(e.hint)}`);
  byId("token").focus();
}

function setUp() {
  plots = [
    new Plot(byId("plot-bytes"), { title: "Throughput", format: byteRate, least: 1000, series: [{ label: "read", key: "read_bytes_s" }, { label: "written", key: "written_bytes_s" }] }),
    new Plot(byId("plot-commands"), { title: "Commands", format: commandRate, least: 1, series: [{ label: "reads", key: "reads_s" }, { label: "writes", key: "writes_s" }] }),
    new Plot(byId("plot-latency"), { title: "Mean latency", format: latency, least: 1e-5, series: [{ label: "reads", key: "read_latency_s" }, { label: "writes", key: "write_latency_s" }] }),
  ];
  watchFilter("luns", showAll);
  watchFilter("sessions", showAll);
  byId("events-level").addEventListener("change", () => showEvents(state));
  byId("add-lun").addEventListener("click", () => actions.addLun(state, again));
  byId("compare").addEventListener("click", () => compare(state).then(showAll));
  byId("apply").addEventListener("click", () => actions.applyFiles(state, again));
  byId("confirm").addEventListener("click", () => actions.endTrial("confirm", again));
  byId("rollback").addEventListener("click", () => actions.endTrial("rollback", again));
  document.addEventListener("visibilitychange", () => tick());
  setInterval(tick, TICK_MS);
  let isDue = false;
  follow(state, () => {
    // Many events arrive at once after the start.
    if (isDue) return;
    isDue = true;
    setTimeout(() => {
      isDue = false;
      showEvents(state);
      showHealth(state);
    }, 100);
  });
}

/** Starts once a token, if one is needed, is accepted. */
async function start() {
  let caller;
  try {
    caller = await get("/v1/caller");
  } catch (e) {
    if (e.status === 401) return askToken(e);
    caller = { may_write: false };
  }
  state.mayWrite = caller.may_write;
  const how = "read only: start `lunar page --write`, or use a token with the role write, to change the server";
  setText(byId("role"), state.mayWrite ? "may change the server" : how);
  document.querySelectorAll(".write").forEach((button) => (button.hidden = !state.mayWrite));
  byId("login").hidden = true;
  byId("main").hidden = false;
  if (plots.length === 0) setUp();
  return tick(true);
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(byId("token").value.trim());
  byId("token").value = "";
  start();
});
takeToken();
start();
