// SPDX-License-Identifier: Apache-2.0
// Requests to the server. The token comes with the address that `gpushare dashboard` prints, after
// the #, which browsers send to no server. It is exchanged for a key, which is kept for this tab: no
// other process accepts it, such as one that listens on the same port later.

const KEY = "gpushare-key";

export async function takeToken() {
  const found = /^#token=([^&]+)/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", "#/overview");
  await setToken(found[1]);
}

export async function setToken(token) {
  const { key } = await (await request("key", {}, token)).json();
  sessionStorage.setItem(KEY, key);
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

async function request(name, parameters, token, signal) {
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

function ask(name, parameters, signal) {
  return request(name, parameters, sessionStorage.getItem(KEY), signal);
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
