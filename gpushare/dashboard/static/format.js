// SPDX-License-Identifier: Apache-2.0
// Values as people read them; sizes exactly as `gpushare ls` and `ps` print them.

const UNITS = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

function unitOf(size) {
  return UNITS.find(([least]) => size >= least) ?? [1, "B"];
}

function tenths(size, unit) {
  const found = Math.floor((size * 10) / unit);
  return `${Math.floor(found / 10)}.${found % 10}`;
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "-";
  const [unit, name] = unitOf(bytes);
  const found = Math.floor((bytes * 10) / unit);
  if (found >= 100 || found % 10 === 0) return `${Math.floor(found / 10)} ${name}`;
  return `${tenths(bytes, unit)} ${name}`;
}

// As `gpushare ls` prints it: "-" for a card on which no new container is placed.
export function available(card, text = size(card.available_bytes)) {
  return card.cordoned || card.health !== "ok" ? "-" : text;
}

export function use(used, quota, limit = 0) {
  const [unit, name] = unitOf(quota);
  const burst = limit > quota ? `+${tenths(limit - quota, unit)}` : "";
  return `${tenths(used, unit)}/${tenths(quota, unit)}${burst} ${name}`;
}

export function percent(value, digits = 0) {
  return value === null || value === undefined ? "-" : `${value.toFixed(digits)} %`;
}

export function number(value) {
  if (value === null || value === undefined) return "-";
  return Math.abs(value) >= 100 ? value.toFixed(0) : String(Math.round(value * 100) / 100);
}

const SHOWN = {
  percent: (value) => percent(value, 1),
  bytes: size,
  watts: (value) => `${number(value)} W`,
  celsius: (value) => `${number(value)} °C`,
  MHz: (value) => `${number(value)} MHz`,
  seconds: (value) => `${number(value)} s`,
};

export function figure(value, unit) {
  if (value === null || value === undefined) return "-";
  return (SHOWN[unit] ?? number)(value);
}

const two = (value) => String(value).padStart(2, "0");

export function time(seconds) {
  const at = new Date(seconds * 1000);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}
