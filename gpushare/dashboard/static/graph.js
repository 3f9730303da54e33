// SPDX-License-Identifier: Apache-2.0
// A graph of figures over time: uPlot with our colors, zoom by mouse, finger and keyboard, and CSV.

import { download, get } from "./api.js";
import { el } from "./dom.js";
import { figure as shown, time } from "./format.js";
import { custom } from "./state.js";

/* global uPlot */

const HEIGHT = 190;
const MOST_BANDS = 3;

// The color that a variable of style.css stands for now, as a canvas takes it.
function color(name) {
  const probe = el("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function lineColor(place) {
  return color(`--line-${place % 8}`);
}

// Values of a counter are shown as so many in a second, if the graph says `rate`.
function valuesOf(line, values, graph, step) {
  return graph.rate ? values.map((value) => (value === null ? null : value / step)) : values;
}

export class Graph {
  // `about`: title, subjects, figures; unit and rate if they differ from the figure's.
  constructor(about) {
    this.about = about;
    this.events = [];
    this.plot = null;
    this.place = el("div", { class: "plot", tabindex: "0", role: "img", "aria-label": about.title });
    this.place.addEventListener("keydown", (event) => this.#key(event));
    const csv = el("button", { type: "button", onclick: () => this.#csv() }, "CSV");
    csv.setAttribute("aria-label", `${about.title} as CSV`);
    this.note = el("p", { class: "none", hidden: true }, "No samples in this range.");
    this.node = el(
      "figure", {},
      el("figcaption", {}, el("span", {}, about.title), csv),
      this.place,
      this.note,
    );
    new ResizeObserver(() => this.plot?.setSize(this.#size())).observe(this.place);
  }

  async load(range, signal) {
    this.range = range;
    const { subjects, figures } = this.about;
    const isEmpty = !subjects.length;
    const data = isEmpty ? { times: [], lines: [], step: 1 } : await get("series", this.#query(), signal);
    this.step = data.step;
    this.lines = data.lines.filter((line) => line.values.some((value) => value !== null));
    this.note.hidden = this.lines.length > 0;
    this.place.hidden = !this.lines.length;
    this.several = subjects.length > 1;
    this.severalFigures = figures.length > 1;
    this.#draw(data.times);
  }

  restyle() {
    if (this.times) this.#draw(this.times);
  }

  #query() {
    const { subjects, figures } = this.about;
    return { subject: subjects, figure: figures, since: this.range.since, until: this.range.until };
  }

  #csv() {
    download("series.csv", this.#query(), `${this.about.title.toLowerCase().replaceAll(/\W+/g, "-")}.csv`);
  }

  #size() {
    return { width: Math.max(240, this.place.clientWidth), height: HEIGHT };
  }

  #unit(line) {
    return this.about.unit ?? line.unit;
  }

  #name(line) {
    if (this.several && this.severalFigures) return `${line.name}: ${line.text}`;
    return this.several ? line.name : (this.about.label ?? line.text);
  }

  #draw(times) {
    this.times = times;
    this.plot?.destroy();
    this.plot = null;
    this.place.setAttribute("aria-label", this.#summary());
    if (!this.lines.length) return;
    const data = [times];
    const series = [{ value: (_, at) => (at === null ? "" : time(at)), label: "time" }];
    const bands = [];
    const withBands = this.lines.length <= MOST_BANDS && !this.lines[0].counter;
    this.lines.forEach((line, place) => {
      const unit = this.#unit(line);
      const values = valuesOf(line, line.values, this.about, this.step);
      const stroke = lineColor(place);
      const ends = (_, value, __, at) => {
        if (value === null || at === null) return "-";
        const [least, most] = [line.least[at], line.most[at]];
        const bounds = !withBands || least === most ? "" : ` (${shown(least, unit)} to ${shown(most, unit)})`;
        return `${shown(value, unit)}${bounds}`;
      };
      series.push({ label: this.#name(line), stroke, width: 1.5, value: ends });
      data.push(values);
    });
    if (withBands) {
      this.lines.forEach((line, place) => {
        const hidden = { label: "", stroke: "transparent", width: 0, points: { show: false }, legend: false };
        series.push({ ...hidden, class: "bound" }, { ...hidden, class: "bound" });
        data.push(line.most, line.least);
        bands.push({ series: [series.length - 2, series.length - 1], fill: lineColor(place).replace("rgb(", "rgba(").replace(")", ", 0.2)") });
      });
    }
    const axis = { stroke: color("--text"), grid: { stroke: color("--grid"), width: 1 }, ticks: { stroke: color("--grid") } };
    const unit = this.#unit(this.lines[0]);
    this.plot = new uPlot(
      {
        ...this.#size(),
        series,
        bands,
        scales: { x: { min: this.range.since, max: this.range.until }, y: { range: (_, __, most) => [0, top(most, unit)] } },
        axes: [
          { ...axis, values: dates(this.range) },
          { ...axis, size: 74, values: (_, ticks) => ticks.map((tick) => shown(tick, unit)), ...(unit === "bytes" ? { incrs: BYTES } : {}) },
        ],
        cursor: { drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => this.#zoom(2) } },
        legend: { live: true },
        hooks: {
          setSelect: [(plot) => this.#select(plot)],
          draw: [(plot) => this.#events(plot)],
        },
      },
      data,
      this.place,
    );
  }

  // The text that stands for the picture.
  #summary() {
    const parts = this.lines.map((line) => {
      const unit = this.#unit(line);
      const values = valuesOf(line, line.values, this.about, this.step);
      const known = values.filter((value) => value !== null);
      const ends = [Math.min(...known), Math.max(...known)].map((value) => shown(value, unit));
      return `${this.#name(line)}: last ${shown(known.at(-1), unit)}, from ${ends[0]} to ${ends[1]}`;
    });
    return [this.about.title, ...parts].join(". ");
  }

  #select(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const since = plot.posToVal(left, "x");
    custom(since, Math.max(since + 60, plot.posToVal(left + width, "x")));
  }

  #zoom(factor, shift = 0) {
    const { since, until } = this.range;
    const half = Math.max(30, ((until - since) / 2) * factor);
    const middle = (since + until) / 2 + shift * (until - since);
    custom(middle - half, middle + half);
  }

  #key(event) {
    const does = { ArrowLeft: [1, -0.25], ArrowRight: [1, 0.25], "+": [0.5], "=": [0.5], "-": [2] }[event.key];
    if (!does || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.#zoom(...does);
  }

  #events(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    for (const event of this.events) {
      if (event.time < this.range.since || event.time > this.range.until) continue;
      const x = Math.round(plot.valToPos(event.time, "x", true));
      ctx.strokeStyle = ctx.fillStyle = color(event.level === "info" ? "--event" : "--bad");
      ctx.setLineDash([4, 3]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.beginPath();
      ctx.arc(x, bbox.top, 3 * devicePixelRatio, 0, 7);
      ctx.fill();
    }
    ctx.restore();
  }
}

const BYTES = Array.from({ length: 44 }, (_, power) => 2 ** power);

function top(most, unit) {
  if (unit === "percent" && most <= 100) return 100;
  return most ? most * 1.05 : 1;
}

function dates(range) {
  const isLong = range.until - range.since > 86400;
  return (_, ticks) => ticks.map((tick) => (isLong ? time(tick).slice(5, 16) : time(tick).slice(11, 16)));
}
