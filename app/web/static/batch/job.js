// The job that is open: how far it is, and its contact sheet with filters.

import { $, element } from "../dom.js";
import { closeItem, goThrough, refreshItem } from "./item.js";
import { Everything, Found } from "./items.js";
import { follow } from "./live.js";
import { focusOn, itemAt, offerSheet, redraw, refill, showItems } from "./sheet.js";
import { count, isOver, nameOf, progressWords } from "./words.js";
import { ask, inWords, onceKeyed, save } from "../server.js";

const FIELDS = { status: "filter-status", label: "filter-label", min_confidence: "filter-min", max_confidence: "filter-max" };
const TYPING_MS = 300;

let job;
let source;
let work = new AbortController(); // of the job that is open
let soon;
const labels = new Set(); // that were seen in this job

export function closeJob() {
  work.abort();
  closeItem();
  job = undefined;
  source = undefined;
  showItems(undefined);
  $("job-title").textContent = "No job is open";
  $("job-hint").hidden = false;
  $("job-body").hidden = true;
  complain();
}

export async function openJob(id) {
  closeJob();
  work = new AbortController();
  const { signal } = work;
  $("job-hint").hidden = true;
  $("job-title").textContent = "Opening…";
  try {
    const found = await ask(`v1/jobs/${encodeURIComponent(id)}`, { signal });
    for (const field of Object.values(FIELDS)) $(field).value = "";
    labels.clear();
    $("seen-labels").replaceChildren();
    $("job-body").hidden = false;
    begin(found);
  } catch (error) {
    if (signal.aborted) return;
    $("job-title").textContent = "The job cannot be opened";
    complain(error);
    onceKeyed(() => signal.aborted || openJob(id));
  }
}

// Shows a job that is open as it is now, after somebody changed it.
export function showJob(now) {
  work.abort();
  work = new AbortController();
  begin(now);
}

function begin(now) {
  tell(now);
  filter();
  if (!isOver(now)) follow(now, { told, item: finished, failed: complain, signal: work.signal });
}

// `missed`: pictures may have been finished that nobody told of.
function told(now, { missed = false } = {}) {
  tell(now);
  complain();
  if (isOver(now) && source instanceof Found) filter();
  else if (missed || isOver(now)) {
    source.refresh?.();
    redraw();
  }
}

function finished(item) {
  source.update(item);
  refreshItem(item.number);
  refill();
}

function complain(error) {
  $("job-problem").textContent = error ? inWords(error) : "";
  $("job-problem").hidden = !error;
}

function tell(now) {
  job = now;
  const { total, done } = now.progress;
  $("job-title").textContent = nameOf(now);
  $("job-progress").max = Math.max(1, total);
  $("job-progress").value = done;
  $("job-progress").hidden = isOver(now);
  $("job-words").textContent = `${progressWords(now)}.`;
  const options = Object.entries(now.options);
  $("job-options").textContent = options.map(([name, value]) => `${name}: ${[value].flat().join(", ")}`).join("; ");
}

// --- which pictures

function filter() {
  if (!$("filter").reportValidity()) return;
  const wanted = {};
  for (const [name, id] of Object.entries(FIELDS)) {
    const value = $(id).value.trim();
    if (value) wanted[name] = name.endsWith("confidence") ? Number(value) / 100 : value;
  }
  $("sheet-words").textContent = "";
  source = Object.keys(wanted).length ? new Found(job, wanted) : new Everything(job);
  showItems(source);
}

function came(problem) {
  if (!source) return;
  $("sheet-words").textContent = problem ?? inTotal();
  for (let place = 0; place < source.count && labels.size < 200; place += 1) {
    const label = itemAt(place)?.label;
    if (!label || labels.has(label)) continue;
    labels.add(label);
    $("seen-labels").append(element("option", { value: label }));
  }
}

function inTotal() {
  if (!source.complete) return `${count(source.known, "picture")} and more.`;
  return source.count ? `${count(source.count, "picture")}.` : "No picture is like that.";
}

offerSheet({
  onOpen: (place) => {
    const pictures = source; // another filter may come while the dialog is open
    goThrough({
      job,
      place,
      last: () => pictures.known - 1,
      async fetchItem(wanted) {
        await pictures.load(wanted, wanted);
        return pictures.at(wanted);
      },
      left: (latest) => latest < source.known && focusOn(latest),
    });
  },
  onChange: came,
});
for (const id of Object.values(FIELDS)) {
  $(id).addEventListener("input", () => {
    clearTimeout(soon);
    soon = setTimeout(filter, TYPING_MS);
  });
}
for (const [id, link] of Object.entries({ "job-zip": "results_zip", "job-ndjson": "results_ndjson" })) {
  $(id).addEventListener("click", () => save(job.links[link], work.signal).then(() => complain(), complain));
}
$("filter").addEventListener("submit", (event) => event.preventDefault());
