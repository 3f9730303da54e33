// SPDX-License-Identifier: Apache-2.0
// The reports of `gpushare report`, with the range and the filters of the page.

import { download, get } from "./api.js";
import { el, fill, select } from "./dom.js";
import { change, FILTERS } from "./state.js";

export function reports(state) {
  const head = el("div", { class: "choices" });
  const place = el("div");
  const node = el("div", {}, el("h1", {}, "Reports"), head, place);
  let catalogue = null;

  async function update({ state: wanted, range, signal }) {
    catalogue ??= await get("reports", {}, signal);
    const chosen = catalogue.reports.find((one) => one.name === state.id) ?? catalogue.reports[0];
    const names = catalogue.reports.map((one) => [one.name, one.title]);
    const filters = Object.fromEntries(FILTERS.map((name) => [name, wanted[name] ?? ""]));
    const asked = { name: chosen.name, by: wanted.by ?? "", ...filters, ...range };
    const save = (form) => el("button", { type: "button", id: `save-${form}`, onclick: () => download("report", { ...asked, format: form }, `gpushare-${chosen.name}.${form}`) }, form);
    fill(
      head,
      select("choose", "Report", names, chosen.name, (id) => change({ id, by: "" })),
      select("by", "Group by", [["", chosen.by ? `default: ${chosen.by}` : "nothing"], ...catalogue.labels.map((name) => [name, name])], wanted.by ?? "", (by) => change({ by })),
      el("span", { role: "group", "aria-label": "Download" }, catalogue.formats.map(save)),
    );
    const found = await get("report", asked, signal);
    fill(place, el("p", {}, found.summary), content(found), el("ul", {}, found.notes.map((text) => el("li", {}, text))));
  }

  return { node, update, graphs: [] };
}

function content(found) {
  if (!found.rows.length) return el("p", { class: "none" }, "Nothing to report in this range.");
  const kind = (place) => (found.headings[place].is_number ? "number" : "");
  const line = (cells, name) => el("tr", {}, cells.map((text, place) => el(name, { class: kind(place) }, text)));
  const head = el("tr", {}, found.headings.map((one, place) => el("th", { scope: "col", title: one.meaning, class: kind(place) }, one.text)));
  const foot = found.total.length ? el("tfoot", {}, line(found.total, "th")) : null;
  const table = el("table", { "aria-label": found.title }, el("thead", {}, head), el("tbody", {}, found.rows.map((cells) => line(cells, "td"))), foot);
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": found.title }, table);
}
