// SPDX-License-Identifier: Apache-2.0
// Problems first; then how full the cards are, who waits, and what the containers do.

import { el, fill, section, table } from "./dom.js";
import { evictedTable } from "./evicted.js";
import { Graph } from "./graph.js";
import { cardTable, noneOf, tenantTable, toCard, toContainer, UNKNOWN } from "./rows.js";
import { passes, passesCard } from "./state.js";

const MOST_LINES = 16;

export function overview() {
  const problems = el("div");
  const cards = el("div");
  const waits = el("div");
  const evicted = el("div");
  const containers = el("div");
  const more = el("p", { class: "none" });
  const graphs = [
    new Graph({ title: "Utilization of cards", figures: ["utilization"], subjects: [] }),
    new Graph({ title: "Memory in use of cards", figures: ["used_bytes"], subjects: [] }),
    new Graph({ title: "Compute received by containers", figures: ["utilization"], subjects: [] }),
    new Graph({ title: "Memory in use of containers", figures: ["used_bytes"], subjects: [] }),
  ];
  const node = el(
    "div", {},
    el("h1", {}, "Overview"),
    section("Problems", problems),
    section("Cards", cards),
    section("Waiting", waits),
    section("Evicted", evicted),
    section("Containers", containers),
    section("Over time", el("div", { class: "graphs" }, graphs.map((graph) => graph.node)), more),
  );

  async function update({ state, now, subjects, range, signal }) {
    const tenants = now.tenants.filter((one) => passes(state, one));
    const keys = new Set(tenants.map((one) => one.key));
    const shown = now.cards.filter((card) => passesCard(state, card, now.tenants));
    const uuids = new Set(shown.map((card) => card.uuid));
    const isShown = (one) => (one.key ? keys.has(one.key) : !one.card || uuids.has(one.card));
    fill(problems, problemList(now.problems.filter(isShown), now.error));
    fill(cards, cardTable(shown, now));
    const rows = now.waiting.filter((one) => !one.key || keys.has(one.key));
    fill(waits, table("Waiting", ["Container", "Reason"], rows.map((one) => [one.key ? toContainer(one.key, one.name, "waiting-") : one.name, one.reason]), noneOf(now, "No container waits.")));
    fill(evicted, evictedTable(tenants, now));
    fill(containers, tenantTable(tenants, now));
    const past = subjects.containers.filter((one) => passes(state, one));
    const ofCards = subjects.cards.filter((card) => passesCard(state, card, [...now.tenants, ...subjects.containers])).map((card) => card.subject);
    const last = past.sort((one, other) => other.last - one.last).slice(0, MOST_LINES).map((one) => one.subject);
    more.textContent = past.length > MOST_LINES ? `The graphs show the last ${MOST_LINES} of ${past.length} containers; use the filters for others.` : "";
    graphs.forEach((graph, place) => {
      graph.about.subjects = place < 2 ? ofCards : last;
    });
    await Promise.all(graphs.map((graph) => graph.load(range, signal)));
  }

  return { node, update, graphs };
}

function problemList(problems, error) {
  if (error) return el("p", { class: "none" }, UNKNOWN);
  if (!problems.length) return el("p", { class: "ok" }, "None.");
  const subject = (one) => {
    if (one.key) return [" ", toContainer(one.key, "Show", "problem-")];
    return one.card ? [" ", toCard(one.card, "Show")] : [];
  };
  return el("ul", { class: "problems" }, problems.map((one) => el("li", {}, one.text, subject(one))));
}
