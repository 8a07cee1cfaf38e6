// Elements and texts. Texts become text nodes only: peers choose names.

/** Element by its id. */
export const byId = (id) => document.getElementById(id);

// Control characters, and characters that change the direction of the text around them.
const UNSAFE = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

/** A text of a peer, with its control characters written out. */
export function shown(text) {
  return String(text).replace(UNSAFE, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);
}

/** A new element. Children are elements or texts. */
export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** Sets a text if it differs, so that selections and screen readers are left alone. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function scaled(value, base, units) {
  let at = 0;
  while (value >= base && at < units.length - 1) {
    value /= base;
    at += 1;
  }
  const digits = at === 0 && Number.isInteger(value) ? 0 : value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[at]}`;
}

/** Bytes with a binary prefix, as sizes of disks. */
export const bytes = (value) => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);

/** Bytes a second with a decimal prefix. */
export const byteRate = (value) => scaled(value, 1000, ["B/s", "kB/s", "MB/s", "GB/s"]);

/** Commands a second. */
export const commandRate = (value) => scaled(value, 1000, ["/s", "k/s", "M/s"]);

/** A time of less than minutes. */
export function latency(seconds) {
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return seconds >= 1e-3 ? `${(seconds * 1e3).toFixed(2)} ms` : `${(seconds * 1e6).toFixed(0)} µs`;
}

/** A number with separated thousands. */
export const count = (value) => Number(value).toLocaleString("en");

/** A long time in its two largest units. */
export function duration(seconds) {
  const [d, h, m, s] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60, Math.floor(seconds) % 60];
  if (d > 0) return `${d}d ${h}h`;
  if (h > 0) return `${h}h ${m}m`;
  return m > 0 ? `${m}m ${s}s` : `${s}s`;
}

/** The local time of day of an RFC 3339 time, with the day if it is another one. */
export function moment(text) {
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return shown(text);
  const time = at.toLocaleTimeString("en-GB");
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday ? time : `${at.getFullYear()}-${String(at.getMonth() + 1).padStart(2, "0")}-${String(at.getDate()).padStart(2, "0")} ${time}`;
}

/** A value of the configuration as text. */
export function plain(value) {
  if (Array.isArray(value)) return value.map(plain).join(", ");
  return shown(typeof value === "object" && value !== null ? JSON.stringify(value) : value);
}

/**
 * Shows rows in a table. `columns`: name, kind (a class), and `cell`, which returns a text or elements. `key` identifies
 * a row, so that a row that stays keeps its elements and the focus.
 */
export function fill(table, columns, items, key, none) {
  if (!table.tHead) {
    const cells = columns.map(({ name, kind }) => el("th", { scope: "col", role: "columnheader", class: kind || "" }, name));
    table.setAttribute("role", "table");
    table.append(el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...cells)), el("tbody", { role: "rowgroup" }));
  }
  const body = table.tBodies[0];
  const old = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const rows = items.map((item) => {
    const name = String(key(item));
    const row = old.get(name) || el("tr", { role: "row" }, ...columns.map((column) => el("td", { role: "cell", class: column.kind || "", "data-label": column.name })));
    row.dataset.key = name;
    columns.forEach((column, at) => setCell(row.cells[at], column.cell(item)));
    return row;
  });
  if (rows.length === 0) {
    rows.push(old.get("") || el("tr", { role: "row", "data-key": "" }, el("td", { role: "cell", class: "none", colspan: columns.length })));
    setText(rows[0].cells[0], none);
  }
  const kept = new Set(rows);
  for (const row of [...body.rows]) if (!kept.has(row)) row.remove();
  rows.forEach((row, at) => {
    if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] || null);
  });
}

/** Buttons of a cell are made once; their row identifies what they act on. */
function setCell(cell, content) {
  if (typeof content === "string") {
    delete cell.dataset.content;
    return setText(cell, content);
  }
  const names = content.map((one) => one.textContent).join("\n");
  if (cell.dataset.content !== names) {
    cell.dataset.content = names;
    cell.replaceChildren(...content);
  }
}
