// SPDX-License-Identifier: Apache-2.0
// What is shown is in the address, after the #: it can be bookmarked, and Back works.

export const RANGES = {
  "30m": [1800, "30 min"],
  "1h": [3600, "1 h"],
  "6h": [6 * 3600, "6 h"],
  "12h": [12 * 3600, "12 h"],
  "24h": [24 * 3600, "24 h"],
  "2d": [48 * 3600, "2 d"],
  "7d": [7 * 86400, "7 d"],
};
const DEFAULTS = { page: "overview", range: "1h", refresh: "10" };
export const FILTERS = ["card", "mode", "namespace", "pod", "container"];

export function read() {
  const found = /^#\/(\w+)(?:\?(.*))?$/.exec(location.hash);
  const query = Object.fromEntries(new URLSearchParams(found?.[2] ?? ""));
  return { ...DEFAULTS, ...query, page: found?.[1] ?? DEFAULTS.page };
}

export function link(changes) {
  const state = { ...read(), ...changes };
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(state))
    if (key !== "page" && value !== "" && value !== undefined && value !== DEFAULTS[key]) query.set(key, value);
  return `#/${state.page}${query.size ? `?${query}` : ""}`;
}

export function change(changes) {
  location.hash = link(changes);
}

export function custom(since, until) {
  change({ range: "custom", since: Math.round(since), until: Math.round(until) });
}

// The range in seconds since the epoch.
export function range(state, now = Date.now() / 1000) {
  if (state.range === "custom" && Number(state.since) < Number(state.until))
    return { since: Number(state.since), until: Number(state.until) };
  const [seconds] = RANGES[state.range] ?? RANGES[DEFAULTS.range];
  return { since: Math.floor(now - seconds), until: Math.ceil(now) };
}

const isIn = (wanted, value) => !wanted || wanted === value;

// Whether the filters let a container pass: of gpushared (`pod` is an object) or of the history.
export function passes(state, one) {
  const cards = one.cards.map((card) => card.uuid ?? card);
  const pod = one.pod?.name ?? one.pod ?? "";
  const namespace = one.pod?.namespace ?? one.namespace ?? "";
  return (
    (!state.card || cards.includes(state.card)) &&
    isIn(state.mode, one.sharing) &&
    isIn(state.namespace, namespace) &&
    isIn(state.pod, pod) &&
    (!state.container || (one.name || one.id).includes(state.container))
  );
}

// A card passes if its mode does, and if a container that passes has a part of it.
export function passesCard(state, card, containers) {
  if (!isIn(state.card, card.uuid)) return false;
  const isNarrow = state.mode || state.namespace || state.pod || state.container;
  if (!isNarrow) return true;
  const holds = containers.some(
    (one) => passes(state, one) && one.cards.some((part) => (part.uuid ?? part) === card.uuid),
  );
  return holds || (card.sharing === state.mode && !state.namespace && !state.pod && !state.container);
}
