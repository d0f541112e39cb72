// What the parts of this page share: the picture, what the model says of it, and what is asked of it now.

import { call } from "../server.js";

export const state = {
  source: undefined, // the picture: its name, and the file, or the id that the server keeps it under
  answer: undefined, // what the model says of it
  rows: [], // the buttons of the classes, in order
  chosen: undefined, // the row whose heat is wanted
  versus: undefined, // the row that the chosen class is set against
  applied: [], // the method, its parameters and layers that are asked for, as pairs; forms may hold others by now
  explanations: new Map(), // of the chosen method, by what they are of
};

// Sends the picture to a route; the options travel in the query.
export function post(route, options, request = {}) {
  const { file, id } = state.source;
  if (!file) {
    const body = JSON.stringify({ image: { id } });
    return call(`v1/${route}`, { options, method: "POST", body, headers: { "Content-Type": "application/json" }, ...request });
  }
  const body = new FormData();
  body.set("image", file);
  return call(`v1/${route}`, { options, method: "POST", body, ...request });
}
