// The page of models: which there are, and what is inside of the one that stands in the fragment.

import { $, element } from "../dom.js";
import { showDiagnostics } from "./diagnose.js";
import { showLayers } from "./layers.js";
import { ask, inWords, onceKeyed } from "../server.js";

const STATES = { not_loaded: "not loaded", loading: "being loaded", ready: "ready", failed: "could not be loaded", closed: "closing" };
const WEIGHTS = { present: "trained", missing: "not here", random: "made up, not trained" };
const VERDICTS = { passes: "passes", fails: "fails", undecided: "undecided" };

let work = new AbortController(); // of the model that is open
let models = [];

const wanted = () => new URLSearchParams(location.hash.slice(1)).get("model");
const open = () => wanted() ?? models.find((model) => model.default)?.name;

async function list() {
  try {
    ({ models } = await ask("v1/models"));
    const missing = models.filter(({ weights }) => weights === "missing");
    const here = models.filter(({ weights }) => weights !== "missing");
    $("list").replaceChildren(...here.map(entry));
    $("missing").replaceChildren(...missing.map(entry));
    $("more-count").textContent = `${missing.length} more`;
    $("more").hidden = missing.length === 0;
    $("list-problem").hidden = true;
    mark();
    return true;
  } catch (error) {
    $("list-problem").textContent = inWords(error);
    $("list-problem").hidden = false;
    onceKeyed(begin);
    return false;
  }
}

function entry(model) {
  const link = element("a", { href: `#${new URLSearchParams({ model: model.name })}` }, model.name);
  return element("li", {}, link, element("span", { className: "small" }, inShort(model)));
}

function inShort({ default: first, state, weights, device, size_bytes: bytes }) {
  if (weights === "missing") return "";
  const where = device ? `${STATES[state]} on ${device}, ${megabytes(bytes)}` : STATES[state];
  return [first ? "default" : "", where, weights === "random" ? "made-up weights" : ""].filter(Boolean).join(", ");
}

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;

function mark() {
  for (const link of document.querySelectorAll(".list a")) {
    const is = link.textContent === open();
    if (is) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    if (is && $("missing").contains(link)) $("more").open = true;
  }
}

async function show() {
  work.abort();
  work = new AbortController();
  const { signal } = work;
  const name = open();
  mark();
  if (!name) return;
  $("model-title").textContent = name;
  $("model-description").textContent = "";
  $("model-problem").hidden = true;
  $("facts").replaceChildren();
  $("layers-part").hidden = $("look").hidden = true;
  try {
    await describe(name, signal);
  } catch (error) {
    if (signal.aborted) return;
    $("model-problem").textContent = inWords(error);
    $("model-problem").hidden = false;
  }
}

async function describe(name, signal) {
  const model = await detail(name, signal);
  if (model.weights === "missing") return;
  $("layers-part").hidden = $("look").hidden = false;
  showDiagnostics(model, signal);
  const loaded = async () => {
    list();
    await detail(name, signal);
  };
  await showLayers(model, { signal, loaded });
}

async function detail(name, signal) {
  const model = await ask(`v1/models/${encodeURI(name)}`, { signal });
  $("model-description").textContent = model.description;
  const rows = {
    "State": model.device ? `${STATES[model.state]} on ${model.device}` : STATES[model.state],
    "Weights": WEIGHTS[model.weights],
    "Memory": model.size_bytes && megabytes(model.size_bytes),
    "Architecture": model.architecture,
    "Input": model.input_size && `${model.input_size.join(" by ")} pixels, ${model.dtype}`,
    "Classes": model.classes?.toLocaleString("en"),
    "Scores": model.scores,
    "Default layer": model.default_layer,
    "Licence": model.licence,
    "SHA-256 of the weights": model.weights_sha256,
    ...sane(model.sanity),
  };
  const told = Object.entries(rows).filter(([, value]) => value);
  $("facts").replaceChildren(...told.flatMap(([term, value]) => [element("dt", {}, term), element("dd", {}, value)]));
  return model;
}

// Whether each method's maps change when this model's weights are made up, as was measured.
const sane = (sanity) => Object.fromEntries(
  Object.entries(sanity).map(([method, { verdict, words }]) => [`Sanity of ${method}`, `${VERDICTS[verdict]}: ${words}`]),
);

addEventListener("hashchange", async () => {
  await show();
  $("model-title").focus();
});

async function begin() {
  if (await list()) await show();
}

await begin();
