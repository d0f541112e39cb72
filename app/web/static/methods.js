// The choice of a method: what it is good for and what not, and its parameters and layers as controls.

const DEFAULT = "gradcam";
const FAMILIES = {
  cam: "Where in the network: class activation maps",
  gradient: "Which pixels: gradients",
  perturbation: "What happens without it: changed pictures",
  attention: "What it attends to: transformers",
};
const SPEED = { low: "Quick", medium: "Takes a while", high: "Slow" };

const $ = (id) => document.getElementById(id);

const methods = new Map();
let modelWithLayers; // whose layers are listed

export function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// The chosen method as `/v1/methods` describes it, or undefined as long as that is not known.
export const chosenMethod = () => methods.get($("method").value);

// The options that the choice stands for; what is as the server has it by itself is left out.
export function chosenOptions() {
  const method = chosenMethod();
  if (!method) return [];
  const layers = [...$("layers").selectedOptions].map(({ value }) => ["layer", value]);
  const changed = fields().filter((field) => valueOf(field) !== field.dataset.default);
  return [
    ...(method.name === DEFAULT ? [] : [["method", method.name]]),
    ...(method.max_layers ? layers : []),
    ...changed.map((field) => [field.name, valueOf(field)]),
  ];
}

// Lists the methods, and calls `changed` whenever the choice is another one.
export async function offerMethods(changed) {
  $("method").addEventListener("change", () => {
    describe();
    changed();
  });
  $("fine").addEventListener("submit", (event) => {
    event.preventDefault();
    changed();
  });
  const answer = await fetch(new URL("v1/methods", document.baseURI)).catch(() => null);
  if (!answer?.ok) return;
  for (const method of (await answer.json()).methods) methods.set(method.name, method);
  for (const [family, label] of Object.entries(FAMILIES)) {
    const group = [...methods.values()].filter((method) => method.family === family);
    if (group.length) $("method").append(element("optgroup", { label }, ...group.map(option)));
  }
  $("method").value = DEFAULT;
  describe();
  $("how").hidden = false;
}

// Lists the layers of a model that a method can look at.
export async function offerLayers(model) {
  if (model === modelWithLayers) return;
  const layers = new URL(`v1/models/${encodeURIComponent(model)}/layers`, document.baseURI);
  const answer = await fetch(layers).catch(() => null);
  if (!answer?.ok) return;
  modelWithLayers = model;
  const listing = await answer.json();
  const spatial = listing.layers.filter((layer) => layer.spatial);
  const label = ({ name, type }) => `${name} (${type}${name === listing.default ? ", the default" : ""})`;
  // The last ones first: those are the ones that mostly are looked at.
  $("layers").replaceChildren(...spatial.reverse().map((layer) => element("option", { value: layer.name }, label(layer))));
}

function option({ name, cost_class: cost }) {
  return element("option", { value: name }, cost === "low" ? name : `${name} (${SPEED[cost].toLowerCase()})`);
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
  const controls = Object.entries(method.parameters.properties ?? {}).map(([name, schema]) => control(name, schema));
  $("parameters").replaceChildren(...controls);
  $("fine-tuning").hidden = method.max_layers === 0 && controls.length === 0;
}

// Whether the map hardly changes when the model's weights are made up: then it shows the picture, not the model.
export const fails = (method) => method.fails_randomisation;

const fields = () => [...$("parameters").querySelectorAll("[name]")];

const valueOf = (field) => (field.type === "checkbox" ? String(field.checked) : field.value);

function control(name, schema) {
  const id = `parameter-${name}`;
  const field = fieldFor(schema.anyOf?.find(({ type }) => type !== "null") ?? schema);
  Object.assign(field, { id, name, className: field.type === "checkbox" ? "" : "input" });
  if (field.type === "checkbox") field.checked = Boolean(schema.default);
  else field.value = shown(schema.default);
  field.dataset.default = valueOf(field);
  field.setAttribute("aria-describedby", `${id}-hint`);
  const label = element("label", { htmlFor: id }, name.replaceAll("_", " "));
  return element("div", { className: "parameter" }, label, field, element("p", { id: `${id}-hint`, className: "small" }, schema.description ?? ""));
}

// One seventh has too many digits to be looked at.
const shown = (value) => (typeof value === "number" ? Number(value.toPrecision(4)) : (value ?? ""));

function fieldFor(schema) {
  if (schema.enum) return element("select", {}, ...schema.enum.map((value) => element("option", { value }, String(value))));
  if (schema.type === "boolean") return element("input", { type: "checkbox" });
  const number = schema.type === "integer" || schema.type === "number";
  if (!number) return element("input", { type: "text", autocomplete: "off" });
  const field = element("input", { type: "number", required: "default" in schema && schema.default !== null });
  field.step = schema.type === "integer" ? "1" : "any";
  field.min = schema.minimum ?? schema.exclusiveMinimum ?? "";
  field.max = schema.maximum ?? schema.exclusiveMaximum ?? "";
  return field;
}
