// One picture of a job, large, with what was found; the arrow keys go on to the next one.

import { $, element, percent } from "../dom.js";
import { ask, inWords, objectUrl } from "../server.js";

const dialog = $("item");
let walk; // through which pictures: job, place, last, fetchItem, left
let work = new AbortController();
let drawing = new AbortController(); // the picture that is on its way
let drawn; // address of the picture that is shown
let item; // that is shown, with all that is known of it

// Opens the picture at a place; `left` is called with the place at which people leave.
export function goThrough(pictures) {
  walk = pictures;
  dialog.showModal();
  show();
}

// Closes the dialog because its pictures go.
export function closeItem() {
  if (walk) walk.left = () => {};
  dialog.close();
}

// Shows a picture anew if it is the one that is open: something came of it.
export function refreshItem(number) {
  if (dialog.open && item?.number === number) show();
}

async function show() {
  work.abort();
  work = new AbortController();
  const { signal } = work;
  $("item-place").textContent = `${(walk.place + 1).toLocaleString("en")} of ${(walk.last() + 1).toLocaleString("en")}`;
  $("item-before").disabled = walk.place <= 0;
  $("item-after").disabled = walk.place >= walk.last();
  try {
    const { number } = await walk.fetchItem(walk.place);
    signal.throwIfAborted();
    item = await ask(`v1/jobs/${walk.job.id}/items/${number}`, { signal });
    tell();
  } catch (error) {
    if (!signal.aborted) showNothing(inWords(error));
  }
}

// What was there is of another picture.
function showNothing(detail) {
  item = undefined;
  $("item-title").textContent = `Picture ${(walk.place + 1).toLocaleString("en")}`;
  $("item-waiting").hidden = true;
  for (const part of document.querySelectorAll(".item-facts > *")) part.hidden = true;
  drop();
  fail(detail);
}

function tell() {
  const { name, status, result, error } = item;
  $("item-title").textContent = name;
  fail(error?.detail);
  $("item-waiting").textContent = { waiting: "It waits for its turn.", cancelled: "The job was cancelled before its turn." }[status] ?? "";
  $("item-waiting").hidden = status !== "waiting" && status !== "cancelled";
  for (const part of document.querySelectorAll(".item-facts > *")) part.hidden = !result;
  drop();
  if (!result) return;
  const { explanations, predictions, model, method, layers, image } = result;
  $("item-targets").replaceChildren(...explanations.map(({ target }, place) => choice(target.label, place)));
  $("item-targets").hidden = explanations.length < 2;
  $("item-classes").replaceChildren(...predictions.map(bar));
  const where = layers.length ? `, layer ${layers.join(" and ")}` : "";
  $("item-facts").textContent = `Model ${model.name}, method ${method.name}${where}; ${image.width} by ${image.height} pixels.`;
  choose(0);
}

function choice(label, place) {
  return element("button", { type: "button", className: "button slight", onclick: () => choose(place) }, label);
}

function choose(place) {
  const { target, versus, map, faithfulness, stability } = item.result.explanations[place];
  [...$("item-targets").children].forEach((button, other) => button.setAttribute("aria-pressed", String(other === place)));
  const than = versus ? `, rather than ${versus.label}` : "";
  $("item-verdict").replaceChildren(element("strong", {}, target.label), `, ${percent(target.probability)}${than}`);
  $("item-note").textContent = map.no_positive_evidence
    ? `Nothing in this map speaks for ${target.label}, so there is no heat to show.`
    : "";
  $("item-trust").textContent = [faithfulness, stability].map((measured) => measured?.words ?? "").join(" ").trim();
  if (item.links.overlay) draw(place);
}

// Shows the picture of a class in the place of the one before.
async function draw(place) {
  drawing.abort();
  drawing = new AbortController();
  const signal = AbortSignal.any([work.signal, drawing.signal]);
  const { target, artifacts } = item.result.explanations[place];
  const alt = `${item.name}, with the heat for ${target.label} over it`;
  try {
    const picture = await objectUrl(item.links.overlay, { options: { target: place }, signal });
    if (signal.aborted) return URL.revokeObjectURL(picture);
    drop();
    drawn = picture;
    Object.assign($("item-picture"), { src: picture, alt, hidden: false });
    Object.assign($("item-download"), { href: picture, download: artifacts.overlay, hidden: false });
  } catch (error) {
    if (signal.aborted) return undefined;
    drop(); // which is of another class
    fail(inWords(error));
  }
  return undefined;
}

function drop() {
  for (const id of ["item-picture", "item-download"]) $(id).hidden = true;
  $("item-picture").removeAttribute("src");
  $("item-download").removeAttribute("href");
  URL.revokeObjectURL(drawn);
}

function bar({ label, probability }) {
  const filled = element("span", { className: "filled" });
  filled.style.width = `${probability * 100}%`;
  const words = element("span", { className: "bar-words" }, element("span", {}, label), element("span", {}, percent(probability)));
  return element("li", {}, words, element("span", { className: "whole" }, filled));
}

function fail(detail) {
  $("item-error").textContent = detail ?? "";
  $("item-error").hidden = !detail;
}

function go(step) {
  const place = walk.place + step;
  if (place < 0 || place > walk.last()) return;
  walk.place = place;
  show();
  // What has the focus may be about to go: a class of the picture before, or a button that leads no further.
  const { activeElement: holder } = document;
  if (holder.disabled || $("item-targets").contains(holder)) $("item-title").focus();
}

$("item-before").addEventListener("click", () => go(-1));
$("item-after").addEventListener("click", () => go(1));
$("item-close").addEventListener("click", () => dialog.close());
$("item-picture").addEventListener("error", () => {
  if (!$("item-picture").hidden) fail("The picture cannot be shown: the server does not have it any more.");
});
document.addEventListener("keydown", (event) => {
  const step = dialog.open && { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step || $("access").open || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  go(step);
});
dialog.addEventListener("close", () => {
  work.abort();
  drop();
  walk.left(walk.place);
});
