// The choice of a model, where the server has more than one that it can answer with.

import { $, element } from "../dom.js";
import { Problem, ask, onceKeyed } from "../server.js";

const models = new Map();
let listed;

const chosenModel = () => models.get($("model").value);

// The option that the choice stands for; none for the server's own choice.
export function modelOption() {
  const model = chosenModel();
  return !model || model.default ? [] : [["model", model.name]];
}

export function offerModels(changed) {
  $("model").addEventListener("change", () => {
    describe();
    changed(chosenModel());
  });
  relist();
}

// Without them the server's own choice answers.
function relist() {
  listed = list().catch(() => onceKeyed(relist));
}

async function list() {
  const all = (await ask("v1/models")).models;
  for (const model of all) if (model.weights !== "missing") models.set(model.name, model);
  $("model").replaceChildren(...[...models.values()].map(({ name }) => element("option", { value: name }, name)));
  $("model-choice").hidden = models.size < 2;
  if (models.size) describe();
}

// The model of this name, or the server's own where none is named.
export async function modelNamed(name) {
  await listed;
  if (!models.size) throw new Problem("The models of this server could not be listed; please reload the page.");
  const found = name === undefined ? [...models.values()].find((each) => each.default) : models.get(name);
  if (!found) throw new Problem(`This server has no model “${name ?? "of its own"}” that can answer.`);
  return found;
}

export function setModel({ name }) {
  $("model").value = name;
  describe();
}

function describe() {
  const { description, weights, state } = chosenModel();
  const made = weights === "random" ? " Its weights are made up: its answers mean nothing." : "";
  const when = { not_loaded: " It is loaded when it is first asked.", failed: " It could not be loaded." }[state] ?? "";
  $("model-words").textContent = `${description}${made}${when}`;
}
