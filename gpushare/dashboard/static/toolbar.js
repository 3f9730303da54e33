// SPDX-License-Identifier: Apache-2.0
// The time range, refresh, colors and filters, which all pages have.

import { el, fill, select } from "./dom.js";
import { change, FILTERS, range, RANGES } from "./state.js";

const place = document.getElementById("toolbar");
const THEME = "gpushare-theme";
const REFRESH = [["0", "off"], ["5", "5 s"], ["10", "10 s"], ["30", "30 s"], ["60", "1 min"]];
const MODES = ["whole", "share", "MPS", "MIG"];
let options = { cards: [], namespaces: [], pods: [], names: [] };

place.addEventListener("submit", (event) => event.preventDefault());
applyTheme(localStorage.getItem(THEME) ?? "auto");

function applyTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  localStorage.setItem(THEME, name);
  dispatchEvent(new Event("gpushare-theme"));
}

const local = (seconds) => {
  const at = new Date(seconds * 1000 - new Date(seconds * 1000).getTimezoneOffset() * 60000);
  return at.toISOString().slice(0, 16);
};

function customRange(state) {
  if (state.range !== "custom") return [];
  const { since, until } = range(state);
  const from = el("input", { type: "datetime-local", id: "since", value: local(since) });
  const to = el("input", { type: "datetime-local", id: "until", value: local(until) });
  const apply = () => {
    const ends = [from, to].map((input) => new Date(input.value).getTime() / 1000);
    if (ends[0] < ends[1]) change({ since: ends[0], until: ends[1] });
    else to.setCustomValidity("The end must be after the start.");
    to.reportValidity();
  };
  return [
    el("label", {}, "From", from),
    el("label", {}, "To", to),
    el("button", { type: "button", id: "apply", onclick: apply }, "Apply"),
  ];
}

function filter(state, name, label, choices) {
  const isKnown = choices.some(([key]) => key === (state[name] ?? ""));
  const all = [["", "all"], ...choices, ...(state[name] && !isKnown ? [[state[name], state[name]]] : [])];
  return select(`filter-${name}`, label, all, state[name] ?? "", (value) => change({ [name]: value }));
}

const plain = (values) => values.map((value) => [value, value]);

export function toolbar(state, refresh) {
  if (place.contains(document.activeElement) && document.activeElement.tagName === "INPUT") return;
  const ranges = [...Object.entries(RANGES).map(([key, [, text]]) => [key, text]), ["custom", "custom"]];
  const pick = (value) => change(value === "custom" ? { range: value, ...range(state) } : { range: value, since: "", until: "" });
  const isFiltered = FILTERS.some((name) => state[name]);
  const clear = Object.fromEntries(FILTERS.map((name) => [name, ""]));
  const search = el("input", {
    type: "search", id: "filter-container", list: "names", value: state.container ?? "", placeholder: "name",
    onchange: (event) => change({ container: event.target.value }),
  });
  fill(
    place,
    select("range", "Range", ranges, state.range, pick),
    ...customRange(state),
    select("refresh", "Refresh", REFRESH, state.refresh, (value) => change({ refresh: value })),
    el("button", { type: "button", id: "now", onclick: refresh }, "Refresh now"),
    filter(state, "card", "Card", options.cards),
    filter(state, "mode", "Mode", plain(MODES)),
    filter(state, "namespace", "Namespace", plain(options.namespaces)),
    filter(state, "pod", "Pod", plain(options.pods)),
    el("label", {}, "Container", search),
    el("datalist", { id: "names" }, options.names.map((name) => el("option", { value: name }))),
    isFiltered ? el("button", { type: "button", id: "clear", onclick: () => change(clear) }, "Clear filters") : null,
    select("theme", "Colors", plain(["auto", "light", "dark"]), localStorage.getItem(THEME), applyTheme),
  );
}

const sorted = (values) => [...new Set(values)].filter(Boolean).sort();

export function setOptions(state, now, subjects) {
  const cards = new Map([...subjects.cards, ...now.cards].map((card) => [card.uuid, `${card.name ?? card.index}: ${card.model}`]));
  const all = [...now.tenants.map((one) => ({ ...one, namespace: one.pod?.namespace, pod: one.pod?.name })), ...subjects.containers];
  const found = {
    cards: [...cards],
    namespaces: sorted(all.map((one) => one.namespace)),
    pods: sorted(all.filter((one) => !state.namespace || one.namespace === state.namespace).map((one) => one.pod)),
    names: sorted(all.map((one) => one.name)),
  };
  if (JSON.stringify(found) === JSON.stringify(options)) return;
  options = found;
  toolbar(state, () => dispatchEvent(new HashChangeEvent("hashchange")));
}
