// The page: a picture goes in; the most probable classes come out, and for each of them a layer of heat.

import { $, element, percent } from "../dom.js";
import { addRow, clearRows, mark, offerClasses, question, rowOf } from "./classes.js";
import { suggestLabels } from "./combobox.js";
import { offerCompare, resetCompare } from "./compare.js";
import { offerDepth, resetDepth } from "./depth.js";
import { chosenMethod, forgetLayers, offerLayers, offerMethods, optionsRead } from "./methods.js";
import { modelNamed, modelOption, offerModels, setModel } from "./model.js";
import { GONE, dropLink, offerPermalink } from "./permalink.js";
import { complain, setState } from "./notice.js";
import { drawFromServer, drawHere } from "./picture.js";
import { runNow, running, say, stop, waiting } from "./run.js";
import { Problem, content, inWords } from "../server.js";
import { offerShare, resetShare } from "./share.js";
import { canRestoreStage, clearHeat, clearStage, offerStage, restoreStage, showFacts, showHeat } from "./stage.js";
import { post, state } from "./state.js";
import { MEASURES, offerTrust, showTrust } from "./trust.js";
import { offerWays } from "./ways.js";

const TOP = 5;
const ALL = 1000; // the most that the server lists: for a class that is not among the best

const app = $("app");

let coming = new AbortController(); // of the latest picture that is on its way

// --- one picture, from choice to answer

// Gives up the picture that was on its way for another one; returns a signal that is aborted when that is given up.
function arriving() {
  coming.abort();
  coming = new AbortController();
  return coming.signal;
}

// Shows a picture and what the model says of it; `wanted` are the indices of the class to choose, and of its versus.
async function look(source, wanted = {}, signal = arriving()) {
  const held = document.activeElement.closest("#problem, .more"); // which is hidden now
  state.source = source;
  clear();
  setState("busy");
  $("verdict").textContent = `Looking at ${source.name}…`;
  if (held) $("verdict").focus();
  try {
    if (source.file?.size === 0) throw new Problem("The file is empty.");
    const shown = await drawHere(source, signal);
    const top = wanted.target === undefined ? TOP : ALL;
    const predict = { signal, waiting: (words) => { $("verdict").textContent = words; } };
    state.answer = await content(await post("predict", [["top", top], ...modelOption()], predict), "json", signal);
    const { image } = state.answer;
    if (shown?.width !== image.width || shown?.height !== image.height) await drawFromServer(image, modelOption(), signal);
    await askFor(wanted, signal);
    signal.throwIfAborted();
    showAnswer(wanted);
  } catch (error) {
    if (!signal.aborted) complain(`${source.name} could not be explained.`, error, () => look(source, wanted));
  }
}

// Adds the classes that a link names to the answer where they are not listed; it is refused if they do not exist.
async function askFor(wanted, signal) {
  const { predictions } = state.answer;
  const missing = Object.values(wanted).filter((one) => one !== undefined && !predictions.some(({ index }) => index === one));
  if (!missing.length) return;
  const asked = [["format", "json"], ...missing.map((one) => ["target", one]), ...modelOption(), ...state.applied];
  const { explanations } = await content(await post("explain", asked, { signal }), "json", signal);
  predictions.push(...explanations.map(({ target }) => target));
}

function clear() {
  stop();
  $("problem").hidden = true;
  $("facts").textContent = "";
  state.explanations.clear();
  clearRows();
  clearStage();
  [resetCompare, resetDepth, resetShare].forEach((reset) => reset());
}

// --- the answer

function showAnswer({ target, versus }) {
  const { image, predictions } = state.answer;
  const { seen } = image;
  const margin = Math.max(seen.left, seen.top, image.width - seen.right, image.height - seen.bottom) >= 0.5;
  $("margin").hidden = !margin;
  const [best] = predictions;
  $("verdict").replaceChildren("Best guess: ", element("strong", {}, best.label), `, ${percent(best.probability)}`);
  $("label").value = "";
  $("label-problem").hidden = true;
  setState("done");
  if ($("fine-tuning").open) offerLayers(state.answer.model.name);
  predictions.filter(({ index }, place) => place < TOP || [target, versus].includes(index)).forEach(addRow);
  mark(rowOf(target) ?? state.rows[0], versus === target ? undefined : rowOf(versus));
  showChosen();
}

// --- the explanation of the chosen class

const keyOf = (target, versus) => `${target.index} ${versus?.index ?? ""}`;

async function explain(options, signal, measures) {
  const drawn = Object.entries({ format: "json", view: "layer", alpha: 1, values: true, ...measures });
  const asked = [...drawn, ...modelOption(), ...options, ...state.applied];
  const explained = await content(await post("explain", asked, { signal, waiting }), "json", signal);
  for (const explanation of explained.explanations) {
    state.explanations.set(keyOf(explanation.target, explanation.versus), { ...explanation, facts: explained });
  }
  return explained.explanations[0].target;
}

