// The configuration, and its differences from the files.

import { ApiError, get } from "./api.js";
import { byId, el, setText, shown } from "./view.js";

/** A difference on one line, as `lunar diff` prints it. */
export function difference({ place, change, what, key, from, to, needs_restart }) {
  const where = place.map(shown).join(": ");
  const words = {
    added: what ? `added: ${shown(what)}` : "added",
    removed: "removed",
    changed: `${shown(key)} from ${shown(from || "none")} to ${shown(to || "none")}`,
  }[change];
  return `${where}: ${words}${needs_restart ? " (needs a restart)" : ""}`;
}

/** Compares the files with the configuration in force. */
export async function compare(state) {
  try {
    state.diff = (await get("/v1/config/diff")).items;
    state.diffFault = null;
  } catch (e) {
    if (!(e instanceof ApiError) || [0, 401, 502].includes(e.status)) throw e;
    state.diff = [];
    // A server without a file has nothing to compare.
    state.diffFault = state.server.config_file ? e : null;
  }
  showDiff(state);
}

function showDiff({ diff, diffFault, server, mayWrite }) {
  const file = server.config_file;
  setText(byId("config-file"), file ? `File: ${shown(file)}. Version: ${server.config_version}.` : "The server was started without a file.");
  byId("compare").hidden = !file;
  byId("apply").hidden = !mayWrite || diff.length === 0;
  const faults = diffFault ? diffFault.errors.map(({ file, line, detail }) => `${shown(file || "")}:${line || ""} ${shown(detail)}`) : [];
  const lines = diffFault ? [...faults] : diff.map(difference);
  const state = diffFault ? `The files cannot be applied: ${shown(diffFault.message)}` : diff.length > 0 ? "The files differ from the configuration in force:" : "The files equal the configuration in force.";
  setText(byId("diff-state"), file ? state : "");
  byId("diff").replaceChildren(...lines.map((line) => el("li", {}, line)));
}

/** Reads the configuration in force as text. */
export async function readText() {
  const details = byId("config-text").closest("details");
  try {
    setText(byId("config-text"), (await get("/v1/config")).toml);
    details.hidden = false;
  } catch (e) {
    if (e.status !== 404) throw e;
    details.hidden = true;
  }
}
