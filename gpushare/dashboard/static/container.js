// SPDX-License-Identifier: Apache-2.0
// One container: its memory by kind, compute received and requested, throttling, and events.

import { get, Refused } from "./api.js";
import { bar, el, facts, fill, section, select, table } from "./dom.js";
import { evictedFacts } from "./evicted.js";
import { size, time, use } from "./format.js";
import { Graph } from "./graph.js";
import { cores, eventTable, isolationOf, nameOf, noneOf, stateOf, toCard } from "./rows.js";
import { change, passes } from "./state.js";

const GRAPHS = [
  { title: "Memory", figures: ["used_bytes", "quota_bytes", "peak_bytes"] },
  { title: "Compute received and requested", figures: ["utilization", "cores"] },
  { title: "Threads that wait at the launch gate", figures: ["throttled_seconds"], unit: "count", rate: true, label: "threads" },
  { title: "Encoder and decoder", figures: ["encoder", "decoder"] },
  { title: "Denied allocations", figures: ["denied"] },
];

export function container(state) {
  const head = el("div");
  const about = el("div");
  const memory = el("div");
  const events = el("div");
  const graphs = GRAPHS.map((one) => new Graph({ ...one, subjects: [] }));
  const node = el(
    "div", {},
    el("h1", {}, "Container"),
    head,
    about,
    section("Memory by kind", memory),
    section("Over time", el("div", { class: "graphs" }, graphs.map((graph) => graph.node))),
    section("Events", events),
  );

  async function update({ state: wanted, now, subjects, range, signal }) {
    const live = now.tenants.find((one) => one.key === state.id);
    const all = new Map();
    for (const one of [...now.tenants, ...subjects.containers])
      if (passes(wanted, one) || one.key === state.id) if (!all.has(one.key)) all.set(one.key, one);
    const names = [...all.values()].map((one) => one.name);
    const label = (one) => (names.filter((name) => name === one.name).length > 1 || !one.name ? `${one.name} ${one.id.slice(0, 12)}` : one.name);
    const choices = [...all].map(([key, one]) => [key, label(one)]);
    if (!state.id || !all.has(state.id)) choices.unshift(["", "choose"]);
    fill(head, select("choose", "Container", choices, all.has(state.id) ? state.id : "", (id) => change({ id })));
    const past = subjects.containers.find((one) => one.key === state.id);
    if (!state.id) {
      fill(about, el("p", { class: "none" }, "Choose a container."));
      return;
    }
    fill(about, live ? liveFacts(live) : pastFacts(past, noneOf(now, "not running")));
    const shown = live ?? past;
    const why = live ? await get("why", { name: live.key }, signal).catch(quiet) : null;
    fill(memory, why ? kinds(why) : el("p", { class: "none" }, noneOf(now, "The container is not running.")));
    let found = now.error ? null : [];
    if (shown && !now.error) found = await get("events", { name: shown.key, ...range }, signal).catch(quiet);
    fill(events, eventTable(found));
    for (const graph of graphs) {
      graph.about.subjects = [`container:${state.id}`];
      graph.events = found ?? [];
    }
    await Promise.all(graphs.map((graph) => graph.load(range, signal)));
  }

  return { node, update, graphs };
}

// It may have exited since the list was read.
function quiet(error) {
  if (error instanceof Refused && error.status !== 401) return null;
  throw error;
}

function liveFacts(tenant) {
  const pairs = tenant.cards.flatMap((card) => [
    [`Card ${card.index}`, toCard(card.uuid, card.uuid)],
    [`Memory on card ${card.index}`, use(card.used_bytes, card.quota_bytes, card.limit_bytes)],
    [`Cores on card ${card.index}`, cores(card)],
  ]);
  return facts([
    ["Name", nameOf(tenant)],
    ["ID", tenant.id],
    ["Pod", tenant.pod ? `${tenant.pod.namespace}/${tenant.pod.name}` : ""],
    ["Engine", tenant.engine],
    ["State", stateOf(tenant)],
    ...evictedFacts(tenant),
    ["Mode", tenant.sharing],
    ["Isolation", isolationOf(tenant)],
    ["Policy", tenant.policy],
    ["Created", time(tenant.created)],
    ...pairs,
    ["Processes", String(tenant.processes.length)],
    ["Warnings", tenant.warnings.join(" ")],
    ["Notes", tenant.notes.join(" ")],
  ]);
}

function pastFacts(past, state) {
  if (!past) return el("p", { class: "none" }, "The history has no such container in this range.");
  return facts([
    ["Name", past.name],
    ["ID", past.id],
    ["Pod", past.pod ? `${past.namespace}/${past.pod}` : ""],
    ["User", past.user],
    ["State", state],
    ["Mode", past.sharing],
    ["First sample", time(past.first)],
    ["Last sample", time(past.last)],
  ]);
}

function kinds(why) {
  const parts = why.cards.map((card) => {
    const found = Object.entries(card.kinds).filter(([, bytes]) => bytes).sort(([, one], [, other]) => other - one);
    const rows = found.map(([kind, bytes]) => [kind.replaceAll("_", " "), bar(bytes / card.quota_bytes, size(bytes))]);
    return [
      el("h3", {}, `Card ${card.index}: ${use(card.used_bytes, card.quota_bytes, card.limit_bytes)}`),
      table(`Memory by kind on card ${card.index}`, ["Kind", "Memory"], rows, "No memory in use."),
    ];
  });
  const advice = why.advice.length ? el("ul", {}, why.advice.map((text) => el("li", {}, text))) : null;
  return el("div", {}, parts, advice);
}
