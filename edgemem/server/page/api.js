// The server's routes. Knows the token, which lives in this tab's sessionStorage; knows no page.

const KEY = "edgemem-token";

/** An answer that is an error. status: HTTP's, or 0 if the server did not answer. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Take the token out of the address, where a reader's neighbour or the history could see it. */
export function takeTokenFromAddress() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (found) {
    history.replaceState(null, "", location.pathname + location.search);
    keepToken(found[1]);
  }
}

export function hasToken() {
  return sessionStorage.getItem(KEY) !== null;
}

export function keepToken(token) {
  sessionStorage.setItem(KEY, token);
}

export function dropToken() {
  sessionStorage.removeItem(KEY);
}

async function ask(method, path, body) {
  const token = sessionStorage.getItem(KEY) ?? "";
  // A header cannot carry other characters, so no token has them.
  if (!/^[\x21-\x7e]+$/.test(token)) {
    throw new Refused(401, "no token has such characters");
  }
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
  } catch {
    throw new Refused(0, "The server does not answer. Is `edgemem serve` still running?");
  }
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    throw new Refused(response.status, told.detail ?? `The server refused this (${response.status}).`);
  }
  return response;
}

const call = async (...given) => (await ask(...given)).json().catch(() => ({}));

const at = (id) => `memories/${encodeURIComponent(id)}`;

export const overview = () => call("GET", "inspect/overview");
export const browse = (given) => call("GET", `inspect/memories?${new URLSearchParams(given)}`);
export const search = (given) => call("POST", "search", { ...given, explain: true });
export const picture = async (path) => (await ask("GET", `images/${path}`)).blob();
export const memory = (id) => call("GET", `inspect/${at(id)}`);
export const entities = (given) => call("GET", `inspect/entities?${new URLSearchParams(given)}`);
export const relations = (given) => call("GET", `inspect/relations?${new URLSearchParams(given)}`);
export const pending = () => call("GET", "inspect/pending");
export const receipts = () => call("GET", "inspect/receipts");
export const update = (id, text) => call("PUT", at(id), { text });
export const remove = (id) => call("DELETE", at(id));
export const erasePreview = (id) => call("POST", "inspect/erase/preview", { ids: [id] });
export const erase = (id) => call("POST", "inspect/erase", { ids: [id] });