// Explains now, and nothing else any more; returns the first class, or undefined if this was stopped.
function explainNow(options, measures = {}) {
  const measuring = "faithfulness" in measures; // of the heat that is there, which stays
  if (!measuring) clearHeat();
  $("facts").textContent = "";
  const words = measuring ? "Measuring…" : `${chosenMethod()?.name ?? "The model"} is at work…`;
  return runNow(String(options), words, (signal) => explain(options, signal, measures), halt);
}

function halt() {
  stop();
  return $("heat").hidden ? say("stopped", "Stopped.", "Go on", show) : show();
}

// Shows the heat for the chosen class, after having it made where there is none yet.
async function show() {
  const method = chosenMethod();
  const { target } = state.chosen;
  const agnostic = method?.class_specific === false;
  app.classList.toggle("agnostic", agnostic);
  if (agnostic) mark(state.chosen);
  const versus = state.versus?.target;
  $("asked").textContent = versus ? `Why ${target.label} and not ${versus.label}?` : "";
  const exact = state.explanations.get(keyOf(target, versus));
  const known = exact ?? (agnostic ? [...state.explanations.values()][0] : undefined);
  if (known) {
    showHeat({ explanation: known, target, method, versus });
    showFacts(known.facts);
    const held = $("run").contains(document.activeElement);
    stop();
    showTrust(exact ?? { map: known.map });
    if (held) $(exact?.faithfulness ? "trust-verdict" : "frame").focus();
    return undefined;
  }
  const options = wanted(method);
  if (running() === String(options)) return undefined;
  return attempt(() => explainNow(options));
}

// Does what leads to an explanation, and shows it; where it fails, says so in its place.
async function attempt(explained) {
  try {
    return (await explained()) && show();
  } catch (error) {
    return say("failed", inWords(error), error.repeatable ? "Try again" : "", () => attempt(explained));
  }
}

// The classes to explain with the chosen one: the best ones where they cost little more than one.
function wanted(method) {
  if (state.versus) return question();
  const best = state.rows.slice(0, TOP);
  const cheap = !method || method.cost_class === "low" || !method.uses_gradients;
  return (cheap && best.includes(state.chosen) ? best : [state.chosen]).flatMap((row) => question(row));
}

function showChosen() {
  [resetCompare, resetDepth, resetShare].forEach((reset) => reset());
  return show();
}

// --- another class, another method, another model

async function explainOther(name) {
  $("label-problem").hidden = true;
  try {
    mark(state.chosen);
    const target = await explainNow([["target", name]]);
    if (!target) return;
    mark(rowOf(target.index) ?? addRow(target));
    $("label").value = "";
    showChosen();
  } catch (error) {
    $("label-problem").textContent = inWords(error);
    $("label-problem").hidden = false;
    showChosen();
  }
}

// With the method, the parameters and the layers that are chosen now.
function explainOtherwise() {
  stop();
  state.explanations.clear();
  showChosen();
}

// Opens what a permalink holds. What can be seen to be wrong without asking the model changes nothing.
async function restore(source, { model: name, target, versus, alpha, show: view, ...options }, pairs, signal) {
  const model = await modelNamed(name);
  const setOptions = await optionsRead(pairs.filter(([each]) => each in options), model.name);
  signal.throwIfAborted();
  const [index, against] = [target, versus].map((text) => (text === undefined ? undefined : Number(text || NaN)));
  if (Number.isNaN(index) || Number.isNaN(against)) throw new Problem("It names no class by its number.");
  if (!canRestoreStage({ alpha, show: view })) throw new Problem("It asks for an opacity or a view that there is not.");
  setModel(model);
  setOptions();
  restoreStage({ alpha, show: view });
  return look(source, { target: index, versus: against }, signal);
}

// The picture of a link is not kept any more, and there is no other one.
function close() {
  arriving();
  dropLink();
  state.source = undefined;
  clear();
  setState("empty");
  $("verdict").textContent = "";
  complain("This link opens nothing any more.", new Problem(GONE));
  $("file").focus();
}

function give(source) {
  dropLink();
  return look(source);
}

offerWays(give, arriving, complain);
offerClasses(showChosen);
offerModels(({ name }) => {
  forgetLayers(name);
  if (state.source) look(state.source);
});
offerMethods(explainOtherwise);
offerTrust(() => attempt(() => explainNow(question(), MEASURES)));
offerStage();
offerCompare();
offerDepth();
offerShare(close);
offerPermalink(arriving, restore, complain);

$("other").addEventListener("submit", (event) => {
  event.preventDefault();
  explainOther($("label").value.trim());
});
suggestLabels($("label"), $("labels"), ({ index }) => explainOther(index));
$("fine-tuning").addEventListener("toggle", () => offerLayers(state.answer.model.name));
$("fine").addEventListener("submit", () => $("stage").scrollIntoView({ block: "nearest" }));
