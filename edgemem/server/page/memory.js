// One memory with all that belongs to it, and the dialogs that change or forget it.

import * as api from "./api.js";
import { $, KINDS, count, el, facts, linkTo, said, sentence, stateOf, time } from "./dom.js";
import { turnList } from "./lists.js";
import { pictureOf } from "./picture.js";

const EVENTS = { ADD: "added", UPDATE: "changed", DELETE: "ended" };

/**
 * Show a memory in `#detail`. found: as /inspect/memories/{id} answers. back: the address of the
 * list. done: called after a change with what to tell, and whether the memory is there no more.
 */
export function showMemory(found, back, done) {
  const item = found.memory;
  const ties = (rows) => rows.length && el("ul", { class: "inline" }, ...rows.map((row) =>
    el("li", {}, linkTo(row))));
  $("detail").replaceChildren(
    el("p", {}, el("a", { href: back, text: "Back to the list" })),
    el("h2", { id: "detail-title", tabindex: "-1", text: KINDS[item.kind] ?? item.kind }),
    said(item.memory, { class: "said whole" }),
    el("div", { class: "actions" }, ...actions(item, done)),
    facts([
      ["State", stateOf(item) ?? "valid now"],
      ["Valid from", item.valid_from && time(item.valid_from)],
      ["Valid until", item.valid_to && time(item.valid_to)],
      ["Expires", item.expires_at && time(item.expires_at)],
      ["Deleted", item.deleted_at && time(item.deleted_at)],
      ["Superseded by", ties(item.replaced_by) || null],
      ["Supersedes", ties(item.replaces) || null],
      ["User", item.user_id],
      ["Agent", item.agent_id],
      ["Run", item.run_id],
      ["Stored", time(item.created_at)],
      ["Metadata", metadata(item.metadata)],
      ["Id", el("code", { text: item.id })],
    ]),
    ...(item.image ? [pictureOf(found)] : []),
    el("h3", { text: "What it was taken from" }),
    found.turns.length
      ? turnList(found.turns)
      : el("p", { class: "soft", text: "No turn: it came from elsewhere." }),
    el("h3", { text: "History" }),
    history(found.history),
  );
  $("detail").dataset.id = item.id;
  $("detail").hidden = false;
}

function metadata(given) {
  const rows = Object.entries(given).map(([name, value]) =>
    `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`);
  return rows.length ? said(rows.join("\n")) : null;
}

function history(rows) {
  return el("ol", { class: "turns" }, ...rows.map((row) =>
    el("li", {},
      el("p", { class: "meta" },
        el("span", { text: row.is_deleted ? "deleted" : (EVENTS[row.event] ?? row.event) }),
        time(row.updated_at ?? row.created_at)),
      row.event === "UPDATE" && el("del", { dir: "auto", text: row.old_memory }),
      row.new_memory !== null && said(row.new_memory))));
}

function actions(item, done) {
  const button = (text, onclick, more = "") =>
    el("button", { type: "button", class: more, text, onclick });
  const erase = button("Erase for good…", () => eraseForGood(item, done), "danger");
  if (item.deleted_at) return [erase];
  return [
    button("Edit…", () => edit(item, done)),
    button("Delete…", () => forget(item, done)),
    erase,
  ];
}

// -- dialogs ---------------------------------------------------------------------------------------

/**
 * Open the dialog. act: does the work on `go`; what it refuses is told in the dialog, and waits.
 * unsaved: whether something would be lost by leaving, which is asked first.
 */
function open(title, parts, go, act, { danger = false, first = null, unsaved = () => false } = {}) {
  const dialog = $("dialog");
  const leave = () => {
    if (!unsaved() || confirm("Leave without saving the change?")) dialog.close();
  };
  // A second Escape closes a dialog without `cancel`, so the key is taken itself.
  dialog.onkeydown = (event) => {
    if (event.key !== "Escape" || event.isComposing) return;
    event.preventDefault();
    leave();
  };
  dialog.oncancel = (event) => {
    event.preventDefault();
    leave();
  };
  const problem = el("p", { class: "problem", role: "alert" });
  const yes = el("button", { class: danger ? "danger main" : "main", text: go });
  const no = el("button", { type: "button", text: "Cancel", onclick: leave });
  const form = el(
    "form",
    {},
    el("h2", { id: "dialog-title", text: title }),
    ...parts,
    problem,
    el("div", { class: "actions" }, no, yes),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    problem.textContent = "";
    yes.disabled = true;
    try {
      await act();
    } catch (error) {
      problem.replaceChildren(...sentence(error.message));
      yes.disabled = false;
    }
  });
  dialog.replaceChildren(form);
  dialog.showModal();
  (first ?? no).focus();
  return dialog;
}

function edit(item, done) {
  const text = el("textarea", { id: "new-text", rows: "5", required: true, dir: "auto" });
  text.value = item.memory;
  const dialog = open(
    "Edit the memory",
    [el("label", { for: "new-text", text: "Text" }), text,
      el("p", { class: "soft", text: "The old text stays in its history." })],
    "Save",
    async () => {
      await api.update(item.id, text.value);
      dialog.close();
      done("Saved.", false);
    },
    { first: text, unsaved: () => text.value !== item.memory },
  );
}

/** What a dialog needs to know; undefined once its refusal was told. */
async function asked(ask, done) {
  try {
    return await ask();
  } catch (error) {
    done(error.message, error.status === 404);
    return undefined;
  }
}

async function forget(item, done) {
  const found = await asked(() => api.memory(item.id), done); // facts may have been taken meanwhile
  if (!found) return;
  const { alone } = found;
  const dialog = open(
    "Delete the memory?",
    [said(item.memory), el("p", { class: "soft", text:
      "It answers nothing any more. Its text and its history stay in the store: to be rid of " +
      "them, erase it for good." }),
      alone.length > 0 && el("p", { text: count(alone.length,
        "fact was taken from it alone, and goes too:", "facts were taken from it alone, and go too:") }),
      alone.length > 0 && el("ul", {}, ...alone.map((row) => el("li", { dir: "auto", text: row.memory })))],
    "Delete",
    async () => {
      await api.remove(item.id);
      dialog.close();
      const too = alone.length > 0 &&
        `, with ${count(alone.length, "fact that was", "facts that were")} taken from it alone`;
      done(`Deleted${too || ""}.`, false);
    },
  );
}

async function eraseForGood(item, done) {
  const found = await asked(() => api.erasePreview(item.id), done);
  if (!found) return;
  const memories = count(found.memories.length, "memory", "memories");
  const turns = count(found.turns.length, "turn", "turns");
  const dialog = open(
    "Erase it for good?",
    [el("p", { text: `This takes away ${memories} and ${turns}, and their history. ` +
        "It cannot be undone: all that came from the same words goes, and what a chat asked and " +
        "answered, which may repeat them." +
        (found.memories.some((row) => row.image)
          ? " An image goes with its thumbnail and what was read in it, unless another memory is of it."
          : "") }),
      el("div", { class: "extent", tabindex: "0", role: "group", "aria-label": "What would go" },
        el("h3", { text: memories }),
        el("ul", {}, ...found.memories.map((row) => el("li", { dir: "auto", text: row.memory }))),
        el("h3", { text: turns }),
        turnList(found.turns))],
    "Erase for good",
    async () => {
      const gone = await api.erase(item.id);
      dialog.close();
      done(`Erased ${count(gone.results.length, "memory", "memories")}.`, true);
    },
    { danger: true },
  );
}
