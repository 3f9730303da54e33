// SPDX-License-Identifier: Apache-2.0
// Elements without HTML in strings: names of containers are text, whatever is in them.

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
}

// The focus stays where it was: on the element of the same id.
export function fill(place, ...children) {
  const id = document.activeElement?.id;
  place.replaceChildren(...children.flat(Infinity).filter((child) => child !== null));
  if (id && document.activeElement?.id !== id) document.getElementById(id)?.focus();
}

export function section(title, ...children) {
  return el("section", {}, el("h2", {}, title), ...children);
}

export function table(label, headings, rows, none) {
  if (!rows.length) return el("p", { class: "none" }, none);
  const head = el("tr", {}, headings.map((heading) => el("th", { scope: "col" }, heading)));
  const lines = rows.map((cells) => el("tr", {}, cells.map((cell) => el("td", {}, cell))));
  const content = el("table", { "aria-label": label }, el("thead", {}, head), el("tbody", {}, lines));
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label }, content);
}

// A bar from 0 to 1 with its text beside it.
export function bar(part, text) {
  const inner = el("span", { class: part > 0.95 ? "fill full" : "fill" });
  inner.style.width = `${Math.max(0, Math.min(1, part || 0)) * 100}%`;
  return el("span", { class: "measure" }, el("span", { class: "bar", "aria-hidden": "true" }, inner), text);
}

export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return el("dl", {}, shown.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

export function select(id, label, options, value, onchange) {
  const choices = options.map(([key, text]) => el("option", { value: key }, text));
  const made = el("select", { id, onchange: (event) => onchange(event.target.value) }, choices);
  made.value = value;
  return el("label", {}, label, made);
}
