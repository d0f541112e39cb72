// Takes the view out of the page: as a command, a program, a tag or a link to copy, and as files.

import { $ } from "../dom.js";
import { modelOption } from "./model.js";
import { linkTo } from "./permalink.js";
import { ask, call, content, inWords } from "../server.js";
import { curl, heatOf, python } from "./snippets.js";
import { opacity, shownView } from "./stage.js";
import { question } from "./classes.js";
import { post, state } from "./state.js";

const SENT = "The picture is on this server now, and whoever has this sees it, until";
const DELETE = "Delete the picture from the server";
const WITHDRAW = "Withdraw the tag";

let embedded; // {token, tags} of the tags that are there
let closed; // called when the picture of a link is deleted
let work = new AbortController();

// What is asked, as options; and how it is drawn, where that is not as the server draws it by itself.
const asked = () => [...modelOption(), ...question(), ...state.applied];

function drawn() {
  const view = shownView() === "heat" ? [["view", "heatmap"]] : [];
  return opacity() === 0.7 ? view : [...view, ["alpha", opacity()]];
}

// What leaves the page as a picture, in words: never the original alone.
const what = () => (shownView() === "heat" ? "the heat alone" : "the overlay");

const MAKERS = {
  curl: makeCommand,
  python: makeProgram,
  embed: makeTags,
  link: makeLink,
};

// Calls `deleted` when the picture of a link, which is nowhere else, is deleted.
export function offerShare(deleted) {
  closed = deleted;
  for (const [kind, make] of Object.entries(MAKERS)) $(`copy-${kind}`).addEventListener("click", () => attempt(make));
  for (const button of $("downloads").querySelectorAll("button")) {
    button.addEventListener("click", () => attempt((signal) => download(button.dataset.format, signal)));
  }
  for (const id of ["opacity", "show"]) $(id).addEventListener("change", resetShare);
  $("tag").addEventListener("change", showTag);
  $("copy").addEventListener("click", copy);
  $("unkeep").addEventListener("click", () => attempt(embedded ? withdraw : unkeep));
}

// What was made is of another view now.
export function resetShare() {
  work.abort();
  if ($("made").contains(document.activeElement)) $("share").querySelector("summary").focus();
  embedded = undefined;
  $("made").hidden = true;
  $("share-problem").hidden = true;
  $("download-words").textContent = `Download ${what()}:`;
}

async function attempt(make) {
  if (![unkeep, withdraw].includes(make)) resetShare(); // those are about what is there
  work.abort();
  $("share-problem").hidden = true;
  work = new AbortController();
  const { signal } = work;
  try {
    await make(signal);
  } catch (error) {
    if (signal.aborted) return;
    $("share-problem").textContent = inWords(error);
    $("share-problem").hidden = false;
  }
}

function makeCommand() {
  const where = state.source.file ? "For a shell, in the folder of the picture." : "For a shell; the server knows the picture by its id.";
  showText(curl(state.source, [...asked(), ...drawn()]), `${where} It saves ${what()}.`);
}

function makeProgram() {
  const where = state.source.file ? "" : " It fetches the picture from this server first.";
  const source = { ...state.source, ...state.answer.image };
  showText(python(source, [...asked(), ...drawn()]), `Needs the package heatlens.${where} It saves ${what()}.`);
}

// `undo`: the words for taking it from the server again.
function showText(text, words, undo = "") {
  $("snippet").value = text;
  $("snippet").rows = Math.min(text.split("\n").length + Math.floor(text.length / 80), 8);
  $("snippet-words").textContent = words;
  $("tag").hidden = !embedded;
  $("unkeep").textContent = undo;
  $("unkeep").hidden = !undo;
  $("snippet").hidden = $("copy").hidden = !text;
  $("copied").textContent = "";
  $("made").hidden = false;
}

async function makeLink(signal) {
  const { source } = state;
  if (!source.id) {
    Object.assign(source, await content(await post("images", [], { signal }), "json", signal));
  } else if (!source.expires_at) {
    Object.assign(source, await ask(`v1/images/${encodeURIComponent(source.id)}`, { signal }));
  }
  const view = [["alpha", opacity()], ["show", shownView()]];
  showText(linkTo(source.id, [...asked(), ...view]), `${SENT} ${inTime(source.expires_at)}.`, DELETE);
}

async function makeTags(signal) {
  const response = await post("embed-links", [...asked(), ...drawn().filter(([name]) => name === "alpha")], { signal });
  embedded = await content(response, "json", signal);
  showTag();
}

function showTag() {
  const { tags, expires_at: end } = embedded;
  const frame = $("tag").value === "frame" ? " In pages of other sites, the operator has to allow it." : "";
  showText(tags[$("tag").value], `It shows the overlay. ${SENT} ${inTime(end)}.${frame}`, WITHDRAW);
}

async function withdraw(signal) {
  await call(`v1/embed-links/${encodeURIComponent(embedded.token)}`, { method: "DELETE", signal });
  embedded = undefined;
  showText("", "The tag is withdrawn: it shows nothing any more.");
  $("copy-embed").focus();
}

async function unkeep(signal) {
  const { source } = state;
  await call(`v1/images/${encodeURIComponent(source.id)}`, { method: "DELETE", signal });
  if (!source.file) return closed();
  Object.assign(source, { id: undefined, expires_at: undefined });
  showText("", "The picture is deleted from the server: the link opens nothing any more.");
  $("copy-link").focus();
  return undefined;
}

const inTime = (moment) => new Date(moment).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });

// Without https, browsers let no page write to the clipboard; then the text is selected for the user's own keys.
async function copy() {
  $("snippet").select();
  try {
    await navigator.clipboard.writeText($("snippet").value);
    $("copied").textContent = "Copied.";
  } catch {
    $("copied").textContent = "Selected: press Ctrl+C to copy it.";
  }
}

async function download(format, signal) {
  const response = await post("explain", [["format", format], ...asked(), ...drawn()], { signal });
  const file = URL.createObjectURL(await content(response, "blob", signal));
  const name = heatOf(state.source.file?.name ?? "picture.jpg", format === "jpeg" ? "jpg" : format);
  Object.assign(document.createElement("a"), { href: file, download: name }).click();
  URL.revokeObjectURL(file);
}
