// SPDX-License-Identifier: Apache-2.0
// Requests to the server. The token comes with the address that `gpushare dashboard` prints, after
// the #, which browsers send to no server; it is kept for this origin only.

const KEY = "gpushare-token";

export function takeToken() {
  const found = /^#token=([^&]+)/.exec(location.hash);
  if (!found) return;
  localStorage.setItem(KEY, found[1]);
  history.replaceState(null, "", "#/overview");
}

export function setToken(text) {
  localStorage.setItem(KEY, text);
}

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

function address(name, parameters) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters))
    for (const each of [value].flat()) query.append(key, each);
  return `api/${name}?${query}`;
}

async function ask(name, parameters, signal) {
  const token = localStorage.getItem(KEY);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let answer;
  try {
    answer = await fetch(address(name, parameters), { headers, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "gpushare dashboard does not answer");
  }
  if (answer.ok) return answer;
  const text = await answer.json().then((found) => found.error, () => answer.statusText);
  throw new Refused(answer.status, text);
}

export async function get(name, parameters = {}, signal = undefined) {
  return (await ask(name, parameters, signal)).json();
}

// A browser sends no token with a link, so the file comes through here.
export async function download(name, parameters, file) {
  const content = await (await ask(name, parameters)).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = file;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
