// What all pages share of the server: requests, with the API key if it asks for one, and what went wrong in words.

import { askForKey, offerButton } from "./access.js";

const NEEDED = "This server asks for an API key.";
const REFUSED = "The server does not take this key: it is wrong, has expired, or was revoked.";
const UNASKED = "It needs an API key.";
const ELSEWISE = "To use another key, forget this one, at the top of the page.";

let key; // nowhere else: not in the document, the address, a cookie or a storage
let asking; // settled with whether people gave a key; undefined while nobody is asked
let listeners = []; // of those that failed before there was a key

export class Problem extends Error {
  constructor(detail, { passing = false, code = "", status = 0 } = {}) {
    super(detail);
    this.passing = passing; // whether trying again may help
    this.repeatable = passing || status === 401; // whether people may want to try again: perhaps they give a key now
    this.code = code; // the server's name for it
    this.status = status; // of the answer; 0: there was none
  }
}

// The address of a route, with options: pairs, or an object.
export function address(route, options = {}) {
  const query = new URLSearchParams(options).toString();
  return new URL(query ? `${route}?${query}` : route, document.baseURI);
}

// --- the key

export const usesKey = () => key !== undefined;

// Calls back once people give a key, for what has failed without it.
export const onceKeyed = (callback) => listeners.push(callback);

// Does `send(headers)`, and once more with each key that people give while the server refuses what was sent.
async function admitted(send) {
  for (;;) {
    const sent = key;
    try {
      return await send(sent ? { Authorization: `Bearer ${sent}` } : {});
    } catch (error) {
      if (error.code === "forbidden" && sent) error.message += ` ${ELSEWISE}`;
      if (error.status !== 401) throw error;
      if (!sent) error.message = UNASKED;
      if ((asking || sent === key) && !(await another())) throw error;
    }
  }
}

// Asks people, once for all requests that wait, and says whether they gave a key.
function another() {
  asking ??= replace().finally(() => (asking = undefined));
  return asking;
}

async function replace() {
  key = await askForKey(key ? REFUSED : NEEDED);
  if (!key) {
    offerButton("Enter a key", another);
    return false;
  }
  // A page that is loaded anew holds neither the key nor what was seen with it.
  offerButton("Forget the key", () => location.reload());
  const waited = listeners;
  listeners = [];
  waited.forEach((callback) => callback());
  return true;
}

// --- requests

const PATIENCE = 60; // how many times a request is sent again while the model is being loaded

// Sends a request, and returns the response if it is a success; throws a Problem, or what `signal` was aborted with.
// With `waiting`, a request for a model that is being loaded is sent again until it is there; `waiting` is told so.
export async function call(route, { waiting, ...request } = {}) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await admitted((headers) => send(route, request, headers));
    } catch (error) {
      if (error.code !== "model_loading" || !waiting || tries > PATIENCE) throw error;
      waiting(error.message);
      await pause(error.seconds * 1000, request.signal);
    }
  }
}

// Settles after a time, or throws what `signal` was aborted with.
export function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", stop);
  });
}

async function send(route, { options, signal, headers, ...request }, access) {
  let response;
  try {
    response = await fetch(address(route, options), { signal, headers: { ...headers, ...access }, ...request });
  } catch {
    signal?.throwIfAborted();
    const detail = request.body
      ? "It could not be sent: the server is out of reach, or the file cannot be read or is too large."
      : "The server is out of reach.";
    throw new Problem(detail, { passing: true });
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  signal?.throwIfAborted();
  throw Object.assign(refusal(response.status, problem), { seconds: Number(response.headers.get("Retry-After")) || 1 });
}

function refusal(status, problem) {
  const detail = problem?.detail ?? `The server answered with status ${status}.`;
  return new Problem(detail, { passing: status >= 500 || status === 429, code: problem?.code, status });
}

// As `call`, and returns what the JSON of the answer holds.
export async function ask(route, request = {}) {
  return content(await call(route, request), "json", request.signal);
}

// What is in an answer, read as "json" or "blob". The connection may be lost after the status has come, so this throws
// as `call` does.
export async function content(response, kind, signal) {
  const read = await response[kind]().catch(() => {
    signal?.throwIfAborted();
    throw new Problem("The server's answer cannot be read; perhaps it was cut off.", { passing: true });
  });
  signal?.throwIfAborted();
  return read;
}

// The address of an answer's content within this page, which an <img> can show though it can send no key. Whoever asks
// for it revokes it.
export async function objectUrl(route, request) {
  return URL.createObjectURL(await content(await call(route, request), "blob", request.signal));
}

// Posts a body that may be large, and returns what the JSON of the answer holds; `progress` is called with the share
// that has gone. By XMLHttpRequest, as fetch does not tell that.
export function upload(route, { body, headers, signal, progress }) {
  return admitted((access) => {
    signal.throwIfAborted();
    const request = new XMLHttpRequest();
    const answered = new Promise((resolve, reject) => {
      request.addEventListener("load", () => {
        const { status, response } = request;
        if (status < 300) resolve(response);
        else reject(refusal(status, response));
      });
      request.addEventListener("error", () => reject(new Problem(
        "It could not be sent: the server is out of reach, a file cannot be read any more, or it is more than the server takes.",
      )));
      request.addEventListener("abort", () => reject(signal.reason));
    });
    request.upload.addEventListener("progress", ({ loaded, total }) => progress(loaded / total));
    signal.addEventListener("abort", () => request.abort());
    request.open("POST", address(route));
    request.responseType = "json";
    for (const [name, value] of Object.entries({ ...headers, ...access })) request.setRequestHeader(name, value);
    request.send(body);
    return answered;
  });
}

// Has the browser save what a path of the server answers. It sends no key with that, but a ticket for this path alone.
export async function save(path, signal) {
  const body = JSON.stringify({ path });
  const headers = { "Content-Type": "application/json" };
  const { url } = await ask("v1/tickets", { method: "POST", body, headers, signal });
  Object.assign(document.createElement("a"), { href: url, download: "" }).click();
}

export function inWords(error) {
  if (error instanceof Problem) return error.message;
  console.error(error);
  return "Something in this page went wrong; please reload it.";
}
