// Elements, times and counts. Text goes in as textContent only, so none of it is ever markup.

export const $ = (id) => document.getElementById(id);

/** An element. given: `text`, `class`, `on<event>`, or attributes; null and false leave one out. */
export function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter(Boolean));
  return made;
}

/** An element of an SVG. given: attributes. */
export function shape(tag, given, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

/** What somebody wrote: in its own direction, its line breaks kept. */
export const said = (text, more = {}) => el("p", { class: "said", dir: "auto", text, ...more });

/** What a person is told, as nodes: a capital first, a full stop last, and what is in backticks as code. */
export function sentence(text) {
  const begun = text.replace(/^[a-z](?=[a-z]* )/, (letter) => letter.toUpperCase());
  const whole = begun.replace(/[^.?!…:]$/, "$&.");
  return whole.split("`").map((part, i) => (i % 2 ? el("code", { text: part }) : part));
}

const DAY = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
const MINUTE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const MONTH = new Intl.DateTimeFormat(undefined, { month: "long", year: "numeric" });

/** Stored text of a time, in this machine's zone. */
export const time = (iso, format = MINUTE) =>
  el("time", { datetime: iso, text: format.format(new Date(iso)) });
export const day = (iso) => time(iso, DAY);
export const month = (iso) => MONTH.format(new Date(iso));

export const count = (n, one, many) => `${n.toLocaleString()} ${n === 1 ? one : many}`;

export const KINDS = { fact: "Fact", turn: "Said", summary: "Summary", image: "Image" };

/** Rows of a <dl>; those without a value are left out. */
export function facts(rows) {
  const list = el("dl");
  for (const [name, value] of rows) {
    if (value === null || value === undefined || value === "") continue;
    const shown = value instanceof Node ? el("dd", {}, value) : el("dd", { dir: "auto", text: value });
    list.append(el("div", {}, el("dt", { text: name }), shown));
  }
  return list;
}

/** A bar for when something held, drawn over the time from `from` (in milliseconds) until now. */
export function heldBar(from, since, until) {
  const span = Math.max(1, Date.now() - from);
  const share = (iso) => Math.min(100, Math.max(0, (100 * (Date.parse(iso) - from)) / span));
  const left = Math.min(98, since ? share(since) : 0);
  const bar = el("span");
  bar.style.left = `${left}%`;
  bar.style.width = `${Math.max(2, (until ? share(until) : 100) - left)}%`;
  return el("span", { class: "held", "aria-hidden": "true" }, bar);
}

export const linkTo = ({ id, memory }) =>
  el("a", { href: `#/memory/${encodeURIComponent(id)}`, dir: "auto", text: memory });

/** What has become of a memory, in a word; null if it is valid now. */
export function stateOf(item) {
  const now = new Date().toISOString();
  if (item.deleted_at) return "deleted";
  if (item.valid_to && toUtc(item.valid_to) <= now) {
    return item.replaced_by?.length ? "superseded" : "over";
  }
  if (item.expires_at && toUtc(item.expires_at) <= now) return "expired";
  return null;
}

const toUtc = (iso) => new Date(iso).toISOString();
