// The events of the server, as they occur.

import { events } from "./api.js";
import { byId, fill, moment, setText, shown } from "./view.js";

/** Events that the page keeps. */
const KEPT = 500;
const SHOWN = 200;
const LEVELS = ["info", "warn", "error"];
const PAUSE_MS = 3000;

/** Fields of an event that its message does not show anyway. */
function details(event) {
  const known = ["sequence", "time", "kind", "level", "message"];
  return Object.entries(event).filter(([key]) => !known.includes(key)).map(([key, value]) => `${shown(key)}=${shown(value)}`).join(" ");
}

/** Shows the events, the newest first. */
export function showEvents(state) {
  const least = LEVELS.indexOf(byId("events-level").value);
  const listed = state.events.filter(({ level }) => LEVELS.indexOf(level) >= least).slice(0, SHOWN);
  const columns = [
    { name: "Time", kind: "time", cell: ({ time }) => moment(time) },
    { name: "Level", cell: ({ level }) => shown(level) },
    { name: "Kind", kind: "name", cell: ({ kind }) => shown(kind) },
    { name: "Event", kind: "name", cell: ({ message }) => shown(message) },
    { name: "Details", kind: "name", cell: details },
  ];
  fill(byId("events-table"), columns, listed, ({ sequence, kind }) => `${sequence} ${kind}`, state.noEvents || "No events.");
}

/** Reads events for as long as the page is open. `changed` is called after each part. */
export async function follow(state, changed) {
  let last = null;
  for (;;) {
    try {
      const path = last === null ? "/v1/events?since=0" : "/v1/events";
      for await (const event of events(path, last)) {
        last = event.sequence;
        state.events.unshift(event);
        state.events.length = Math.min(state.events.length, KEPT);
        setText(byId("events-state"), "live");
        changed();
      }
    } catch (e) {
      if (e.status === 404) {
        state.noEvents = "This server has no event stream.";
        changed();
        return;
      }
      setText(byId("events-state"), "interrupted");
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}
