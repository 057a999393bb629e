// The page: which view is shown, what is asked for it, and who may look. The address after `#/` says
// what is shown; what is searched for is in no address and no history.

import * as api from "./api.js";
import { $, count, el, sentence } from "./dom.js";
import { cards, fits, hits, sent, timeline, waiting } from "./lists.js";
import { entityList, showEntity } from "./graph.js";
import { showMemory } from "./memory.js";

const OWNERS = ["user_id", "agent_id", "run_id"];
const PAGE = 50;
const FOUND = 20;
const VIEWS = {
  memories: { title: "Memories", about: "" },
  timeline: { title: "Timeline", about: "When each memory held, the latest first." },
  graph: { title: "Graph", about: "Who and what is known, in most relations first." },
  pending: { title: "Pending", about: "What was said and is stored, but no facts are taken from it yet." },
  cloud: { title: "Cloud", about: "" },
};

let view = null; // the list that is shown
let shown = []; // its memories
let next = ""; // where those begin that are not shown yet
let listed = 0; // these two count what was asked, so that a late answer is not shown over a newer
let opened = 0;
let known = null; // the overview: how much there is, whose, and the cloud

// -- who may look ----------------------------------------------------------------------------------

function showDoor(message) {
  api.dropToken();
  listed += 1;
  opened += 1;
  view = known = null;
  shown = [];
  if ($("dialog").open) $("dialog").close();
  for (const id of ["rows", "detail", "dialog", "about", ...OWNERS]) $(id).replaceChildren();
  delete $("detail").dataset.id;
  $("query").value = "";
  for (const id of ["room", "top"]) $(id).hidden = true;
  $("door").hidden = false;
  document.title = "edgemem";
  tell({ status: "", problem: message });
  $("token").value = "";
  $("token").focus();
}

async function enter() {
  if (!(await takeOverview())) return;
  $("door").hidden = true;
  for (const id of ["room", "top"]) $(id).hidden = false;
  await route();
}

/** Ask for the overview; whether it was given. */
async function takeOverview() {
  const found = await attempt(api.overview);
  if (!found || !api.hasToken()) return false; // locked meanwhile
  known = found;
  for (const name of OWNERS) fillOwners(name, found.owners[name]);
  return true;
}

function fillOwners(name, owners) {
  const select = $(name);
  const before = select.value;
  const everyone = el("option", { value: "", text: name === "user_id" ? "everyone" : "all" });
  select.replaceChildren(everyone, ...owners.map(({ id, memories }) =>
    el("option", { value: id, text: `${id} (${memories.toLocaleString()})` })));
  if (owners.some(({ id }) => id === before)) select.value = before;
  select.parentElement.hidden = owners.length === 0;
}

/** What a call gives, or undefined once its refusal was told. */
async function attempt(ask) {
  try {
    return await ask();
  } catch (error) {
    if (!(error instanceof api.Refused)) throw error;
    if (error.status === 401) {
      showDoor("The server refused this token. `edgemem serve --show-token` prints the right one.");
    } else {
      tell({ status: "", problem: error.message });
    }
    return undefined;
  }
}

/** status: of the list. problem: what was refused. done: what was changed. */
function tell({ status, problem = "", done = "" }) {
  if (status !== undefined) $("status").replaceChildren(...sentence(status));
  $("problem").replaceChildren(...sentence(problem));
  $("told").replaceChildren(...sentence(done));
}

// -- the lists -------------------------------------------------------------------------------------

function showList(name, focus) {
  view = name;
  shown = [];
  const { title, about } = VIEWS[name];
  $("list-title").textContent = title;
  document.title = `${title} – edgemem`;
  $("about").textContent = about;
  if (name === "cloud") {
    $("about").textContent = (known.cloud ? `Set up: ${known.cloud}.` : "No cloud is set up: nothing is sent.") +
      " A receipt holds no text, only which memories went, how much, and the hash of what was sent.";
  }
  $("ask").hidden = !["memories", "timeline", "graph"].includes(name);
  for (const id of ["kind", "state"]) $(id).parentElement.hidden = name === "graph";
  $("searching").hidden = name !== "memories";
  $("state").value = name === "timeline" ? "all" : "live";
  $("kind").value = name === "timeline" && known.counts.facts ? "fact" : "";
  $("rows").replaceChildren();
  $("more").hidden = true;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (focus) $("list-title").focus();
  return load();
}

/** Ask for the list that is shown; from: how many of it are there already. */
async function load(from = 0) {
  const turn = (listed += 1);
  const query = view === "memories" ? $("query").value.trim() : "";
  $("state").disabled = query !== "";
  tell({ status: query ? "Searching …" : "Loading …" });
  const ask = { pending: api.pending, cloud: api.receipts, graph: () => api.entities(owners()) }[view] ??
    (query ? () => searched(query, from) : () => browsed(from));
  const found = await attempt(ask);
  if (!found || turn !== listed) return;
  shown = found.results;
  next = found.next;
  $("more").hidden = !found.more || view === "graph";
  const draw = { timeline, graph: entityList, pending: waiting, cloud: sent }[view] ?? (query ? hits : cards);
  $("rows").replaceChildren(...(shown.length ? [draw(shown)] : []));
  markCurrent();
  tell({ status: summary(query, found) });
  if (from) $("rows").querySelectorAll("a.card")[from]?.focus();
}

const owners = () =>
  Object.fromEntries(OWNERS.map((name) => [name, $(name).value]).filter(([, id]) => id));

