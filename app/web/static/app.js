// The page: a picture goes in; the most probable classes come out, and for each of them a layer of heat.

import { chosenMethod, chosenOptions, element, fails, offerLayers, offerMethods } from "./methods.js";

const MAX_SIDE_PX = 1024; // the server's default for max_side
const TOP = 5;
// What browsers turn upright as the server does; other formats are shown as the server decodes them.
const DRAWN_HERE = new Set(["image/jpeg", "image/png", "image/gif", "image/bmp"]);
const SAMPLE = new URL("cat.jpg", import.meta.url);

const $ = (id) => document.getElementById(id);
const app = $("app");

let file; // the picture on the page
let answer; // what the model says about it
let rows = []; // the buttons of the classes, in order
let chosen; // the row whose heat is wanted
const explanations = new Map(); // by class index, of the chosen method
let work = new AbortController(); // of whatever is under way for this picture
let run; // the explanation that is under way, its AbortController

class Problem extends Error {
  constructor(detail, { passing = false } = {}) {
    super(detail);
    this.passing = passing; // whether trying again may help
  }
}

// --- the server

async function post(route, options, signal) {
  const body = new FormData();
  body.set("image", file);
  const url = new URL(`v1/${route}?${new URLSearchParams(options)}`, document.baseURI);
  let response;
  try {
    response = await fetch(url, { method: "POST", body, signal });
  } catch {
    signal.throwIfAborted();
    const detail = "It could not be sent: the server is out of reach, or the file cannot be read or is too large.";
    throw new Problem(detail, { passing: true });
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  signal.throwIfAborted();
  const detail = problem.detail ?? `The server answered with status ${response.status}.`;
  throw new Problem(detail, { passing: response.status >= 500 });
}

async function explain(targets, signal) {
  const drawn = Object.entries({ format: "json", view: "layer", alpha: 1 });
  const options = [...drawn, ...targets.map((target) => ["target", target]), ...chosenOptions()];
  const explained = await (await post("explain", options, signal)).json();
  signal.throwIfAborted();
  for (const explanation of explained.explanations) explanations.set(explanation.target.index, explanation);
  showFacts(explained);
  return explained.explanations[0].target;
}

// The left half of the view "side_by_side" is the picture as the server decodes it.
async function pictureFromServer({ width, height }, signal) {
  const response = await post("explain", { format: "jpeg", view: "side_by_side" }, signal);
  const [w, h] = fitted(width, height);
  return createImageBitmap(await response.blob(), 0, 0, w, h);
}

// --- one picture, from choice to answer

async function look(given) {
  work.abort();
  work = new AbortController();
  const { signal } = work;
  file = given;
  clear();
  try {
    if (file.size === 0) throw new Problem("The file is empty.");
    const here = DRAWN_HERE.has(file.type) ? await createImageBitmap(file).catch(() => null) : null;
    signal.throwIfAborted();
    const shown = here && draw(here);
    answer = await (await post("predict", { top: TOP }, signal)).json();
    const { width, height } = answer.image;
    if (shown?.width !== width || shown?.height !== height) {
      const drawn = await pictureFromServer(answer.image, signal);
      signal.throwIfAborted();
      draw(drawn);
    }
    showAnswer();
  } catch (error) {
    if (signal.aborted) return;
    setState("empty");
    $("verdict").textContent = "";
    complain(`${file.name} could not be explained.`, error);
  }
}

function clear() {
  stop();
  setState("busy");
  $("problem").hidden = true;
  $("frame").classList.remove("drawn");
  $("heat").hidden = true;
  $("verdict").textContent = `Looking at ${file.name}…`;
  $("facts").textContent = "";
  rows = [];
  explanations.clear();
  $("classes").replaceChildren();
}

function setState(state) {
  app.dataset.state = state;
  app.setAttribute("aria-busy", String(state === "busy"));
}

function complain(title, error) {
  $("problem-title").textContent = title;
  $("problem-detail").textContent = inWords(error);
  $("again").hidden = !error.passing;
  $("problem").hidden = false;
  $("problem").scrollIntoView({ block: "nearest" });
}

function inWords(error) {
  if (error instanceof Problem) return error.message;
  console.error(error);
  return "Something in this page went wrong; please reload it.";
}

// The size that the server draws a picture of this size in.
function fitted(width, height) {
  const scale = Math.min(1, MAX_SIDE_PX / Math.max(width, height));
  return [width, height].map((side) => Math.max(1, Math.round(side * scale)));
}

// Draws and gives up the bitmap; returns the size that it had.
function draw(bitmap) {
  const { width, height } = bitmap;
  const canvas = $("picture");
  [canvas.width, canvas.height] = fitted(width, height);
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // the server lays transparent pictures on white
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  $("frame").style.setProperty("--ratio", width / height);
  $("frame").classList.add("drawn");
  bitmap.close();
  return { width, height };
}

// --- the answer

function showAnswer() {
  const { image, predictions } = answer;
  const { seen } = image;
  const margin = Math.max(seen.left, seen.top, image.width - seen.right, image.height - seen.bottom) >= 0.5;
  $("margin").hidden = !margin;
  const [best] = predictions;
  $("verdict").replaceChildren("Best guess: ", element("strong", {}, best.label), `, ${percent(best.probability)}`);
  $("label").value = "";
  $("label-problem").hidden = true;
  setState("done");
  predictions.forEach(addRow);
  select(rows[0]);
}

function showFacts({ model, method, layers, timings_s: timings }) {
  const seconds = Object.values(timings).reduce((sum, part) => sum + part, 0);
  const untrained = model.weights === "random" ? " This model has made-up weights: its answers mean nothing." : "";
  const time = seconds > 0 ? `${seconds.toFixed(2)}\u00a0s` : "answered from memory";
  const where = layers.length ? `, layer ${layers.join(" and ")}` : "";
  $("facts").textContent = `Model ${model.name}, method ${method.name}${where}, ${time}.${untrained}`;
}

function addRow(target) {
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
  row.target = target;
  row.addEventListener("click", () => select(row));
  rows.push(row);
  $("classes").append(element("li", {}, row));
  return row;
}

function select(row) {
  chosen = row;
  rows.forEach((other) => other.setAttribute("aria-pressed", String(other === row)));
  show();
}

// Shows the heat for the chosen class, after having it made where there is none yet.
async function show() {
  const { target } = chosen;
  const method = chosenMethod();
  const known = method?.class_specific === false ? [...explanations.values()][0] : explanations.get(target.index);
  if (known) return showHeat(known, target, method);
  const targets = wanted(method);
  if (run?.targets === String(targets)) return undefined;
  try {
    return (await explainNow(targets)) && show();
  } catch (error) {
    return say("failed", inWords(error), error.passing ? "Try again" : "");
  }
}

// The classes to explain with the chosen one: the best ones where they cost little more than one.
function wanted(method) {
  const best = rows.slice(0, TOP);
  const cheap = !method || method.cost_class === "low" || !method.uses_gradients;
  return (cheap && best.includes(chosen) ? best : [chosen]).map(({ target }) => target.index);
}

function showHeat({ map, picture }, target, method) {
  $("heat").src = `data:${picture.media_type};base64,${picture.base64}`;
  $("heat").hidden = false;
  $("picture").setAttribute("aria-label", `${file.name}, with the heat for ${target.label} over it`);
  $("note").textContent = inNote(map, target.label, method);
  $("care").textContent = method && fails(method) ? `Take care: this method ${lowered(method.sanity)}` : "";
  $("strong").textContent = method?.class_specific === false ? "strong" : "strong evidence";
  stop();
}

function inNote(map, label, method) {
  const size = `${map.width} by ${map.height} cells laid over the picture`;
  if (method?.class_specific === false) return `This method asks for no class, the map is the same for all. It has ${size}.`;
  if (map.no_positive_evidence) return `Nothing in this map speaks for ${label}, so there is no heat to show.`;
  // Gradients at the input say how much a pixel counts, not always in which direction.
  const bright = method?.uses_gradients && !method.max_layers ? "count most for" : "speak for";
  return `Bright areas ${bright} ${label}. The map has ${size}, and each class has its own scale.`;
}

const lowered = (sentence) => sentence[0].toLowerCase() + sentence.slice(1);

function percent(probability) {
  if (probability > 0 && probability < 0.001) return "< 0.1%";
  if (probability < 1 && probability > 0.999) return "> 99.9%";
  return `${(probability * 100).toFixed(1)}%`;
}

// --- an explanation that is under way

// Explains these classes now, and nothing else any more; returns the first, or undefined if this was stopped.
async function explainNow(targets) {
  stop();
  run = Object.assign(new AbortController(), { targets: String(targets) });
  const { signal } = run;
  const started = Date.now();
  $("heat").hidden = true;
  $("facts").textContent = "";
  say("running", `${chosenMethod()?.name ?? "The model"} is at work…`, "Stop");
  const second = setInterval(() => {
    $("run-seconds").textContent = `${Math.round((Date.now() - started) / 1000)} s`;
  }, 1000);
  try {
    const explained = await explain(targets, signal);
    stop();
    return explained;
  } catch (error) {
    if (signal.aborted) return undefined;
    stop();
    throw error;
  } finally {
    clearInterval(second);
  }
}

function stop() {
  run?.abort();
  run = undefined;
  app.classList.remove("running");
  $("run").hidden = true;
  $("note").hidden = false;
}

function say(state, text, button) {
  app.classList.toggle("running", state === "running");
  $("run").dataset.state = state;
  $("run-text").textContent = text;
  $("run-seconds").textContent = "";
  $("run-button").textContent = button;
  $("run-button").hidden = !button;
  $("run").hidden = false;
  $("note").hidden = true;
}

$("run-button").addEventListener("click", () => {
  if (!run) return show();
  stop();
  return say("stopped", "Stopped.", "Go on");
});

// --- another class, another method

async function explainOther() {
  $("label-problem").hidden = true;
  try {
    const target = await explainNow([$("label").value.trim()]);
    if (!target) return;
    select(rows.find((row) => row.target.index === target.index) ?? addRow(target));
    $("label").value = "";
  } catch (error) {
    $("label-problem").textContent = inWords(error);
    $("label-problem").hidden = false;
    show();
  }
}

// With the method, the parameters and the layers that are chosen now.
function explainOtherwise() {
  stop();
  explanations.clear();
  show();
}

async function suggest() {
  const query = $("label").value.trim();
  const labels = new URL(`v1/models/${encodeURIComponent(answer.model.name)}/labels`, document.baseURI);
  const response = await fetch(`${labels}?${new URLSearchParams({ query, limit: 20 })}`).catch(() => null);
  if (!response?.ok || query !== $("label").value.trim()) return;
  const found = await response.json();
  $("labels").replaceChildren(...found.labels.map(({ label }) => element("option", { value: label })));
}

// --- the ways in

function take(transfer) {
  const [first] = transfer.files;
  if (first) look(first);
  return Boolean(first);
}

$("file").addEventListener("change", ({ target }) => {
  take(target);
  target.value = ""; // so that the same file can be chosen again
});

$("sample").addEventListener("click", async () => {
  const response = await fetch(SAMPLE).catch(() => null);
  if (!response?.ok) return complain("The sample picture could not be fetched.", new Problem("The server is out of reach."));
  return look(new File([await response.blob()], "cat.jpg", { type: "image/jpeg" }));
});

addEventListener("paste", (event) => {
  if (take(event.clipboardData)) event.preventDefault();
});

addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("dragging");
});
addEventListener("dragleave", ({ relatedTarget }) => {
  if (!relatedTarget) document.body.classList.remove("dragging");
});
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dragging");
  if (take(event.dataTransfer)) return;
  complain("That was no file.", new Problem("Save the picture first, or copy it and paste it here."));
});

$("again").addEventListener("click", () => look(file));

$("classes").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const next = rows[rows.indexOf(document.activeElement) + step];
  if (!next) return;
  event.preventDefault();
  next.focus();
  select(next);
});

$("other").addEventListener("submit", (event) => {
  event.preventDefault();
  explainOther();
});
$("label").addEventListener("input", suggest);

$("fine-tuning").addEventListener("toggle", () => offerLayers(answer.model.name));
$("fine").addEventListener("submit", () => $("stage").scrollIntoView({ block: "nearest" }));
offerMethods(explainOtherwise);

function setOpacity() {
  const { value } = $("opacity");
  $("heat").style.opacity = value / 100;
  $("opacity-value").textContent = `${value}%`;
}
$("opacity").addEventListener("input", setOpacity);
setOpacity();
