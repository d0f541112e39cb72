// The page: a picture goes in; the most probable classes come out, and for each of them a layer of heat.

const MAX_SIDE_PX = 1024; // the server's default for max_side
const TOP = 5;
// What browsers turn upright as the server does; other formats are shown as the server decodes them.
const DRAWN_HERE = new Set(["image/jpeg", "image/png", "image/gif", "image/bmp"]);
const EXPLAIN = new URL("v1/explain", document.baseURI);
const SAMPLE = new URL("cat.jpg", import.meta.url);

const $ = (id) => document.getElementById(id);
const app = $("app");

let file; // the picture on the page
let answer; // the server's answer to it
let rows = []; // the buttons of the classes, in order
let work = new AbortController(); // of whatever is under way for this picture

class Problem extends Error {
  constructor(detail, { passing = false } = {}) {
    super(detail);
    this.passing = passing; // whether trying again may help
  }
}

// --- the server

async function post(options, signal) {
  const body = new FormData();
  body.set("image", file);
  let response;
  try {
    response = await fetch(`${EXPLAIN}?${new URLSearchParams(options)}`, { method: "POST", body, signal });
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

async function explain(target, signal) {
  const response = await post({ format: "json", view: "layer", alpha: 1, target }, signal);
  return response.json();
}

// The left half of the view "side_by_side" is the picture as the server decodes it.
async function pictureFromServer({ width, height }, signal) {
  const response = await post({ format: "jpeg", view: "side_by_side" }, signal);
  return createImageBitmap(await response.blob(), 0, 0, width, height);
}

// --- one picture, from choice to answer

async function look(chosen) {
  work.abort();
  work = new AbortController();
  const { signal } = work;
  file = chosen;
  clear();
  try {
    if (file.size === 0) throw new Problem("The file is empty.");
    const here = DRAWN_HERE.has(file.type) ? await createImageBitmap(file).catch(() => null) : null;
    signal.throwIfAborted();
    const shown = here && draw(here);
    answer = await explain(`top${TOP}`, signal);
    const { width, height } = answer.image;
    if (shown?.width !== width || shown?.height !== height) {
      const drawn = await pictureFromServer(answer.explanations[0].picture, signal);
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
  setState("busy");
  $("problem").hidden = true;
  $("frame").classList.remove("drawn");
  $("heat").hidden = true;
  $("verdict").textContent = `Looking at ${file.name}…`;
  rows = [];
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

// Draws and gives up the bitmap; returns the size that it had.
function draw(bitmap) {
  const { width, height } = bitmap;
  const scale = Math.min(1, MAX_SIDE_PX / Math.max(width, height));
  const canvas = $("picture");
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
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
  const { image, model, method, layers, explanations, timings_s: timings } = answer;
  const { seen } = image;
  const margin = Math.max(seen.left, seen.top, image.width - seen.right, image.height - seen.bottom) >= 0.5;
  $("margin").hidden = !margin;
  const seconds = Object.values(timings).reduce((sum, part) => sum + part, 0);
  const untrained = model.weights === "random" ? " This model has made-up weights: its answers mean nothing." : "";
  $("facts").textContent =
    `Model ${model.name}, method ${method.name}, layer ${layers.join(", ") || "none"}, ${seconds.toFixed(2)} s.${untrained}`;
  const best = explanations[0].target;
  $("verdict").replaceChildren("Best guess: ", element("strong", {}, best.label), `, ${percent(best.probability)}`);
  $("label").value = "";
  $("label-problem").hidden = true;
  setState("done");
  explanations.forEach(addRow);
  select(0);
}

function addRow(explanation) {
  const { label, probability } = explanation.target;
  const bar = element("span", { className: "bar" });
  bar.style.width = `${probability * 100}%`;
  const row = element(
    "button",
    { type: "button", className: "class" },
    element("span", { className: "label" }, label),
    element("span", { className: "probability" }, percent(probability)),
    element("span", { className: "track" }, bar),
  );
  row.explanation = explanation;
  row.addEventListener("click", () => select(rows.indexOf(row)));
  rows.push(row);
  $("classes").append(element("li", {}, row));
}

function select(chosen) {
  rows.forEach((row, index) => row.setAttribute("aria-pressed", String(index === chosen)));
  const { target, map, picture } = rows[chosen].explanation;
  $("heat").src = `data:${picture.media_type};base64,${picture.base64}`;
  $("heat").hidden = false;
  $("picture").setAttribute("aria-label", `${file.name}, with the heat for ${target.label} over it`);
  $("note").textContent = map.no_positive_evidence
    ? `In this layer nothing speaks for ${target.label}, so there is no heat to show.`
    : `Bright areas speak for ${target.label}. The map is coarse, ${map.width} by ${map.height} cells laid over the ` +
      "picture, and each class has its own scale.";
}

function percent(probability) {
  if (probability > 0 && probability < 0.001) return "< 0.1%";
  if (probability < 1 && probability > 0.999) return "> 99.9%";
  return `${(probability * 100).toFixed(1)}%`;
}

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// --- another class

async function explainOther() {
  const wanted = $("label").value.trim();
  const { signal } = work;
  $("label-problem").hidden = true;
  try {
    const other = await explain(wanted, signal);
    const [explanation] = other.explanations;
    const listed = rows.findIndex((row) => row.explanation.target.index === explanation.target.index);
    if (listed < 0) addRow(explanation);
    select(listed < 0 ? rows.length - 1 : listed);
    $("label").value = "";
  } catch (error) {
    if (signal.aborted) return;
    $("label-problem").textContent = inWords(error);
    $("label-problem").hidden = false;
  }
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
  const next = rows.indexOf(document.activeElement) + step;
  if (!rows[next]) return;
  event.preventDefault();
  rows[next].focus();
  select(next);
});

$("other").addEventListener("submit", (event) => {
  event.preventDefault();
  explainOther();
});
$("label").addEventListener("input", suggest);

function setOpacity() {
  const { value } = $("opacity");
  $("heat").style.opacity = value / 100;
  $("opacity-value").textContent = `${value}%`;
}
$("opacity").addEventListener("input", setOpacity);
setOpacity();
