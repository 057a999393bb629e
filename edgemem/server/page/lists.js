// The lists: memories, the timeline, what waits, what was sent. Each function gives one element.

import { thumbnail } from "./picture.js";
import { KINDS, count, day, el, facts, heldBar, linkTo, month, said, stateOf, time } from "./dom.js";

// What each part of a score is of; the names are those of `edgemem search --explain`.
const PARTS = {
  base: "what every memory has",
  similarity: "its meaning",
  similarity_before: "the meaning of the turn before it",
  bm25: "its words",
  bm25_around: "the words of the turns beside it",
  coverage: "how much of the query it and they cover",
  session: "the best words of its session",
  length: "its length",
  time: "it says when, and that was asked",
  speaker: "who said it, and who was asked about",
  question: "it only asks",
  among: "how many memories there are",
  match: "its words, each beside the nearest of the query",
  match_around: "the same of it and the turns beside it",
  match_before: "the same of the turn before it alone",
  match_after: "the same of the turn after it alone",
};

const SHOWN = 0.0005; // a part that three digits can show

const number = (value) => value.toFixed(3).replace("-", "\u2212");

/** Memories as cards that lead to each; with the score and its parts where they were searched. */
export function cards(items) {
  return el("ol", { class: "cards" }, ...items.map(card));
}

/** Whether a score, a probability, is more than that of what has nothing to do with the query. */
export const fits = (item) => item.score >= 0.005;

/** What a search gave, the best first, and apart what hardly fits. */
export function hits(items) {
  const far = items.filter((item) => !fits(item));
  return el("div", { class: "hits" },
    far.length < items.length && cards(items.filter(fits)),
    far.length > 0 && el("h2", { text: "Hardly fits" }),
    far.length > 0 && cards(far));
}

function card(item) {
  const state = stateOf(item);
  const about = el(
    "span",
    { class: "meta" },
    el("span", { class: `kind ${item.kind}`, text: KINDS[item.kind] ?? item.kind }),
    state && el("span", { class: "state", text: state }),
    day(item.valid_from ?? item.created_at),
    el("span", { dir: "auto", text: item.user_id ?? item.agent_id ?? item.run_id ?? "" }),
    item.score !== undefined &&
      el("span", { class: "score", title: "score" }, el("span", { class: "hidden", text: "score " }),
        el("span", { text: number(item.score) })),
  );
  const text = el("span", { class: "said short", dir: "auto", text: item.memory });
  const line = item.line && el("span", { class: "soft", dir: "auto", text: `In it: “${item.line.text}”` });
  const link = el("a", { class: "card", href: `#/memory/${encodeURIComponent(item.id)}` },
    item.image && thumbnail(item.image), text, line, about);
  return el("li", {}, link, item.parts && whyThisScore(item));
}

function whyThisScore(item) {
  const all = Object.entries(item.parts).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  const rows = all.filter(([, value]) => Math.abs(value) >= SHOWN);
  const left = all.slice(rows.length);
  if (left.length) {
    rows.push([`${left.length} others`, left.reduce((sum, [, value]) => sum + value, 0)]);
  }
  const most = Math.max(...rows.map(([, value]) => Math.abs(value))) || 1;
  const table = el(
    "table",
    {},
    el("caption", { text: `Parts that add up to ${number(item.score)}` }),
    el("thead", {}, el("tr", {}, ...["part", "of", "value", ""].map((text) =>
      text ? el("th", { scope: "col", text }) : el("td", { "aria-hidden": "true" })))),
    el("tbody", {}, ...rows.map(([name, value]) => partRow(name, value, most))),
  );
  return el("details", {}, el("summary", { text: "Why this score" }), table);
}

function partRow(name, value, most) {
  const bar = el("span", { class: value < 0 ? "bar less" : "bar" });
  bar.style.width = `${(100 * Math.abs(value)) / most}%`;
  return el(
    "tr",
    {},
    el("th", { scope: "row", text: name }),
    el("td", { class: "soft", text: PARTS[name] ?? "" }),
    el("td", { class: "number", text: number(value) }),
    el("td", { class: "bars", "aria-hidden": "true" }, bar),
  );
}

