// The tables of LUNs, namespaces, sessions and access entries.

import { byId, byteRate, bytes, commandRate, count, duration, el, fill, latency, plain, setText, shown } from "./view.js";

/** Rows that a table shows at once. A filter finds the others. */
const LIMIT = 300;

/** A table with a filter. `text` is searched. */
function filtered(name, items, text) {
  const words = byId(`${name}-filter`).value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = items.filter((item) => words.every((word) => text(item).toLowerCase().includes(word)));
  const part = found.length > LIMIT ? `, the first ${LIMIT} are shown` : "";
  setText(byId(`${name}-count`), found.length === items.length ? `${count(items.length)}${part}` : `${count(found.length)} of ${count(items.length)}${part}`);
  return found.slice(0, LIMIT);
}

/** Calls `redraw` when the filter of a table changes. */
export function watchFilter(name, redraw) {
  byId(`${name}-filter`).addEventListener("input", redraw);
}

/** The place of an object of the configuration. */
export function source(object) {
  const { origin, file, line } = object.source;
  return origin === "file" ? `${shown(file)}:${line}` : origin.replace("_", " ");
}

function medium({ config }) {
  if (config.target) return `LUN ${plain(config.lun)} of ${plain(config.target)}`;
  if (config.disk) return `disk ${plain(config.disk)}`;
  return [config.backend || "file", config.path].filter(Boolean).map(plain).join(" ");
}

const KNOWN = ["backend", "path", "disk", "size", "target", "lun"];

function settings({ config }) {
  return Object.entries(config).filter(([key]) => !KNOWN.includes(key)).map(([key, value]) => `${key}=${plain(value)}`).join(" ");
}

/** The size that hosts see, from the counters if they are there: a file may grow at any time. */
function size(state, { target, lun, capacity_bytes }) {
  const now = state.capacities.get(`${target} ${lun}`) ?? capacity_bytes;
  return now === null ? "" : bytes(now);
}

/** The columns of rates, if the server measures them. */
function rateColumns(rates) {
  if (!rates) return [];
  const of = (lun) => rates.get(`${lun.target} ${lun.lun}`);
  const cell = (show) => (lun) => (of(lun) ? show(of(lun)) : "");
  return [
    { name: "Reads", kind: "number", cell: cell((r) => commandRate(r.reads_s)) },
    { name: "Writes", kind: "number", cell: cell((r) => commandRate(r.writes_s)) },
    { name: "Read", kind: "number", cell: cell((r) => byteRate(r.read_bytes_s)) },
    { name: "Written", kind: "number", cell: cell((r) => byteRate(r.written_bytes_s)) },
    { name: "Latency", kind: "number", cell: cell((r) => (r.latency_s === null ? "" : latency(r.latency_s))) },
    { name: "In flight", kind: "number", cell: cell((r) => count(r.in_flight)) },
  ];
}

/** Shows the LUNs. `remove` acts on one that the API made. */
export function showLuns(state, remove) {
  const luns = filtered("luns", state.objects.filter(({ kind }) => kind === "lun"), (lun) => `${lun.target} ${lun.lun} ${medium(lun)} ${settings(lun)}`);
  const canRemove = (lun) => state.mayWrite && !["file", "command_line"].includes(lun.source.origin);
  const button = (lun) => el("button", { type: "button", class: "danger", "aria-label": `Remove LUN ${lun.lun} of ${shown(lun.target)}`, onclick: () => remove(lun) }, "Remove");
  const columns = [
    { name: "Target", kind: "name", cell: (lun) => shown(lun.target) },
    { name: "LUN", kind: "number", cell: (lun) => String(lun.lun) },
    { name: "Medium", kind: "name", cell: medium },
    { name: "Size", kind: "number", cell: (lun) => size(state, lun) },
    ...rateColumns(state.rates),
    { name: "Settings", kind: "name", cell: settings },
    { name: "Source", kind: "name", cell: source },
    { name: "", cell: (lun) => (canRemove(lun) ? [button(lun)] : "") },
  ];
  rebuild("luns-table", columns);
  fill(byId("luns-table"), columns, luns, (lun) => `${lun.target} ${lun.lun}`, "No LUNs.");
}

/** Shows the subsystems of NVMe with their namespaces, if there are some. A subsystem without namespaces has a row too. */
export function showSubsystems(state) {
  const subsystems = state.objects.filter(({ kind }) => kind === "subsystem");
  const namespaces = state.objects.filter(({ kind }) => kind === "namespace");
  byId("subsystems").hidden = subsystems.length === 0;
  const controllers = (nqn) => state.sessions.filter(({ target, nvme }) => target === nqn && nvme && nvme.queue === 0).length;
  const rows = subsystems.slice(0, LIMIT).flatMap((subsystem) => {
    const own = namespaces.filter((one) => one.subsystem === subsystem.nqn);
    return own.length > 0 ? own : [{ subsystem: subsystem.nqn, nsid: null, config: null, capacity_bytes: null, source: subsystem.source }];
  });
  const of = (show) => (one) => (one.config === null ? "" : show(one));
  const columns = [
    { name: "Subsystem", kind: "name", cell: (one) => shown(one.subsystem) },
    { name: "Controllers", kind: "number", cell: (one) => count(controllers(one.subsystem)) },
    { name: "Namespace", kind: "number", cell: ({ nsid }) => (nsid === null ? "none" : String(nsid)) },
    { name: "Medium", kind: "name", cell: of(medium) },
    { name: "Size", kind: "number", cell: of((one) => size(state, { ...one, target: one.subsystem, lun: one.nsid })) },
    { name: "Settings", kind: "name", cell: of(settings) },
    { name: "Source", kind: "name", cell: source },
  ];
  fill(byId("subsystems-table"), columns, rows, (one) => `${one.subsystem} ${one.nsid}`, "No subsystems.");
}

