// SPDX-License-Identifier: Apache-2.0
// Tables of cards, containers and events, which several pages have.

import { bar, el, table } from "./dom.js";
import { available, percent, size, time, use } from "./format.js";
import { link } from "./state.js";

// What stands for anything that only gpushared knows, while it does not answer.
export const UNKNOWN = "Unknown: gpushared does not answer.";

// `now` is gpushared's answer, and `none` the text of an empty one.
export const noneOf = (now, none) => (now.error ? UNKNOWN : none);

export const nameOf = (tenant) => tenant.name || tenant.id.slice(0, 12);

export function toCard(uuid, text) {
  return el("a", { href: link({ page: "card", id: uuid }), id: `to-${uuid}` }, text);
}

export function toContainer(key, text, place = "") {
  return el("a", { href: link({ page: "container", id: key }), id: `to-${place}${key}` }, text);
}

export function cardTable(cards, now) {
  const headings = ["Card", "Model", "Memory allocated", "Available", "Evicted", "Cores allocated", "Utilization", "Containers", "Mode", "Temperature", "Power", "Health"];
  const rows = cards.map((card) => [
    toCard(card.uuid, String(card.index)),
    card.model,
    bar(card.allocated_bytes / card.memory_bytes, use(card.allocated_bytes, card.memory_bytes)),
    available(card),
    card.evicted_bytes ? size(card.evicted_bytes) : "-",
    bar((100 - card.cores_available) / 100, `${100 - card.cores_available} %`),
    percent(card.utilization),
    `${card.tenants}/${card.max_tenants}`,
    card.mode + (card.cordoned ? ", cordoned" : ""),
    card.sensors.temperature_celsius === undefined ? "-" : `${card.sensors.temperature_celsius} °C`,
    card.sensors.power_milliwatts === undefined ? "-" : `${Math.round(card.sensors.power_milliwatts / 1000)} W`,
    el("span", { class: card.health === "ok" ? "ok" : "bad" }, card.health),
  ]);
  return table("Cards", headings, rows, noneOf(now, "There is no card."));
}

export function evictedState(evicted) {
  const state = evicted.state === "failed" ? "eviction failed" : evicted.state;
  return evicted.waits_since === null ? state : `${state}, waits`;
}

// As RUN_STATES of gpushare/protocol/rows.py; else frozen.
const STATES = { stop: "stopping", operator: "paused", idle: "paused", engine: "paused" };

export function stateOf(tenant) {
  const by = tenant.interventions.map((one) => one.by);
  if (by.length) return STATES[by.find((one) => one in STATES)] ?? "frozen";
  if (tenant.eviction) return evictedState(tenant.eviction);
  if (tenant.idle_since) return "idle";
  return tenant.state === "reserved" ? "reserved" : "running";
}

// As `gpushare ps` prints it: "mps (percentage)" for a client that may not use all multiprocessors.
export const isolationOf = (tenant) => tenant.isolation + (tenant.mps?.percentage < 100 ? " (percentage)" : "");

export function cores(card) {
  const used = card.compute.cores_used["10s"];
  const shown = used === null ? "-" : used.toFixed(1);
  return `${shown}/${card.cores || "-"} %`;
}

export function tenantTable(tenants, now, onlyCard = "") {
  const headings = ["Container", "Card", "Memory used/quota", "Cores used/requested", "Policy", "Throttled", "Isolation", "State"];
  const rows = tenants.flatMap((tenant) =>
    tenant.cards
      .filter((card) => !onlyCard || card.uuid === onlyCard)
      .map((card, place) => [
        place ? nameOf(tenant) : toContainer(tenant.key, nameOf(tenant)),
        String(card.index),
        bar(card.used_bytes / card.quota_bytes, use(card.used_bytes, card.quota_bytes, card.limit_bytes)),
        cores(card),
        card.policy || "-",
        card.compute.throttled["10s"] === null ? "-" : percent(card.compute.throttled["10s"] * 100),
        isolationOf(tenant),
        stateOf(tenant),
      ]),
  );
  return table("Containers", headings, rows, noneOf(now, "No container uses a GPU."));
}

const SKIPPED = new Set(["time", "event", "level"]);

// `events` is null if gpushared did not return them.
export function eventTable(events) {
  const details = (fields) =>
    Object.entries(fields).filter(([key]) => !SKIPPED.has(key)).map(([key, value]) => `${key}=${typeof value === "object" ? JSON.stringify(value) : value}`).join(" ");
  const rows = [...(events ?? [])].reverse().map((event) => [
    time(event.time),
    el("span", { class: event.level === "info" ? "" : "bad" }, event.event),
    event.text,
    event.name || event.card,
    el("small", {}, details(event.fields)),
  ]);
  return table("Events", ["Time", "Event", "Meaning", "Subject", "Details"], rows, events ? "No events in this range." : UNKNOWN);
}
