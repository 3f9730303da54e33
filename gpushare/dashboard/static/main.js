// SPDX-License-Identifier: Apache-2.0
// Shows the page that the address names, and asks for its figures again and again.

import { get, Refused, setToken, takeToken } from "./api.js";
import { card } from "./card.js";
import { container } from "./container.js";
import { el, fill } from "./dom.js";
import { time } from "./format.js";
import { overview } from "./overview.js";
import { reports } from "./reports.js";
import { change, link, range, read } from "./state.js";
import { setOptions, toolbar } from "./toolbar.js";

const PAGES = { overview, card, container, reports };
const main = document.getElementById("main");
const message = document.getElementById("message");
let page = null; // what is shown: { key, update(context), graphs }
let timer = 0;
let running = null;

function say(error) {
  message.hidden = !error;
  if (!error) return;
  if (error instanceof Refused && error.status === 401) {
    if (message.querySelector("form")) return;
    const input = el("input", { id: "token", type: "password", autocomplete: "off", required: true });
    const form = el("form", {}, el("label", { for: "token" }, "Token "), input, el("button", {}, "Open"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      setToken(input.value.trim()).catch(say).finally(show);
    });
    message.replaceChildren(`${error.message}. `, form);
    return;
  }
  message.textContent = error.message;
}

async function show() {
  clearTimeout(timer);
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  const state = read();
  const asked = range(state);
  for (const each of document.querySelectorAll("nav a")) {
    each.href = link({ page: each.dataset.page, id: "" });
    const isHere = each.dataset.page === state.page;
    if (isHere) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  toolbar(state, show);
  try {
    const [now, subjects] = await Promise.all([
      get("now", {}, signal),
      get("subjects", asked, signal).catch((error) => {
        if (error instanceof Refused && error.status !== 401) return { cards: [], containers: [], error: error.message };
        throw error;
      }),
    ]);
    setOptions(state, now, subjects);
    const make = PAGES[state.page] ?? overview;
    const key = JSON.stringify([state.page, state.id ?? ""]);
    if (page?.key !== key) {
      page = { key, graphs: [], ...make(state) };
      fill(main, page.node);
    }
    const problems = [now.error, subjects.error].filter(Boolean);
    say(problems.length ? new Error(problems.join(" ")) : null);
    document.getElementById("node").textContent = now.node?.node_name ?? "";
    document.title = `gpushare: ${state.page}`;
    await page.update({ state, now, subjects, range: asked, signal });
    document.getElementById("updated").textContent = `Updated ${time(Date.now() / 1000).slice(11)}`;
    main.dataset.shown = String(Number(main.dataset.shown ?? 0) + 1);
  } catch (error) {
    if (error.name === "AbortError") return;
    say(error);
  }
  if (signal.aborted) return;
  const seconds = Number(state.refresh);
  if (seconds > 0) timer = setTimeout(again, seconds * 1000);
}

// A graph that is being dragged over is left alone: its selection would go with it.
function again() {
  if (document.hidden) return;
  if (main.querySelector(".plot:active")) timer = setTimeout(again, 500);
  else show();
}

function start() {
  takeToken().catch(say).finally(show);
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", start);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && Number(read().refresh) > 0) show();
});
addEventListener("gpushare-theme", () => page?.graphs.forEach((graph) => graph.restyle()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("gpushare-theme")));
if (!location.hash) change({});
start();
