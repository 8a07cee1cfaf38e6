// Line plots of the past hour, in SVG.

import { el, setText } from "./view.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 170;
const LEFT = 74;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;
const HOUR = 3600;

function svg(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** The next larger value of 1, 2 or 5 times a power of ten. */
function ceiling(value, least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, least)));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= value) || 10 * power;
}

/**
 * A plot with up to two series. `series`: label and the key of a sample. `format` shows a value. `least`: the smallest
 * end of the axis.
 */
export class Plot {
  constructor(figure, { title, series, format, least }) {
    Object.assign(this, { title, series, format, least, samples: [], at: null });
    const key = ({ label }, n) => el("span", { class: "key" },
      svg("svg", { "aria-hidden": "true" }, svg("line", { x1: 1, x2: 25, y1: 4, y2: 4, class: `series ${styleOf(n)}` })), label);
    this.svg = svg("svg", { role: "img", tabindex: "0" });
    this.text = el("output", {});
    figure.append(el("figcaption", {}, el("b", {}, title), el("span", {}, ...series.map(key))), this.svg, this.text);
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.show(null));
    this.svg.addEventListener("blur", () => this.show(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  /** Sets the samples, each with its time in seconds as `t`. */
  set(samples) {
    this.samples = samples;
    this.draw();
  }

  get end() {
    return this.samples.length > 0 ? this.samples[this.samples.length - 1].t : 0;
  }

  x(t) {
    return LEFT + (this.width - LEFT - RIGHT) * (1 - (this.end - t) / HOUR);
  }

  y(value) {
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / this.top);
  }

  draw() {
    this.width = this.svg.clientWidth || 300;
    const values = this.samples.flatMap((sample) => this.series.map(({ key }) => sample[key] || 0));
    this.peak = Math.max(0, ...values);
    this.top = ceiling(this.peak, this.least);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    const lines = this.series.map(({ key }, n) => svg("path", { class: `series ${styleOf(n)}`, d: this.path(key) }));
    this.cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    this.svg.replaceChildren(...this.axes(), ...lines, this.cursor);
    this.svg.dataset.points = String(this.samples.length);
    this.svg.dataset.peak = String(this.peak);
    this.show(this.at);
  }

  axes() {
    const rows = [0, 0.5, 1].flatMap((part) => {
      const y = Math.round(this.y(part * this.top));
      return [svg("line", { class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y }),
        svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, this.format(part * this.top))];
    });
    const columns = [60, 45, 30, 15, 0].map((minutes) => {
      const anchor = minutes === 0 ? "end" : "middle";
      const text = minutes === 0 ? "now" : `-${minutes} min`;
      return svg("text", { x: this.x(this.end - minutes * 60), y: HEIGHT - 5, "text-anchor": anchor }, text);
    });
    return [...rows, ...columns];
  }

  /** The line through the values of a key, with gaps where there is none. */
  path(key) {
    let path = "";
    let isOpen = false;
    for (const sample of this.samples.filter((one) => this.end - one.t <= HOUR)) {
      const value = sample[key];
      if (value === null || value === undefined) {
        isOpen = false;
        continue;
      }
      const point = `${this.x(sample.t).toFixed(1)} ${this.y(value).toFixed(1)}`;
      // A point alone is a line of no length, whose round ends show.
      path += isOpen ? `L${point}` : `M${point}L${point}`;
      isOpen = true;
    }
    return path;
  }

  point(x) {
    const t = this.end - HOUR * (1 - (x - LEFT) / (this.width - LEFT - RIGHT));
    const distance = (sample) => Math.abs(sample.t - t);
    const nearest = this.samples.reduce((best, sample) => (!best || distance(sample) < distance(best) ? sample : best), null);
    this.show(nearest ? nearest.t : null);
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -12, PageDown: 12, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") return this.show(null);
    if (step === undefined || this.samples.length === 0) return undefined;
    event.preventDefault();
    const last = this.samples.length - 1;
    const found = this.samples.findIndex((sample) => sample.t === this.at);
    const from = found < 0 ? last : found;
    return this.show(this.samples[Math.min(last, Math.max(0, from + step))].t);
  }

  /** Shows the values at a time, or the last ones. */
  show(t) {
    this.at = t;
    const sample = this.samples.find((one) => one.t === t) || this.samples[this.samples.length - 1];
    this.cursor.setAttribute("visibility", t === null ? "hidden" : "visible");
    if (!sample) return this.say("no samples yet: the first one takes 5 s");
    if (t !== null) {
      this.cursor.setAttribute("x1", this.x(sample.t));
      this.cursor.setAttribute("x2", this.x(sample.t));
    }
    const value = (key) => (sample[key] === null || sample[key] === undefined ? "none" : this.format(sample[key]));
    const values = this.series.map(({ label, key }) => `${label} ${value(key)}`).join(", ");
    const when = t === null ? "now" : new Date(sample.t * 1000).toLocaleTimeString("en-GB");
    return this.say(`${when}: ${values}; peak ${this.format(this.peak)}`);
  }

  say(text) {
    setText(this.text, text);
    this.svg.setAttribute("aria-label", `${this.title}, the past hour. ${text}. Arrow keys read other times.`);
  }
}

const styleOf = (n) => (n === 0 ? "first" : "second");
