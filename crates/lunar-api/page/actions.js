// Dialogs that change the server. Each names what it acts on, and shows the error of the server.

import { lunPath, send } from "./api.js";
import { difference } from "./config.js";
import { byId, el, setText, shown } from "./view.js";

/** Opens the dialog with a form. `act` returns a promise; the dialog closes when it succeeds. */
function open(title, content, verb, act, others = []) {
  const dialog = byId("dialog");
  const fault = el("p", { role: "alert", class: "error", id: "dialog-fault" });
  const submit = el("button", { type: "submit" }, verb);
  const cancel = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const run = async (task, isLast) => {
    const buttons = [...form.querySelectorAll("button")];
    buttons.forEach((button) => (button.disabled = true));
    setText(fault, "");
    try {
      await task();
      if (isLast) dialog.close();
    } catch (e) {
      setText(fault, shown(e.message) + (e.hint ? `; hint: ${shown(e.hint)}` : ""));
    }
    buttons.forEach((button) => (button.disabled = false));
  };
  const more = others.map(({ label, task }) => el("button", { type: "button", onclick: () => form.reportValidity() && run(task, false) }, label));
  const form = el("form", { onsubmit: (event) => {
    event.preventDefault();
    run(act, true);
  } }, el("h2", { id: "dialog-title" }, title), ...content, fault, el("p", { class: "buttons" }, submit, ...more, cancel));
  dialog.replaceChildren(form);
  dialog.showModal();
}

function field(label, input) {
  return el("label", { class: "field" }, label, input);
}

function lowestFree(luns) {
  let lun = 0;
  while (luns.has(lun)) lun += 1;
  return lun;
}

/** A serial number of its own: another medium at the number of a former LUN is another logical unit. */
function serial() {
  return [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Asks for a LUN, and adds it. */
export function addLun(state, done) {
  const targets = state.objects.filter(({ kind }) => kind === "target").map(({ name }) => name);
  const target = el("select", { name: "target" }, ...targets.map((name) => el("option", { value: name }, shown(name))));
  const lun = el("input", { name: "lun", type: "number", min: "0", max: "16383", required: true });
  const next = () => {
    const used = state.objects.filter((one) => one.kind === "lun" && one.target === target.value);
    lun.value = String(lowestFree(new Set(used.map((one) => one.lun))));
  };
  const backend = el("select", { name: "backend" }, ...["file", "device", "memory", "null"].map((one) => el("option", { value: one }, one)));
  const path = el("input", { name: "path", type: "text", autocomplete: "off", pattern: "/.*", title: "an absolute path" });
  const size = el("input", { name: "size", type: "text", autocomplete: "off", placeholder: "10GiB" });
  const readOnly = el("input", { name: "read_only", type: "checkbox" });
  const transient = el("input", { name: "transient", type: "checkbox" });
  const [ofPath, ofSize] = [field("Path on the server", path), field("Size; a missing file is created at it", size)];
  const choose = () => {
    const hasPath = ["file", "device"].includes(backend.value);
    [ofPath.hidden, path.required] = [!hasPath, hasPath];
    ofSize.hidden = backend.value === "device";
    size.required = !hasPath;
  };
  target.addEventListener("change", next);
  backend.addEventListener("change", choose);
  next();
  choose();
  const own = serial();
  const keys = () => ({
    backend: backend.value,
    serial: own,
    ...(path.value && !ofPath.hidden ? { path: path.value } : {}),
    ...(size.value && !ofSize.hidden ? { size: size.value } : {}),
    ...(readOnly.checked ? { read_only: true } : {}),
  });
  const put = (dryRun) => send("PUT", `${lunPath(target.value, lun.value)}?dry_run=${dryRun}&transient=${transient.checked}`, keys(), { "If-None-Match": "*" });
  const effects = el("p", { role: "status" });
  const check = async () => {
    setText(effects, "");
    setText(effects, (await put(true)).changes.map(difference).join("; "));
  };
  open("Add a LUN", [
    field("Target", target), field("LUN", lun), field("Medium", backend), ofPath, ofSize,
    el("label", { class: "check" }, readOnly, "Read only"),
    el("label", { class: "check" }, transient, "Only until the next start of the server"), effects,
  ], "Add", () => put(false).then(done), [{ label: "Check", task: check }]);
}

/** Asks, and removes a LUN in the version that the page shows. */
export function removeLun(state, lun, done) {
  const used = state.sessions.filter(({ target }) => target === lun.target).length;
  const force = el("input", { type: "checkbox", name: "force" });
  const content = [el("p", {}, `LUN ${lun.lun} of ${shown(lun.target)}. Its data stay where they are; memory is lost.`)];
  if (used > 0) content.push(el("label", { class: "check" }, force, `Remove it although sessions use the target (${used})`));
  const path = () => `${lunPath(lun.target, lun.lun)}?force=${force.checked}`;
  open("Remove this LUN?", content, "Remove", () => send("DELETE", path(), undefined, { "If-Match": `"${state.version}"` }).then(done));
}

/** Asks, and ends a session. */
export function endSession(session, done) {
  const text = `Session ${session.tsih} of ${shown(session.initiator)} at ${shown(session.initiator_address)} with ${shown(session.target || "discovery")}. The server asks the host to log out, and then closes the connection. The host may log in again.`;
  open("End this session?", [el("p", {}, text)], "End session", () => send("DELETE", `/v1/sessions/${session.tsih}`).then(done));
}

const ROUTER_TEXTS = {
  drain: "The router rejects logins, and asks its hosts to log out. In a pair, the peer takes over.",
  resume: "The router accepts logins again.",
  failover: "The other router of the pair becomes active. Hosts log in there.",
};

/** Asks, and executes an action on a router. */
export function controlRouter(router, action, done) {
  const text = `${ROUTER_TEXTS[action]} Sessions now: ${router.logins_active}.`;
  open(`${action} router ${shown(router.name)}?`, [el("p", {}, text)], action, () => send("POST", `/v1/routers/${encodeURIComponent(router.name)}/${action}`).then(done));
}

/** Asks, and applies the files on trial. */
export function applyFiles(state, done) {
  const list = el("ul", {}, ...state.diff.slice(0, 20).map((one) => el("li", {}, difference(one))));
  const text = `Differences: ${state.diff.length}. The server rolls them back after 60 s, unless you keep them.`;
  const force = el("input", { type: "checkbox", name: "force" });
  const content = [el("p", {}, text), list];
  if (state.sessions.length > 0) content.push(el("label", { class: "check" }, force, "Apply them although sessions lose what they use"));
  const apply = () => send("POST", "/v1/config/apply", { confirm_within_s: 60, force: force.checked });
  open("Apply the files?", content, "Apply on trial", () => apply().then(done));
}

/** Keeps the configuration on trial, or rolls it back. */
export function endTrial(verb, done) {
  const title = verb === "confirm" ? "Keep this configuration?" : "Roll back this configuration?";
  open(title, [el("p", {}, "All hosts of this server are affected.")], verb === "confirm" ? "Keep it" : "Roll back", () => send("POST", `/v1/config/${verb}`).then(done));
}