/** What is shown, and the page after it. */
async function browsed(from) {
  const page = { kind: $("kind").value, state: $("state").value, limit: PAGE, after: from ? next : "" };
  const found = await api.browse({ ...owners(), ...page });
  const results = [...shown.slice(0, from), ...found.results];
  return { results, next: found.next, more: found.next !== null };
}

/** The best, more than are shown. One more than that tells whether there are more. */
async function searched(query, from) {
  const to = from + FOUND;
  const { results } = await api.search(searchOf(query, to + 1));
  return { results: results.slice(0, to), more: results.length > to };
}

function searchOf(query, top_k) {
  const given = { ...owners(), query, top_k };
  const everybody = !OWNERS.some((name) => given[name]);
  const kinds = [...$("kind").options].map((option) => option.value).filter(Boolean);
  if ($("kind").value) given.filters = { kind: $("kind").value };
  else if (everybody) given.filters = { kind: { in: kinds } }; // the route wants a scope or filters
  return given;
}

function summary(query, found) {
  if (view === "pending") return count(found.total, "piece of work waits.", "pieces of work wait.");
  if (view === "graph") return shown.length ? `${count(shown.length, "name", "names")}${found.more ? ", and more" : ""}.` : "Nothing is known of anybody.";
  if (view === "cloud") return shown.length ? count(shown.length, "call.", "calls.") : "Nothing was ever sent.";
  if (query) return summaryOfSearch(found.more);
  if (!shown.length) return nothing();
  return `${count(shown.length, "memory", "memories")}${found.more ? ", and more" : ""}, the latest first.`;
}

function summaryOfSearch(more) {
  if (!shown.length) return "Nothing found.";
  const fitting = shown.filter(fits).length;
  if (!fitting) return "Nothing found that fits. These come nearest.";
  if (more && fitting === shown.length) return `The ${fitting} best found, best first.`;
  return `${count(fitting, "memory", "memories")} found, best first.`;
}

function nothing() {
  const { memories, invalid, deleted } = known.counts;
  return memories + invalid + deleted
    ? "No memories are as chosen above."
    : "No memories yet. `edgemem add TEXT` stores one, and `edgemem chat` what you tell it.";
}

// -- one memory ------------------------------------------------------------------------------------

const openMemory = (id) =>
  openDetail("Memory", () => api.memory(id), (found) =>
    showMemory(found, `#/${view}`, (message, gone) => changed(id, message, gone)));

const openEntity = (name) =>
  openDetail(name, () => api.relations({ ...owners(), entity: name }), (found) =>
    showEntity(name, found.relations, `#/${view}`));

/** Open one memory or name beside the list. ask: gives it; show: draws what was given. */
async function openDetail(title, ask, show) {
  const turn = (opened += 1);
  const found = await attempt(ask);
  if (turn !== opened) return;
  if (!found) { // what was open is not what the address says
    closeMemory();
    document.title = `${VIEWS[view].title} – edgemem`;
    markCurrent();
    if (document.activeElement === document.body) $("list-title").focus();
    return;
  }
  tell({});
  show(found);
  $("room").classList.add("split");
  document.title = `${title} – edgemem`;
  markCurrent();
  $("detail-title").focus();
}

function closeMemory() {
  opened += 1;
  $("room").classList.remove("split");
  $("detail").hidden = true;
  $("detail").replaceChildren();
}

function markCurrent() {
  for (const link of $("rows").querySelectorAll("a.card")) {
    if (link.hash === location.hash) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

/** After a memory was edited, deleted or erased. */
async function changed(id, message, gone) {
  if (gone) {
    location.hash = `#/${view}`; // which closes it
    closeMemory();
  } else {
    await openMemory(id);
  }
  if (!(await takeOverview())) return;
  await load();
  if (gone) $("list-title").focus();
  tell({ done: message });
}

// -- the address -----------------------------------------------------------------------------------

async function route() {
  const [, name, given] = location.hash.split("/");
  const id = given && decoded(given);
  if (name === "memory" && id) {
    if (view === null) await showList("memories", false);
    return openMemory(id);
  }
  if (name === "entity" && id) {
    if (view === null) await showList("graph", false);
    return openEntity(id);
  }
  const wanted = VIEWS[name] ? name : "memories";
  const left = `#/${view === "graph" ? "entity" : "memory"}/${encodeURIComponent($("detail").dataset.id)}`;
  closeMemory();
  if (wanted !== view) return showList(wanted, view !== null);
  document.title = `${VIEWS[view].title} – edgemem`;
  markCurrent();
  const card = [...$("rows").querySelectorAll("a.card")].find((link) => link.hash === left);
  (card ?? $("list-title")).focus();
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // such as a lone %
  }
}

window.addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) start();
  else if (!$("room").hidden) route();
});
$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("main").focus();
});
$("unlock").addEventListener("submit", async (event) => {
  event.preventDefault();
  tell({ status: "" }); // so that a second refusal is heard as well
  api.keepToken($("token").value.trim());
  await enter();
  if (document.activeElement === document.body) $("list-title").focus();
});
$("lock").addEventListener("click", () => {
  history.replaceState(null, "", location.pathname); // the address may hold a name
  showDoor("");
});
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  load();
});
$("filters").addEventListener("change", () => load());
$("query").addEventListener("input", () => {
  if ($("query").value === "") load();
});
$("more").addEventListener("click", () => load(shown.length));

function start() {
  api.takeTokenFromAddress();
  if (api.hasToken()) enter();
  else showDoor("");
}

start();
