// The parameters of a method as controls, made of their JSON Schema.

import { $, element } from "../dom.js";

export function offerParameters(schema) {
  const controls = Object.entries(schema.properties ?? {}).map(([name, property]) => control(name, property));
  $("parameters").replaceChildren(...controls);
  return controls.length > 0;
}

// Those that are not as the server has them by itself, as pairs.
export const changedParameters = () =>
  fields()
    .filter((field) => valueOf(field) !== field.dataset.default)
    .map((field) => [field.name, valueOf(field)]);

export const setParameter = (name, value) => set(fields().find((each) => each.name === name), value);

// Whether a parameter can have a value, which is text.
export function takes(schema, value) {
  const field = fieldOf(schema);
  set(field, value);
  return valueOf(field) === value && field.checkValidity();
}

function set(field, value) {
  if (field.type === "checkbox") field.checked = value === "true";
  else field.value = value;
}

const fields = () => [...$("parameters").querySelectorAll("[name]")];

const valueOf = (field) => (field.type === "checkbox" ? String(field.checked) : field.value);

function control(name, schema) {
  const id = `parameter-${name}`;
  const field = fieldOf(schema);
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

const fieldOf = (schema) => fieldFor(schema.anyOf?.find(({ type }) => type !== "null") ?? schema);

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
