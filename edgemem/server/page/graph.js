// Who and what is known: the list of names, and one of them with all that is told of it.

import { $, count, day, el, heldBar, linkTo, shape } from "./dom.js";

const DRAWN = 12; // neighbours in the picture; the list has all

const entityLink = (name, more = {}) =>
  el("a", { href: `#/entity/${encodeURIComponent(name)}`, dir: "auto", text: name, ...more });

/** Names as cards that lead to each. */
export function entityList(items) {
  return el("ol", { class: "cards" }, ...items.map((item) =>
    el("li", {},
      el("a", { class: "card", href: `#/entity/${encodeURIComponent(item.name)}` },
        el("span", { class: "said short", dir: "auto", text: item.name }),
        el("span", { class: "meta" },
          el("span", { class: "kind", text: item.type }),
          el("span", { text: count(item.relations, "relation", "relations") }))))));
}

/** Show a name in `#detail`: a picture of what is beside it, and the list with since and until when. */
export function showEntity(name, told, back) {
  $("detail").replaceChildren(
    el("p", {}, el("a", { href: back, text: "Back to the list" })),
    el("h2", { id: "detail-title", tabindex: "-1", dir: "auto", text: name }),
    ...(told.length
      ? [picture(name, told), el("ol", { class: "cards" }, ...rows(told))]
      : [el("p", { class: "soft", text: "Nothing is told of it." })]),
  );
  $("detail").dataset.id = name;
  $("detail").hidden = false;
}

function rows(told) {
  const from = Math.min(...told.map((each) => Date.parse(each.valid_from ?? each.valid_to ?? new Date())));
  return told.map((each) =>
    el("li", { class: each.valid_to ? "panel gone" : "panel" },
      el("p", { class: "inline" }, entityLink(each.source),
        el("span", { class: "kind", text: label(each) }), entityLink(each.destination)),
      el("p", { class: "meta" },
        each.valid_from && el("span", {}, "since ", day(each.valid_from)),
        each.valid_to && el("span", {}, "until ", day(each.valid_to)),
        linkTo({ id: each.memory_id, memory: "the fact" })),
      heldBar(from, each.valid_from, each.valid_to)));
}

const label = (each) => each.relationship.replaceAll("_", " ");

/** The name amid what it has to do with. The list below says the same in words. */
function picture(name, told) {
  const own = name.trim().toLocaleLowerCase();
  const beside = new Map();
  for (const each of told.filter((one) => !one.valid_to)) {
    const other = each.source.toLocaleLowerCase() === own ? each.destination : each.source;
    beside.set(other, [...(beside.get(other) ?? []), label(each)]);
  }
  const drawn = [...beside].slice(0, DRAWN);
  const svg = shape("svg", { viewBox: "-170 -120 340 240", class: "beside", role: "img",
    "aria-label": `${name} and ${count(drawn.length, "neighbour", "neighbours")}` });
  drawn.forEach(([other, labels], i) => {
    const angle = (2 * Math.PI * i) / drawn.length - Math.PI / 2;
    const [x, y] = [115 * Math.cos(angle), 90 * Math.sin(angle)];
    svg.append(
      shape("line", { x1: 0, y1: 0, x2: x, y2: y }),
      shape("text", { x: x * 0.55, y: y * 0.55, class: "label" }, labels[0]),
      shape("circle", { cx: x, cy: y, r: 4 }),
      shape("text", { x, y: y + (y < 0 ? -9 : 16) }, other.length > 18 ? `${other.slice(0, 17)}…` : other),
    );
  });
  svg.append(shape("circle", { cx: 0, cy: 0, r: 7, class: "own" }));
  return svg;
}
