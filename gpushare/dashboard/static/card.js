// SPDX-License-Identifier: Apache-2.0
// One card: its state, its containers, its figures and events.

import { get } from "./api.js";
import { el, facts, fill, section, select } from "./dom.js";
import { evictedTable } from "./evicted.js";
import { available, size, use } from "./format.js";
import { Graph } from "./graph.js";
import { eventTable, noneOf, tenantTable } from "./rows.js";
import { change, passes } from "./state.js";

const GRAPHS = [
  { title: "Memory", figures: ["used_bytes", "allocated_bytes", "reserved_bytes"] },
  { title: "Utilization", figures: ["utilization", "memory_copy", "encoder", "decoder"] },
  { title: "Power", figures: ["power"] },
  { title: "Temperature", figures: ["temperature"] },
  { title: "Clocks", figures: ["sm_clock", "memory_clock"] },
  { title: "Containers", figures: ["tenants"] },
  { title: "XID errors", figures: ["xids"] },
];

export function card(state) {
  const head = el("div");
  const about = el("div");
  const containers = el("div");
  const evicted = el("div");
  const events = el("div");
  const graphs = GRAPHS.map((one) => new Graph({ ...one, subjects: [] }));
  const node = el(
    "div", {},
    el("h1", {}, "Card"),
    head,
    about,
    section("Containers", containers),
    section("Evicted", evicted),
    section("Over time", el("div", { class: "graphs" }, graphs.map((graph) => graph.node))),
    section("Events", events),
  );

  async function update({ state: wanted, now, subjects, range, signal }) {
    const known = new Map([...subjects.cards, ...now.cards].map((one) => [one.uuid, one]));
    const uuid = state.id || wanted.card || now.cards[0]?.uuid || [...known.keys()][0];
    const choices = [...known].map(([key, one]) => [key, `${one.name ?? one.index}: ${one.model}`]);
    fill(head, select("choose", "Card", choices, uuid, (id) => change({ id })));
    const live = now.cards.find((one) => one.uuid === uuid);
    fill(about, live ? cardFacts(live) : el("p", { class: "none" }, noneOf(now, "gpushared does not report this card now.")));
    const passing = now.tenants.filter((one) => passes({ ...wanted, card: "" }, one));
    fill(containers, tenantTable(passing.filter((one) => one.cards.some((part) => part.uuid === uuid)), now, uuid));
    fill(evicted, evictedTable(live ? passing : [], now, live?.index));
    if (!uuid) return;
    const found = now.error ? null : await get("events", { name: uuid, ...range }, signal).catch(() => null);
    fill(events, eventTable(found));
    for (const graph of graphs) {
      graph.about.subjects = [`card:${uuid}`];
      graph.events = found ?? [];
    }
    await Promise.all(graphs.map((graph) => graph.load(range, signal)));
  }

  return { node, update, graphs };
}

function cardFacts(card) {
  const processes = card.non_tenant_processes.map((one) => `${one.name} (${one.pid}): ${size(one.bytes)}`);
  return facts([
    ["Model", card.model],
    ["UUID", card.uuid],
    ["Health", card.health],
    ["Mode", card.mode + (card.cordoned ? `, cordoned ${card.cordon_reason}` : "")],
    ["Allocated", use(card.allocated_bytes, card.memory_bytes)],
    ["Available", available(card)],
    ["Evicted", card.evicted_bytes ? `${size(card.evicted_bytes)} of ${card.evicted_tenants} container${card.evicted_tenants === 1 ? "" : "s"} in host memory` : ""],
    ["Burst", card.burst_granted_bytes ? size(card.burst_granted_bytes) : ""],
    ["Cores available", available(card, `${card.cores_available} %`)],
    ["Containers", `${card.tenants}/${card.max_tenants}`],
    ["Policy", card.policy || "as requested"],
    ["Utilization", card.utilization === null ? "-" : `${card.utilization} %`],
    ["Temperature", card.sensors.temperature_celsius === undefined ? "-" : `${card.sensors.temperature_celsius} °C`],
    ["Power", card.sensors.power_milliwatts === undefined ? "-" : `${Math.round(card.sensors.power_milliwatts / 1000)} W`],
    ["Compute capability", card.compute_capability],
    ["NUMA node", card.numa_node === null ? "" : String(card.numa_node)],
    ["Non-tenant processes", processes.join(", ")],
  ]);
}
