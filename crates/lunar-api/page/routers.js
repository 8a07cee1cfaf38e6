// The tables of routers and of their paths.

import { byId, count, el, fill, shown } from "./view.js";

function peer({ failover }) {
  if (!failover) return "no pair";
  const state = failover.state === null ? "does not answer" : shown(failover.state);
  const roles = [failover.preferred && "preferred here", !failover.eligible && "not eligible"].filter(Boolean);
  return [`${shown(failover.peer)}: ${state}`, ...roles].join(", ");
}

function health(router) {
  const luns = router.targets.flatMap((target) => target.luns);
  const states = new Map();
  for (const { health } of luns) states.set(health, (states.get(health) || 0) + 1);
  return [...states].map(([state, n]) => `${n} ${state}`).join(", ");
}

const hop = ({ commands, mean_us }) => (commands === 0 ? "" : `${mean_us.toFixed(0)} µs`);

/** Shows the routers. `act` executes an action on one. */
export function showRouters(state, act) {
  byId("routers").hidden = state.routers.length === 0;
  const button = (router, action, label) => el("button", { type: "button", "aria-label": `${label} router ${shown(router.name)}`, onclick: () => act(router, action) }, label);
  const buttons = (router) => {
    if (!state.mayWrite) return "";
    const first = router.draining ? button(router, "resume", "Resume") : button(router, "drain", "Drain");
    return router.failover ? [first, button(router, "failover", "Fail over")] : [first];
  };
  const columns = [
    { name: "Router", cell: (router) => shown(router.name) },
    { name: "State", cell: (router) => shown(router.state) + (router.draining && router.state !== "draining" ? ", draining" : "") },
    { name: "Peer", kind: "name", cell: peer },
    { name: "LUNs", cell: health },
    { name: "Sessions", kind: "number", cell: (router) => count(router.logins_active) },
    { name: "Refused logins", kind: "number", cell: (router) => count(router.target_access_failures + router.authentication_failures) },
    { name: "Mean here", kind: "number", cell: (router) => hop(router.front) },
    { name: "Mean in queue", kind: "number", cell: (router) => hop(router.queue) },
    { name: "Mean upstream", kind: "number", cell: (router) => hop(router.upstream) },
    { name: "", cell: buttons },
  ];
  fill(byId("routers-table"), columns, state.routers, (router) => router.name, "No routers.");
  showPaths(state.routers);
}

function showPaths(routers) {
  const paths = routers.flatMap((router) => router.upstreams.flatMap((upstream) => upstream.paths.map((path) => ({ router, upstream, path }))));
  const columns = [
    { name: "Router", cell: ({ router }) => shown(router.name) },
    { name: "Upstream", kind: "name", cell: ({ upstream }) => shown(upstream.name) },
    { name: "LUN", cell: ({ path }) => shown(path.lun) },
    { name: "Path", kind: "name", cell: ({ path }) => shown(path.url) },
    { name: "State", cell: ({ path, upstream }) => shown(path.state) + (upstream.obstacle ? `: ${shown(upstream.obstacle)}` : "") },
    { name: "In flight", kind: "number", cell: ({ path }) => (path.in_flight === null ? "" : count(path.in_flight)) },
    { name: "Recoveries", kind: "number", cell: ({ path }) => (path.recoveries === null ? "" : count(path.recoveries)) },
  ];
  const key = ({ router, upstream, path }) => [router.name, upstream.name, path.lun, path.url, path.core, path.host].join(" ");
  fill(byId("paths-table"), columns, paths.slice(0, 300), key, "No paths.");
}
