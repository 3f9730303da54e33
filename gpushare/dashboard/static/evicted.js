// SPDX-License-Identifier: Apache-2.0
// Evicted containers: since when, and how much of whose memory is on a card and in host memory.

import { table } from "./dom.js";
import { size, time } from "./format.js";
import { evictedState, nameOf, noneOf, toContainer } from "./rows.js";

// `onlyCard` is the index of the card that the memory came from; without it, of all.
export function evictedTable(tenants, now, onlyCard = null) {
  const headings = ["Container", "State", "Since", "In host memory", "On its cards", "From card", "Caused by", "Waits since"];
  const rows = tenants
    .filter((one) => one.eviction && (onlyCard === null || one.eviction.from_cards.includes(onlyCard)))
    .map((one) => [
      toContainer(one.key, nameOf(one), "evicted-"),
      evictedState(one.eviction),
      time(one.eviction.since),
      size(hostBytes(one)),
      size(one.cards.reduce((sum, card) => sum + card.used_bytes, 0)),
      one.eviction.from_cards.join(", "),
      causeOf(one.eviction),
      one.eviction.waits_since === null ? "-" : time(one.eviction.waits_since),
    ]);
  return table("Evicted containers", headings, rows, noneOf(now, "No container is evicted."));
}

// The facts of a container that is evicted.
export function evictedFacts(tenant) {
  const evicted = tenant.eviction;
  if (!evicted) return [];
  return [
    ["In this state since", time(evicted.since)],
    ["In host memory", size(hostBytes(tenant))],
    ["Evicted from card", evicted.from_cards.join(", ")],
    ["Evicted by", causeOf(evicted)],
    ["Restored by", evicted.held ? "gpushare restore only" : "its next CUDA call"],
    ["Waits for its restore since", evicted.waits_since === null ? "" : time(evicted.waits_since)],
    ["Eviction failed", evicted.error],
  ];
}

// On the way, and after a failure, the memory counts on the cards.
const hostBytes = (tenant) => (tenant.eviction.state === "evicted" ? tenant.eviction.bytes : 0);

const causeOf = (evicted) => evicted.cause + (evicted.reason ? `: ${evicted.reason}` : "");