/** Empties a table whose columns changed. */
function rebuild(id, columns) {
  const table = byId(id);
  if (table.tHead && table.tHead.rows[0].cells.length !== columns.length) table.replaceChildren();
}

/** The rates of a session since the poll before. */
function rates(session, before) {
  const then = before.get(session.tsih);
  if (!then || session.connected_s < then.connected_s || session.at === then.at) return "";
  const seconds = (session.at - then.at) / 1000;
  const rate = (key) => byteRate(Math.max(0, session.counters[key] - then.counters[key]) / seconds);
  return `${rate("read_bytes")} read, ${rate("write_bytes")} written`;
}

/** Shows the sessions. `end` ends one. */
export function showSessions(state, end) {
  const text = (s) => `${s.initiator} ${s.initiator_address} ${s.target || "discovery"} ${s.transport}`;
  const sessions = filtered("sessions", state.sessions, text);
  const button = (s) => el("button", { type: "button", class: "danger", "aria-label": `End session ${s.tsih} of ${shown(s.initiator)}`, onclick: () => end(s) }, "End");
  const channel = ({ transport, srp, nvme }) => {
    if (nvme) return `${transport}, controller ${nvme.controller} queue ${nvme.queue}`;
    return srp && srp.channels > 1 ? `${transport}, channel ${srp.channel} of ${srp.channels}` : transport;
  };
  const columns = [
    { name: "ID", kind: "number", cell: (s) => String(s.tsih) },
    { name: "Initiator", kind: "name", cell: (s) => shown(s.initiator) },
    { name: "Address", cell: (s) => shown(s.initiator_address) },
    { name: "Transport", cell: (s) => shown(channel(s)) },
    { name: "Target", kind: "name", cell: (s) => shown(s.target || "(discovery)") },
    { name: "Commands", kind: "number", cell: (s) => count(s.counters.commands) },
    { name: "Read", kind: "number", cell: (s) => bytes(s.counters.read_bytes) },
    { name: "Written", kind: "number", cell: (s) => bytes(s.counters.write_bytes) },
    { name: "Now", cell: (s) => rates(s, state.sessionsBefore) },
    { name: "Errors", kind: "number", cell: (s) => count(s.counters.errors) },
    { name: "Connected", kind: "number", cell: (s) => duration(s.connected_s) },
    { name: "", cell: (s) => (state.mayWrite ? [button(s)] : "") },
  ];
  fill(byId("sessions-table"), columns, sessions, (s) => `${s.tsih} ${s.initiator_address}`, "No sessions.");
}

function rights({ config }) {
  if (config === null) return "all rights";
  if (config.deny) return "no access";
  return config.read_only ? "read only" : "all rights";
}

function conditions({ config }) {
  const rest = Object.entries(config || {}).filter(([key]) => !["initiators", "networks", "chap", "deny", "read_only"].includes(key));
  return rest.map(([key, value]) => `${key}=${plain(value)}`).join(" ");
}

/** Shows the access entries of each target, in the order in which they decide. */
export function showAccess(state) {
  const entries = state.objects.filter(({ kind }) => kind === "access");
  const targets = state.objects.filter(({ kind }) => kind === "target");
  const open = (target) => ({ target: target.name, index: null, config: null, source: target.source });
  const rows = targets.slice(0, LIMIT).flatMap((target) => {
    const own = entries.filter((entry) => entry.target === target.name);
    return own.length > 0 ? own : [open(target)];
  });
  const of = (key, all) => ({ config }) => (config && config[key] ? plain(config[key]) : all);
  const columns = [
    { name: "Target", kind: "name", cell: (entry) => shown(entry.target) },
    { name: "Entry", kind: "number", cell: ({ index }) => (index === null ? "none" : String(index)) },
    { name: "Initiators", kind: "name", cell: of("initiators", "all initiators") },
    { name: "Networks", kind: "name", cell: of("networks", "all networks") },
    { name: "CHAP user", cell: of("chap", "none") },
    { name: "Rights", cell: rights },
    { name: "Settings", kind: "name", cell: conditions },
    { name: "Source", kind: "name", cell: source },
  ];
  fill(byId("access-table"), columns, rows, (entry) => `${entry.target} ${entry.index}`, "No targets.");
}
