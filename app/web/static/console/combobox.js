// A text field that suggests labels of the model while one types, by the ARIA pattern of a combobox with a list.

import { element } from "../dom.js";
import { ask } from "../server.js";
import { state } from "./state.js";

const LIMIT = 20;
const PAUSE_MS = 120; // after a key, before the server is asked

// Calls `picked` with the class, {index, label}, that is chosen from the list; `field` may be submitted otherwise.
export function suggestLabels(field, list, picked) {
  let found = [];
  let active = -1;
  let asking = new AbortController();

  function close() {
    asking.abort();
    found = [];
    list.hidden = true;
    list.replaceChildren();
    field.setAttribute("aria-expanded", "false");
    point(-1);
  }

  function point(place) {
    active = place;
    [...list.children].forEach((option, index) => option.setAttribute("aria-selected", String(index === active)));
    const option = list.children[active];
    if (option) field.setAttribute("aria-activedescendant", option.id);
    else field.removeAttribute("aria-activedescendant");
    option?.scrollIntoView({ block: "nearest" });
  }

  function pick(place) {
    const label = found[place];
    field.value = label.label;
    close();
    picked(label);
  }

  // The query that is asked last is the one that is answered: the one before is given up.
  async function suggest() {
    asking.abort();
    asking = new AbortController();
    const { signal } = asking;
    const query = field.value.trim();
    if (!query) return close();
    try {
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      signal.throwIfAborted();
      const route = `v1/models/${encodeURIComponent(state.answer.model.name)}/labels`;
      show((await ask(route, { options: { query, limit: LIMIT }, signal })).labels);
    } catch {
      if (!signal.aborted) close(); // without suggestions the field does all the same
    }
    return undefined;
  }

  function show(labels) {
    found = labels;
    list.replaceChildren(
      ...labels.map(({ index, label }, place) => {
        const option = element("li", { id: `${list.id}-${index}`, role: "option" }, label);
        option.addEventListener("pointerdown", (event) => event.preventDefault()); // the field keeps the focus
        option.addEventListener("click", () => pick(place));
        return option;
      }),
    );
    list.hidden = labels.length === 0;
    field.setAttribute("aria-expanded", String(labels.length > 0));
    point(-1);
  }

  field.addEventListener("input", suggest);
  field.addEventListener("blur", close);
  field.form.addEventListener("submit", close);
  field.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && found.length) point((Math.max(active, step > 0 ? -1 : 0) + step + found.length) % found.length);
    else if (step > 0) suggest();
    else if (event.key === "Escape") close();
    else if (event.key === "Enter" && active >= 0) pick(active);
    else return;
    event.preventDefault();
  });
}
