// The image of a memory: small in a list, whole with what was read in it drawn over it.

import * as api from "./api.js";
import { el, facts, linkTo, shape, time } from "./dom.js";

const altOf = (image) => image.caption ?? "Photo without a caption";

/** An <img> of an image. It is fetched with the token, which an address could not carry. */
function loaded(image, path, more) {
  const made = el("img", { alt: altOf(image), ...more });
  api.picture(path).then((blob) => {
    made.src = URL.createObjectURL(blob);
    made.addEventListener("load", () => URL.revokeObjectURL(made.src), { once: true });
  }, () => made.remove()); // it was deleted, or erased meanwhile
  return made;
}

export const thumbnail = (image) =>
  loaded(image, `${image.id}/thumbnail`, { class: "thumbnail", width: 64, height: 64 });

/** found: as /inspect/memories/{id} answers, of a memory that has an image. */
export function pictureOf(found) {
  const image = found.memory.image;
  const boxes = found.lines.map(({ box }) => shape("polygon", { points: box.join(" ") }));
  const over = shape("svg", { viewBox: `0 0 ${image.width} ${image.height}`, "aria-hidden": "true" });
  over.append(...boxes);
  const rows = found.lines.map((line, i) => {
    const mark = (on) => () => boxes[i].classList.toggle("on", on);
    const row = el("button", { type: "button", class: "quiet", dir: "auto", text: line.text,
      title: `${Math.round(100 * line.confidence)} % sure`, onfocus: mark(true), onblur: mark(false),
      onmouseenter: mark(true), onmouseleave: mark(false) });
    boxes[i].addEventListener("click", () => row.focus());
    return el("li", {}, row);
  });
  const others = found.also.map((row) => el("li", {}, linkTo(row)));
  return el("div", {},
    el("figure", {},
      el("div", { class: "picture" }, loaded(image, image.id, { width: image.width,
        height: image.height }), over),
      image.caption && el("figcaption", { dir: "auto", text: image.caption })),
    el("h3", { text: "What was read in it" }),
    rows.length ? el("ol", { class: "read" }, ...rows) : el("p", { class: "soft", text: UNREAD[image.ocr_state] }),
    facts([
      ["Taken", image.taken_at && time(image.taken_at)],
      ["Place", image.place],
      ["Size", `${image.width} × ${image.height} pixels, ${image.size_bytes.toLocaleString()} bytes`],
      ["SHA-256", el("code", { text: image.id })],
      ["Also of it", others.length ? el("ul", { class: "inline" }, ...others) : null],
    ]));
}

const UNREAD = {
  pending: "It waits to be read.",
  done: "No text was found in it.",
  failed: "It could not be read.",
};
