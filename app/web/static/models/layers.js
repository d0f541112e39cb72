// The layers of a model as a tree, nested by the dots of their names, with the shapes of what they answer.

import { $, element } from "../dom.js";
import { ask, inWords } from "../server.js";

let again = () => {};

// Lists the layers of a model that is loaded, and offers to load one that is not; `loaded` is called once it is.
export async function showLayers(model, { signal, loaded }) {
  $("tree").replaceChildren();
  $("layers-words").textContent = "";
  $("layers-problem").hidden = true;
  again = async () => {
    $("layers-load").hidden = true;
    const listed = await list(model, signal);
    if (listed && model.state !== "ready") await loaded();
  };
  $("layers-load").hidden = model.state === "ready";
  if (model.state === "ready") await again();
}

// Says whether it has listed them.
async function list(model, signal) {
  $("layers-problem").hidden = true;
  $("layers-words").textContent = model.state === "ready" ? "Asking for the layers…" : "Loading the model…";
  try {
    const waiting = (words) => ($("layers-words").textContent = words);
    const { layers, default: first } = await ask(`v1/models/${encodeURI(model.name)}/layers`, { signal, waiting });
    const spatial = layers.filter((layer) => layer.spatial).length;
    $("layers-words").textContent = `${layers.length} layers in the order in which they run; ${spatial} of them have places to look at.`;
    $("tree").replaceChildren(...branches(grown(layers), first));
    return true;
  } catch (error) {
    if (signal.aborted) return false;
    $("layers-words").textContent = "";
    $("layers-problem-text").textContent = inWords(error);
    $("layers-problem").hidden = false;
    return false;
  }
}

// A tree of nodes: { name, path, layer, children }, by order of first appearance.
function grown(layers) {
  const root = { path: "", children: new Map() };
  for (const layer of layers) {
    let node = root;
    for (const name of layer.name.split(".")) {
      const path = node.path ? `${node.path}.${name}` : name;
      if (!node.children.has(name)) node.children.set(name, { name, path, children: new Map() });
      node = node.children.get(name);
    }
    node.layer = layer;
  }
  return root;
}

const branches = ({ children }, first) => [...children.values()].map((node) => element("li", {}, branch(node, first)));

function branch(node, first) {
  const words = line(node, first);
  if (!node.children.size) return element("div", { className: "leaf" }, ...words);
  const open = first === node.path || Boolean(first?.startsWith(`${node.path}.`));
  const summary = element("summary", {}, ...words);
  return element("details", { open }, summary, element("ul", {}, ...branches(node, first)));
}

function line({ name, path, layer, children }, first) {
  const words = [element("span", { className: "layer-name", title: path }, name)];
  if (layer) words.push(element("span", { className: "layer-type" }, layer.type));
  else words.push(element("span", { className: "layer-type" }, `${children.size} parts`));
  if (layer?.shape) words.push(element("span", { className: "layer-shape" }, layer.shape.slice(1).join(" × ")));
  if (layer?.calls > 1) words.push(element("span", { className: "layer-type" }, `runs ${layer.calls} times`));
  if (path === first) words.push(element("strong", { className: "mark" }, "default layer"));
  return words.flatMap((word) => [word, " "]);
}

const unfold = (open) => document.querySelectorAll("#tree details").forEach((each) => (each.open = open));

for (const id of ["layers-load", "layers-again"]) {
  $(id).addEventListener("click", () => {
    $("layers-title").focus(); // the button goes
    again();
  });
}
$("open-all").addEventListener("click", () => unfold(true));
$("close-all").addEventListener("click", () => unfold(false));
