// The choice of a method: a card for each says what it is good for and what not; its parameters and layers below.

import { $, element } from "../dom.js";
import { spatialLayers } from "./layers.js";
import { changedParameters, offerParameters, setParameter, takes } from "./parameters.js";
import { Problem, ask, onceKeyed } from "../server.js";
import { state } from "./state.js";

const DEFAULT = "gradcam";
const FAMILIES = {
  cam: "Where in the network: class activation maps",
  gradient: "Which pixels: gradients",
  perturbation: "What happens without it: changed pictures",
  attention: "What it attends to: transformers",
};
export const SPEED = { low: "Quick", medium: "Takes a while", high: "Slow" };

const methods = new Map();
let listed; // settled when the methods are, or cannot be
let modelWithLayers; // whose layers are listed

// The chosen method as `/v1/methods` describes it, or undefined as long as that is not known.
export const chosenMethod = () => methods.get(document.querySelector("input[name=method]:checked")?.value);

export const allMethods = () => [...methods.values()];

// The options that name a method; none for what the server takes by itself.
export const methodOption = (method) => (!method || method.name === DEFAULT ? [] : [["method", method.name]]);

// Takes over what the forms hold; what is as the server has it by itself is left out.
function apply() {
  const method = chosenMethod();
  const layers = method.max_layers ? [...$("layers").selectedOptions].map(({ value }) => ["layer", value]) : [];
  state.applied = [...methodOption(method), ...layers, ...changedParameters()];
}

// Lists the methods, and calls `changed` whenever the choice is another one.
export function offerMethods(changed) {
  $("methods").addEventListener("change", () => {
    describe();
    changed();
  });
  $("fine").addEventListener("submit", (event) => {
    event.preventDefault();
    apply();
    changed();
  });
  $("how").addEventListener("toggle", showChoice);
  relist();
}

// Without them the page explains with the server's own choice.
function relist() {
  listed = list().catch(() => onceKeyed(relist));
}

async function list() {
  for (const method of (await ask("v1/methods")).methods) methods.set(method.name, method);
  for (const [family, label] of Object.entries(FAMILIES)) {
    const cards = allMethods().filter((method) => method.family === family).map(card);
    if (cards.length) $("methods").append(element("fieldset", {}, element("legend", {}, label), ...cards));
  }
  $(`choose-${DEFAULT}`).checked = true;
  describe();
  $("how").hidden = false;
}

// Checks options, pairs as they are applied, for a model; returns a function that makes them the choice.
export async function optionsRead(options, model) {
  await listed;
  if (!methods.size) throw new Problem("The methods of this server could not be listed; please reload the page.");
  const { method: name = DEFAULT, layer, ...parameters } = Object.fromEntries(options);
  const method = methods.get(name);
  if (!method) throw new Problem(`This server has no method “${name}”.`);
  const known = method.parameters.properties ?? {};
  for (const [each, value] of Object.entries(parameters)) {
    if (!Object.hasOwn(known, each)) throw new Problem(`Method ${name} has no parameter “${each}”.`);
    if (!takes(known[each], value)) throw new Problem(`Parameter ${each} of method ${name} cannot be “${value}”.`);
  }
  const wanted = options.filter(([each]) => each === "layer").map(([, value]) => value);
  if (wanted.length > method.max_layers) throw new Problem(`Method ${name} looks at ${method.max_layers || "no"} ${method.max_layers === 1 ? "layer" : "layers"}.`);
  const listing = layer && (await spatialLayers(model));
  const missing = wanted.find((each) => !listing.layers.some((one) => one.name === each));
  if (missing) throw new Problem(`Model ${model} has no layer “${missing}” that a method can look at.`);
  return () => {
    $(`choose-${name}`).checked = true;
    describe();
    Object.entries(parameters).forEach((pair) => setParameter(...pair));
    forgetLayers(model);
    if (listing) listLayers(listing, model);
    for (const option of $("layers").options) option.selected = wanted.includes(option.value);
    apply();
  };
}

// The layers of any other model than this one are neither listed nor asked for any more.
export function forgetLayers(model) {
  if (model === modelWithLayers) return;
  modelWithLayers = undefined;
  $("layers").replaceChildren();
  state.applied = state.applied.filter(([name]) => name !== "layer");
}

// Lists the layers of a model that a method can look at.
export async function offerLayers(model) {
  if (model === modelWithLayers) return;
  const listing = await spatialLayers(model).catch(() => null);
  if (listing && model === state.answer.model.name) listLayers(listing, model);
}

function listLayers(listing, model) {
  if (model === modelWithLayers) return;
  modelWithLayers = model;
  // The last ones first: those are the ones that mostly are looked at.
  $("layers").replaceChildren(...layerOptions(listing).reverse());
}

export const layerOptions = (listing) =>
  listing.layers.map(({ name, type }) =>
    element("option", { value: name }, `${name} (${type}${name === listing.default ? ", the default" : ""})`),
  );

// Scrolls the list of cards, and not the page, to the one that is chosen.
function showChoice() {
  const chosen = document.querySelector(".method-card:has(:checked)");
  $("methods").scrollTop = chosen.offsetTop - $("methods").offsetTop;
}

function card({ name, cost_class: cost, summary, weakness }) {
  const radio = element("input", { type: "radio", name: "method", value: name, id: `choose-${name}` });
  const title = element("strong", { id: `name-${name}` }, name);
  const traits = element(
    "span",
    { id: `traits-${name}` },
    element("span", { className: `cost ${cost}` }, SPEED[cost]),
    element("span", { className: "good" }, summary),
    element("span", { className: "weak" }, weakness),
  );
  radio.setAttribute("aria-labelledby", title.id);
  radio.setAttribute("aria-describedby", traits.id);
  return element("label", { className: "method-card" }, radio, title, traits);
}

function describe() {
  const method = chosenMethod();
  $("method-name").textContent = method.name;
  $("method-summary").textContent = method.summary;
  $("method-weakness").textContent = method.weakness;
  $("method-sanity").textContent = method.sanity;
  $("method-sanity").classList.toggle("fails", fails(method));
  $("method-cost").textContent = `${SPEED[method.cost_class]}: ${method.cost}.`;
  $("method-paper").href = method.paper;
  $("layers").multiple = method.max_layers > 1;
  $("layers").selectedIndex = -1;
  $("layer-choice").hidden = method.max_layers === 0;
  $("layer-hint").textContent = method.max_layers > 1 ? `Up to ${method.max_layers}, fused into one map; none: the default.` : "";
  const controls = offerParameters(method.parameters);
  $("fine-tuning").hidden = method.max_layers === 0 && !controls;
  apply();
}

// Whether the map hardly changes when the model's weights are made up: then it shows the picture, not the model.
export const fails = (method) => method.fails_randomisation;