/** Memories by month, each with the time in which it held, drawn over the time of all. */
export function timeline(items) {
  const start = (item) => item.valid_from ?? item.created_at;
  const from = Math.min(...items.map((item) => Date.parse(start(item))));
  const held = (item) =>
    heldBar(from, start(item), item.valid_to ?? item.expires_at ?? item.deleted_at);
  const entry = (item) =>
    el(
      "li",
      { class: stateOf(item) ? "gone" : null },
      el("a", { class: "card", href: `#/memory/${encodeURIComponent(item.id)}` },
        el("span", { class: "said short", dir: "auto", text: item.memory }), validity(item), held(item)),
      item.replaced_by?.length > 0 &&
        el("p", { class: "ties" }, el("span", { class: "soft", text: "superseded by " }),
          linkTo(item.replaced_by[0])),
    );
  const months = new Map();
  for (const item of items) {
    const name = month(start(item));
    months.set(name, [...(months.get(name) ?? []), item]);
  }
  return el("div", { class: "timeline" }, ...[...months].flatMap(([name, within]) => [
    el("h2", { text: name }), el("ol", { class: "cards" }, ...within.map(entry)),
  ]));
}

function validity(item) {
  const line = el("span", { class: "meta" });
  const state = stateOf(item);
  if (state) line.append(el("span", { class: "state", text: state }));
  line.append(el("span", {}, el("span", { text: "from " }), day(item.valid_from ?? item.created_at)));
  if (item.valid_to) line.append(el("span", {}, el("span", { text: "until " }), day(item.valid_to)));
  if (item.expires_at) {
    line.append(el("span", {}, el("span", { text: "expires " }), day(item.expires_at)));
  }
  return line;
}

/** Turns that were said, each with who said it and when. */
export function turnList(turns) {
  return el("ol", { class: "turns" }, ...turns.map((turn) =>
    el("li", {},
      el("p", { class: "meta" }, el("span", { dir: "auto", text: turn.name ?? turn.role }),
        time(turn.timestamp)),
      said(turn.content))));
}

/** Work that was left for later. */
export function waiting(pieces) {
  return el("ol", { class: "cards" }, ...pieces.map((piece) =>
    el("li", { class: "panel" },
      turnList(piece.turns),
      facts([
        ["Since", time(piece.created_at)],
        ["Tries", String(piece.attempts)],
        ["Next", piece.next_try_at && time(piece.next_try_at)],
        ["Last error", piece.error],
      ]))));
}

/** Receipts of what the cloud was asked. They hold no text. */
export function sent(rows) {
  return el("ol", { class: "cards" }, ...rows.map((row) =>
    el("li", { class: "panel" },
      el("p", { class: "meta" },
        el("span", { class: row.outcome === "answered" ? null : "state", text: row.outcome }),
        time(row.created_at)),
      el("h2", { text: row.model }),
      facts([
        ["Service", row.endpoint],
        ["User", row.user_id ?? row.agent_id ?? row.run_id],
        ["Context", `${row.tokens_before} tokens, ${row.tokens_after} after compression`],
        ["Sent", count(row.sent_bytes, "byte", "bytes")],
        ["Cost", row.cost === null ? "no price known" : String(row.cost)],
        ["Took", row.seconds === null ? null : `${row.seconds.toFixed(1)} s`],
        ["SHA-256", el("code", { text: row.sent_sha256 ?? "erased" })],
        ["Memories", memoryLinks(row.memory_ids)],
      ]))));
}

function memoryLinks(ids) {
  if (ids.length === 0) return "none";
  const links = ids.map((id, i) => el("li", {}, linkTo({ id, memory: `memory ${i + 1}` })));
  return el("ul", { class: "inline" }, ...links);
}
