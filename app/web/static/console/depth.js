// Through the depth: the map of each of the model's layers, from the first to the last, by a slider.

import { $ } from "../dom.js";
import { question } from "./classes.js";
import { decode, overlay } from "./heat.js";
import { spatialLayers, spread } from "./layers.js";
import { chosenMethod } from "./methods.js";
import { modelOption } from "./model.js";
import { content, inWords } from "../server.js";
import { opacity } from "./stage.js";
import { post, state } from "./state.js";

const MOST = 16; // layers on the slider
const PAUSE_MS = 500; // for each layer while it plays
const SETTLED_MS = 150; // after the slider has moved

let layers = [];
let work = new AbortController();
let timer;
let playing; // an AbortController, of the round that is being played
const maps = new Map(); // of the chosen class, by layer

export function offerDepth() {
  $("depth").addEventListener("toggle", resetDepth);
  $("layer").addEventListener("input", () => {
    halt();
    choose($("layer").value);
    clearTimeout(timer);
    timer = setTimeout(show, maps.has(layer()) ? 0 : SETTLED_MS);
  });
  $("play").addEventListener("click", () => (playing ? halt() : play()));
  $("opacity").addEventListener("input", () => maps.has(layer()) && paint(layer()));
}

// The maps are of another class, method or picture now.
export function resetDepth() {
  halt();
  work.abort();
  clearTimeout(timer);
  maps.clear();
  Object.assign($("depth-map"), { width: 1, height: 1 }); // which clears it
  $("depth-map").setAttribute("aria-label", "No layer yet");
  $("depth-note").textContent = "";
  if ($("depth").open && state.chosen) begin();
}

async function begin() {
  work = new AbortController();
  const { signal } = work;
  const able = takesLayers(chosenMethod());
  const method = chosenMethod()?.name;
  $("depth-hint").textContent = able
    ? `What ${method} finds in each layer. Early layers see edges and texture, the last ones what makes the class; each has its own scale.`
    : `${method} looks at no layer, so gradcam is used here. Each layer has its own scale.`;
  try {
    const listing = await spatialLayers(state.answer.model.name, signal);
    signal.throwIfAborted();
    layers = spread(listing.layers, MOST).map((each) => each.name);
    for (const id of ["layer", "play"]) $(id).disabled = !layers.length;
    if (!layers.length) {
      $("layer-name").textContent = "";
      $("depth-note").textContent = "No layer of this model keeps the picture's rows and columns.";
      return;
    }
    $("layer").max = layers.length - 1;
    if (!$("layer").dataset.touched) $("layer").value = layers.length - 1;
    name();
    await show();
  } catch (error) {
    if (!signal.aborted) $("depth-note").textContent = inWords(error);
  }
}

const layer = () => layers[Number($("layer").value)];

const takesLayers = (method) => !method || method.max_layers > 0;

// From now on this place is kept, whatever is explained.
function choose(place) {
  $("layer").value = place;
  $("layer").dataset.touched = "yes";
  name();
}

function name() {
  const words = `${layer()}, ${Number($("layer").value) + 1} of ${layers.length}`;
  $("layer-name").textContent = words;
  $("layer").setAttribute("aria-valuetext", words);
}

// Shows the map of the layer, after having it made where there is none yet; returns whether there is one.
async function show() {
  const wanted = layer();
  if (maps.has(wanted)) return draw(wanted);
  work.abort();
  work = new AbortController();
  const { signal } = work;
  $("depth-note").textContent = `${wanted} is at work…`;
  try {
    const response = await post("explain", options(wanted), { signal, waiting: (words) => { $("depth-note").textContent = words; } });
    const { explanations: [explanation], image } = await content(response, "json", signal);
    maps.set(wanted, { map: explanation.map, values: decode(explanation.values, image) });
    return draw(wanted);
  } catch (error) {
    if (!signal.aborted) $("depth-note").textContent = inWords(error);
    return false;
  }
}

function options(wanted) {
  const method = chosenMethod();
  const own = takesLayers(method) ? state.applied.filter(([option]) => option !== "layer") : [];
  const drawn = Object.entries({ format: "json", view: "layer", values: true, max_side: 256 });
  return [...drawn, ...modelOption(), ...question(), ...own, ["layer", wanted]];
}

const paint = (wanted) => overlay($("depth-map"), $("picture"), maps.get(wanted).values, { opacity: opacity() });

function draw(wanted) {
  const { map } = maps.get(wanted);
  paint(wanted);
  $("depth-map").setAttribute("aria-label", `The heat of layer ${wanted}`);
  const { label } = state.chosen.target;
  const asked = state.versus ? `${label} and not ${state.versus.target.label}` : label;
  const cells = `${map.width} by ${map.height} cells`;
  const of = state.versus ? `${wanted}, ${asked}` : wanted;
  $("depth-note").textContent = map.no_positive_evidence ? `Nothing in ${wanted} speaks for ${asked}. ${cells}.` : `${of}: ${cells}.`;
  return true;
}

async function play() {
  clearTimeout(timer);
  playing = new AbortController();
  const { signal } = playing;
  $("play").textContent = "Stop";
  const last = layers.length - 1;
  let place = Number($("layer").value) >= last ? 0 : Number($("layer").value);
  for (; place <= last; place += 1) {
    choose(place);
    const shown = await show();
    if (signal.aborted) return; // whatever is played now is another round
    if (!shown) break;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    if (signal.aborted) return;
  }
  halt();
}

function halt() {
  playing?.abort();
  playing = undefined;
  $("play").textContent = "Play";
}
