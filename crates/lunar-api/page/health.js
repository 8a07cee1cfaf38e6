// The health of the server: one word, and its reasons.

import { byId, el, setText, shown } from "./view.js";

const WORDS = ["ok", "warning", "error"];

/** How long an error of the log counts. */
const RECENT_MS = 5 * 60 * 1000;

function ofRouter(router) {
  const name = `router ${shown(router.name)}`;
  const items = [];
  if (router.state === "no path") items.push([2, `${name} has no path to its LUNs`, "see the paths below"]);
  if (router.draining) items.push([1, `${name} is drained: it rejects logins`, "Resume lets hosts log in again"]);
  if (router.failover && router.failover.state === null) {
    items.push([1, `the peer of ${name} does not answer`, "check the other router and the network between both"]);
  }
  for (const upstream of router.upstreams.filter((one) => one.obstacle)) {
    items.push([2, `upstream ${shown(upstream.name)} of ${name}: ${shown(upstream.obstacle)}`, ""]);
  }
  for (const target of router.targets) {
    for (const lun of target.luns.filter((one) => one.health !== "up")) {
      items.push([2, `LUN ${lun.lun} of ${shown(target.name)}: ${lun.health}`, ""]);
    }
  }
  return items;
}

function ofConfiguration(state) {
  // Older servers report none.
  const items = (state.server.warnings || []).map((line) => {
    const [text, hint] = line.split("; hint: ");
    return [1, shown(text), shown(hint || "")];
  });
  if (state.server.confirm_by) items.push([1, "a configuration is on trial", "keep it, or roll it back"]);
  if (state.diffFault) items.push([2, `the files cannot be applied: ${shown(state.diffFault.message)}`, shown(state.diffFault.hint)]);
  if (state.diff.length > 0) items.push([1, "the files differ from the configuration in force", "see Configuration below"]);
  return items;
}

function ofEvents(state) {
  const isRecent = ({ level, time }) => level === "error" && Date.now() - new Date(time).getTime() < RECENT_MS;
  const recent = state.events.filter(isRecent);
  return recent.length > 0 ? [[2, `errors in the past 5 minutes: ${recent.length}, the last one: ${shown(recent[0].message)}`, "see the events below"]] : [];
}

/** Level and reasons, the worst first: `[level, text, hint]`. */
export function assess(state) {
  const missing = (state.notReady || []).map((lun) => [2, `the medium of LUN ${lun.lun} of ${shown(lun.target)} is missing`, "check its path"]);
  const fault = state.fault ? [[2, shown(state.fault.message), shown(state.fault.hint)]] : [];
  const rest = state.server ? [...ofConfiguration(state), ...missing, ...state.routers.flatMap(ofRouter), ...ofEvents(state)] : [];
  const items = [...fault, ...rest].sort((a, b) => b[0] - a[0]);
  return { level: items.length > 0 ? items[0][0] : 0, items };
}

/** Shows health and trial. */
export function showHealth(state) {
  const { level, items } = assess(state);
  const word = byId("health-level");
  setText(word, WORDS[level]);
  word.className = WORDS[level];
  document.title = level === 0 ? "Lunar" : `Lunar: ${WORDS[level]}`;
  const text = items.map((item) => item.join("\n")).join("\n\n");
  const list = byId("health-items");
  if (list.dataset.text !== text) {
    list.dataset.text = text;
    list.replaceChildren(...items.map(([level, text, hint]) => el("li", {}, el("span", { class: WORDS[level] }, `${WORDS[level]}: `), text, el("span", { class: "hint" }, hint ? ` (${hint})` : ""))));
  }
  showTrial(state);
}

function showTrial({ server, mayWrite }) {
  const by = server && server.confirm_by;
  byId("trial").hidden = !by;
  if (!by) return;
  const left = Math.max(0, Math.round((new Date(by).getTime() - Date.now()) / 1000));
  setText(byId("trial-text"), `The server rolls the configuration back in ${left} s, unless you keep it.`);
  byId("confirm").hidden = !mayWrite;
  byId("rollback").hidden = !mayWrite;
}
