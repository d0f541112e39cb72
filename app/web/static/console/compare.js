// The grid: methods and layers down, classes across; each map is made after the other.

import { $, element, figure } from "../dom.js";
import { question } from "./classes.js";
import { decode, overlay } from "./heat.js";
import { layerOptions, SPEED, allMethods, chosenMethod, methodOption } from "./methods.js";
import { spatialLayers } from "./layers.js";
import { modelOption } from "./model.js";
import { content, inWords } from "../server.js";
import { opacity } from "./stage.js";
import { post, state } from "./state.js";

const MOST = 24; // maps in a grid

let cells = []; // of the grid that is there, in the order in which they are explained
let work = new AbortController();
let filled; // the model whose layers are listed

export function offerCompare() {
  $("compare").addEventListener("toggle", resetCompare);
  $("grid-form").addEventListener("change", count);
  $("grid-form").addEventListener("submit", (event) => {
    event.preventDefault();
    compare();
  });
  $("one-scale").addEventListener("change", drawAll);
  $("opacity").addEventListener("input", drawAll);
  $("grid-stop").addEventListener("click", () => {
    work.abort();
    $("grid-button").focus();
  });
}

// Without a chosen class there is another picture: the grid goes. With one, the choice of classes may have grown.
export function resetCompare() {
  if (!state.chosen) {
    work.abort();
    work = new AbortController(); // so that the grid that was being made has no last word
    $("grid-stop").hidden = true;
    cells = [];
    $("grid").replaceChildren();
    $("grid-classes").replaceChildren();
    $("grid-state").textContent = "";
  } else if ($("compare").open) fill();
}

function fill() {
  if (!$("grid-methods").childElementCount) {
    const name = (method) => (method.cost_class === "low" ? method.name : `${method.name} (${SPEED[method.cost_class].toLowerCase()})`);
    const first = new Set(["gradcam", "layercam", chosenMethod()?.name]);
    $("grid-methods").append(...allMethods().map((method) => box(method.name, name(method), first.has(method.name))));
  }
  const listed = new Set(chosenValues("grid-classes", "input"));
  state.rows.slice(listed.size).forEach(({ target }, place) => {
    $("grid-classes").append(box(target.index, target.label, listed.size + place < 2));
  });
  count();
  listLayers();
}

async function listLayers() {
  const model = state.answer.model.name;
  if (filled === model) return;
  const listing = await spatialLayers(model).catch(() => null); // without them, each method takes its own
  if (!listing || model !== state.answer.model.name) return; // another model answers by now
  filled = model;
  $("grid-layers").replaceChildren(...layerOptions(listing).reverse());
}

function box(value, words, checked) {
  return element("label", { className: "box" }, element("input", { type: "checkbox", value, checked }), words);
}

const chosenValues = (id, selector = ":checked") => [...$(id).querySelectorAll(selector)].map(({ value }) => value);

// The rows of the grid: a method at a layer, or at its own (undefined).
function rowsWanted() {
  const wanted = new Set(chosenValues("grid-methods"));
  const layers = [...$("grid-layers").selectedOptions].map(({ value }) => value).reverse();
  return allMethods()
    .filter(({ name }) => wanted.has(name))
    .flatMap((method) => (method.max_layers && layers.length ? layers.map((layer) => ({ method, layer })) : [{ method }]));
}

const classesWanted = () => {
  const wanted = new Set(chosenValues("grid-classes"));
  return state.rows.filter(({ target }) => wanted.has(String(target.index)));
};

function count() {
  const maps = rowsWanted().length * classesWanted().length;
  $("grid-button").disabled = maps === 0 || maps > MOST;
  const much = `${maps} maps are more than the ${MOST} that one grid may have.`;
  $("grid-count").textContent = maps > MOST ? much : maps === 0 ? "Choose a method and a class." : `${maps} ${maps === 1 ? "map" : "maps"}.`;
}

async function compare() {
  work.abort();
  work = new AbortController();
  const { signal } = work;
  build(rowsWanted(), classesWanted());
  $("grid-stop").hidden = false;
  for (const [place, cell] of cells.entries()) {
    if (signal.aborted) break;
    $("grid-state").textContent = `Map ${place + 1} of ${cells.length}…`;
    cell.caption.textContent = "at work…";
    await explain(cell, signal);
  }
  if (signal !== work.signal) return; // another grid took its place
  const made = cells.filter(({ values }) => values).length;
  $("grid-state").textContent = `${signal.aborted ? "Stopped: " : ""}${made} of ${cells.length} maps are there.`;
  if (document.activeElement === $("grid-stop")) $("grid-button").focus();
  $("grid-stop").hidden = true;
}

async function explain(cell, signal) {
  const drawn = Object.entries({ format: "json", view: "layer", values: true, max_side: 256 });
  const at = cell.layer ? [["layer", cell.layer]] : [];
  const options = [...drawn, ...modelOption(), ...question(cell.row, null), ...methodOption(cell.method), ...at];
  const waiting = (words) => { cell.caption.textContent = words; };
  try {
    const response = await post("explain", options, { signal, waiting });
    const { explanations: [explanation], image } = await content(response, "json", signal);
    cell.values = decode(explanation.values, image);
    if ($("one-scale").checked) drawAll();
    else draw(cell);
  } catch (error) {
    cell.caption.textContent = signal.aborted ? "stopped" : inWords(error);
    cell.caption.classList.toggle("fails", !signal.aborted);
  }
}

function build(rows, classes) {
  cells = [];
  const head = element("tr", {}, element("td", {}), ...classes.map(({ target }) => heading("col", target.label)));
  const body = rows.map(({ method, layer }) => {
    const title = heading("row", method.name);
    if (layer) title.append(element("span", { className: "small" }, layer));
    const own = method.class_specific ? classes : classes.slice(0, 1); // else one map is that of all classes
    const drawn = own.map((row) => cellOf({ method, layer, row }, method.class_specific ? 1 : classes.length));
    return element("tr", {}, title, ...drawn);
  });
  $("grid").replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
}

const heading = (scope, words) => element("th", { scope }, element("span", {}, words));

function cellOf(asked, colSpan) {
  const canvas = element("canvas", { width: 1, height: 1 });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${asked.method.name}, ${asked.row.target.label}`);
  const caption = element("span", { className: "small" }, "waits");
  cells.push({ ...asked, canvas, caption });
  return element("td", { colSpan }, canvas, caption);
}

// The largest of the scales where they share one, so that no map is cut off.
function drawAll() {
  const drawn = cells.filter(({ values }) => values);
  const shared = $("one-scale").checked ? Math.max(0, ...drawn.map(({ values }) => values.scale)) : undefined;
  drawn.forEach((cell) => draw(cell, shared));
}

function draw({ canvas, caption, values, row, method }, scale = values.scale) {
  overlay(canvas, $("picture"), values, { scale, opacity: opacity() });
  const nothing = values.scale === 0 && `nothing speaks for ${row.target.label}`;
  const all = method.class_specific ? "" : "the same for all classes; ";
  caption.textContent = nothing || `${all}full heat from ${figure(scale)}`;
}
