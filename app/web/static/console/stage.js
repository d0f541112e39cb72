// The stage: the picture with the heat over it, what is shown of the two, the legend and the words below.

import { $, figure } from "../dom.js";
import { decode, paint } from "./heat.js";
import { fails } from "./methods.js";
import { forget, offerReadout, readFrom } from "./readout.js";
import { state } from "./state.js";

const VIEWS = { 1: "original", 2: "overlay", 3: "heat", o: "original", v: "overlay", h: "heat" };

export const opacity = () => Number($("opacity").value) / 100;

export const shownView = () => document.querySelector("input[name=show]:checked").value;

export function offerStage() {
  $("opacity").addEventListener("input", setOpacity);
  $("show").addEventListener("change", setView);
  // Single letters only while the focus is in here (WCAG 2.2, 2.1.4).
  $("stage").addEventListener("keydown", (event) => {
    const view = VIEWS[event.key];
    if (!view || event.ctrlKey || event.metaKey || event.altKey) return;
    if ($("app").dataset.state !== "done") return;
    $(`show-${view}`).click(); // so that whoever listens to a choice hears of it
  });
  offerReadout();
  setOpacity();
}

// Shows what a link holds of this: opacity and view, as text; by themselves they are as on a fresh page.
export const canRestoreStage = ({ alpha = "0.7", show = "overlay" }) =>
  alpha !== "" && Number(alpha) >= 0 && Number(alpha) <= 1 && Object.values(VIEWS).includes(show);

export function restoreStage({ alpha = "0.7", show = "overlay" }) {
  $("opacity").value = 100 * Number(alpha);
  $("opacity").dispatchEvent(new Event("input"));
  $(`show-${show}`).click();
}

function setOpacity() {
  $("heat").style.opacity = opacity();
  $("opacity-value").textContent = `${$("opacity").value}%`;
}

function setView() {
  $("frame").dataset.show = shownView();
}

export function clearStage() {
  $("frame").classList.remove("drawn");
  clearHeat();
}

export function clearHeat() {
  $("heat").hidden = true;
  $("colours").hidden = true;
  forget();
}

// Shows the map of an explanation.
export function showHeat({ explanation, target, method, versus }) {
  const { map, picture, values } = explanation;
  $("heat").src = `data:${picture.media_type};base64,${picture.base64}`;
  $("heat").hidden = false;
  const grid = decode(values, state.answer.image);
  paint($("colours"), grid);
  $("colours").hidden = false;
  readFrom(grid);
  const asked = versus ? `${target.label} and not ${versus.label}` : target.label;
  $("picture").setAttribute("aria-label", `${state.source.name}, with the heat for ${asked} over it`);
  $("note").textContent = inNote(map, asked, method);
  $("care").textContent = explanation.facts.method.fails_randomisation ? inCare(method) : "";
  showLegend(values.scale, method);
}

// Tells what an answer to /v1/explain is of, and how long it took.
export function showFacts({ model, method, layers, timings_s: timings }) {
  const seconds = Object.values(timings).reduce((sum, part) => sum + part, 0);
  const untrained = model.weights === "random" ? " This model has made-up weights: its answers mean nothing." : "";
  const time = seconds > 0 ? `${seconds.toFixed(2)}\u00a0s` : "answered from memory";
  const where = layers.length ? `, layer ${layers.join(" and ")}` : "";
  $("facts").textContent = `Model ${model.name}, method ${method.name}${where}, ${time}.${untrained}`;
}

function showLegend(scale, method) {
  const strong = method?.class_specific === false ? "strong" : atInput(method) ? "counts most" : "strong evidence";
  $("strong").textContent = scale > 0 ? `${figure(scale)} and more: ${strong}` : strong;
  $("weak").textContent = scale > 0 ? "0" : "weak";
}

// Gradients at the input say how much a pixel counts, not always in which direction.
const atInput = (method) => method?.uses_gradients && !method.max_layers;

function inNote(map, asked, method) {
  const size = `${map.width} by ${map.height} cells laid over the picture`;
  if (method?.class_specific === false) return `This method asks for no class, the map is the same for all. It has ${size}.`;
  if (map.no_positive_evidence) return `Nothing in this map speaks for ${asked}, so there is no heat to show.`;
  const bright = atInput(method) ? "count most for" : "speak for";
  return `Bright areas ${bright} ${asked}. The map has ${size}, and each class has its own scale.`;
}

function inCare(method) {
  if (method && fails(method)) return `Take care: this method ${lowered(method.sanity)}`;
  return "Take care: with made-up weights this map would be much the same. It shows the picture, not what the model has learnt.";
}

const lowered = (sentence) => sentence[0].toLowerCase() + sentence.slice(1);
