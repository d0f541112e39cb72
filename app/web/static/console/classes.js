// The list of classes: one row each, with its probability as a bar; one is chosen, another may be set against it.

import { $, element, percent } from "../dom.js";
import { state } from "./state.js";

let told; // called when the choice is another one

export function offerClasses(changed) {
  told = changed;
  $("classes").addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const place = state.rows.findIndex((row) => row.parentElement.contains(event.target));
    const next = state.rows[place + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
    select(next);
  });
}

export function clearRows() {
  state.rows = [];
  state.chosen = undefined;
  state.versus = undefined;
  $("classes").replaceChildren();
}

export const rowOf = (index) => state.rows.find((row) => row.target.index === index);

export function addRow(target) {
  const { label, probability } = target;
  const bar = element("span", { className: "bar" });
  bar.style.width = `${probability * 100}%`;
  const row = element(
    "button",
    { type: "button", className: "class" },
    element("span", { className: "label" }, label),
    element("span", { className: "probability" }, percent(probability)),
    element("span", { className: "track" }, bar),
  );
  const against = element("button", { type: "button", className: "against", title: `Why the chosen class and not ${label}?` }, "not this");
  against.setAttribute("aria-label", `and not ${label}`);
  Object.assign(row, { target, against });
  row.addEventListener("click", () => select(row));
  against.addEventListener("click", () => choose(state.chosen, state.versus === row ? undefined : row));
  state.rows.push(row);
  $("classes").append(element("li", {}, row, against));
  return row;
}

const select = (row) => choose(row, state.versus === row ? undefined : state.versus);

// Takes a class, and the one that it is set against, without a word to anybody.
export function mark(row, versus) {
  state.chosen = row;
  state.versus = versus;
  for (const other of state.rows) {
    other.setAttribute("aria-pressed", String(other === row));
    other.against.setAttribute("aria-pressed", String(other === versus));
    other.against.disabled = other === row;
  }
}

function choose(row, versus) {
  if (row === state.chosen && versus === state.versus) return;
  mark(row, versus);
  told();
}

// What is asked for the chosen class: itself, and what it is set against.
export const question = ({ target } = state.chosen, versus = state.versus) => [
  ["target", target.index],
  ...(versus ? [["versus", versus.target.index]] : []),
];
