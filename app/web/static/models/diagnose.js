// What happens inside of a model with a picture: how the gradient comes back, and what the layers answer.

import { $, element } from "../dom.js";
import { figure, fillTable, share } from "./table.js";
import { Problem, ask, inWords, objectUrl } from "../server.js";
import { offerFiles, sample } from "../ways.js";

const VERDICTS = {
  ok: "The gradient reaches every layer, and nothing stands out.",
  vanishing: "The gradient vanishes: layers that run early hardly hear from the answer.",
  exploding: "The gradient explodes on its way back.",
  dead: "There are dead layers: they answer nothing but zeros.",
  disconnected: "There are layers that the gradient does not reach.",
  non_finite: "There are numbers that are not finite.",
};
const MARKS = { vanishing: "vanishing", exploding: "exploding", dead: "dead", disconnected: "no gradient", non_finite: "not finite" };
const CHARTS = ["flow-chart", "activations-chart"];

let model;
let opened; // the signal of the model that is open
let work = new AbortController(); // of the picture that is on its way

// Makes ready for pictures for a model.
export function showDiagnostics(which, signal) {
  model = which;
  opened = signal;
  clear();
}

function clear() {
  work.abort();
  $("flow").hidden = $("activations").hidden = $("look-problem").hidden = true;
  $("look-words").textContent = "";
  for (const id of CHARTS) {
    URL.revokeObjectURL($(id).src);
    $(id).removeAttribute("src");
  }
}

async function look(file) {
  clear();
  work = new AbortController();
  const signal = AbortSignal.any([work.signal, opened]);
  try {
    if (file.size === 0) throw new Problem("The file is empty.");
    say(`Sending ${file.name} through ${model.name}…`);
    const flow = await post("gradient-flow", file, signal);
    showFlow(flow);
    await draw("flow-chart", "gradient-flow", file, signal);
    say("Looking at what the layers answer…");
    const activations = await post("activations", file, signal);
    showActivations(activations);
    await draw("activations-chart", "activations", file, signal);
    say(`${file.name}, ${model.name}.`);
  } catch (error) {
    if (signal.aborted) return;
    say("");
    complain(`${file.name} could not be looked at. ${inWords(error)}`);
  }
}

const say = (words) => ($("look-words").textContent = words);

function complain(words) {
  $("look-problem").textContent = words;
  $("look-problem").hidden = false;
}

function request(file, format, signal) {
  const body = new FormData();
  body.set("image", file);
  return { method: "POST", body, signal, waiting: say, options: { model: model.name, format } };
}

const post = (route, file, signal) => ask(`v1/diagnostics/${route}`, request(file, "json", signal));

async function draw(id, route, file, signal) {
  $(id).src = await objectUrl(`v1/diagnostics/${route}`, request(file, "svg", signal));
}

// --- the gradient

function showFlow({ layers, verdict }) {
  const words = VERDICTS[verdict.kind];
  const reasons = [...verdict.findings.map(({ reason }) => reason), ...verdict.notes];
  $("flow-verdict").textContent = words;
  $("flow-verdict").classList.toggle("wrong", verdict.kind !== "ok");
  $("flow-reasons").replaceChildren(...reasons.map((reason) => element("li", {}, reason)));
  $("flow-chart").alt = `Gradient at each layer, with a logarithmic scale. ${words} The table below has the numbers.`;
  const marks = new Map(verdict.findings.flatMap(({ kind, layers: of }) => of.map((layer) => [layer, MARKS[kind] ?? ""])));
  fillTable($("flow-table"), {
    caption: "The gradient, layer by layer",
    marked: ({ name }) => marks.get(name) ?? "",
    rows: layers.map((layer, place) => ({ ...layer, place })),
    columns: [
      { title: "Layer", value: ({ name }) => name },
      { title: "Runs as", value: ({ place }) => place + 1 },
      { title: "Type", value: ({ type }) => type },
      { title: "Gradient, L2", value: (layer) => layer.grad_output_norm, text: figure },
      { title: "Of the next layer's", value: ({ decay }) => decay, text: (value) => `${figure(value)} ×` },
      { title: "Zeros", value: (layer) => layer.zero_fraction, text: share },
      { title: "Not finite", value: ({ nan, inf }) => nan + inf },
    ],
  });
  $("flow").hidden = false;
}

// --- the activations

function showActivations({ layers }) {
  const dead = layers.filter(({ dead_channels: channels }) => channels > 0).length;
  const broken = layers.filter(({ nan, inf }) => nan + inf > 0).length;
  const found = [
    dead ? `${dead} of ${layers.length} layers have channels that stay zero with this picture.` : "No layer has a channel that stays zero.",
    broken ? `${broken} have numbers that are not finite.` : "All numbers are finite.",
  ].join(" ");
  $("activations-words").textContent = found;
  $("activations-chart").alt = `What each layer answers. ${found} The table below has the numbers.`;
  fillTable($("activations-table"), {
    caption: "What each layer answers",
    marked: ({ nan, inf }) => (nan + inf ? "not finite" : ""),
    rows: layers.map((layer, place) => ({ ...layer, place })),
    columns: [
      { title: "Layer", value: ({ name }) => name },
      { title: "Runs as", value: ({ place }) => place + 1 },
      { title: "Type", value: ({ type }) => type },
      { title: "Shape", value: ({ shape }) => shape && shape.slice(1).join(" × ") },
      { title: "Mean", value: ({ mean }) => mean, text: figure },
      { title: "Deviation", value: ({ std }) => std, text: figure },
      { title: "Least", value: ({ min }) => min, text: figure },
      { title: "Most", value: ({ max }) => max, text: figure },
      { title: "Zeros", value: (layer) => layer.zero_fraction, text: share },
      { title: "Saturated", value: (layer) => layer.saturated_fraction, text: share },
      { title: "Dead channels", value: (layer) => layer.dead_channels },
    ],
  });
  $("activations").hidden = false;
}

// --- the ways in

function take([file]) {
  if (!$("look").hidden) look(file);
}

offerFiles($("file"), take, () => complain("That was no file. Save the picture first, or copy it and paste it here."));
$("sample").addEventListener("click", async () => {
  try {
    take([await sample()]);
  } catch (error) {
    complain(`The sample picture could not be fetched: ${inWords(error)}`);
  }
});
