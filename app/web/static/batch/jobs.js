// The list of jobs, the newest first, and what can be done to each.

import { $, element } from "../dom.js";
import { isOver, nameOf, progressWords, size } from "./words.js";
import { ask, call, inWords, onceKeyed } from "../server.js";

const ASK_AGAIN_MS = 3000;
const ASKED = "Delete?"; // in the place of what can be done, while people are asked

const rows = new Map(); // of the list, by id
let opened; // id of the job that is open
let changed = () => {};
let older; // cursor of what follows the list
let extended = false; // by older jobs than the newest page has
let timer;

// Lists the jobs, now and as they go on; `tell` is called with each job that people change.
export async function listJobs(tell) {
  changed = tell ?? changed;
  clearTimeout(timer);
  try {
    const { jobs, next } = await ask("v1/jobs");
    if (!extended) older = next;
    show(jobs, { whole: !next && !extended });
    complain();
    if (jobs.some((job) => !isOver(job))) timer = setTimeout(listJobs, ASK_AGAIN_MS);
  } catch (error) {
    complain(error);
    if (error.passing) timer = setTimeout(listJobs, ASK_AGAIN_MS);
    else onceKeyed(() => listJobs());
  }
}

// Marks the job that is open.
export function markJob(id) {
  opened = id;
  for (const [each, row] of rows) mark(row, each === id);
}

function mark(row, is) {
  if (is) row.link.setAttribute("aria-current", "true");
  else row.link.removeAttribute("aria-current");
}

function complain(error) {
  $("jobs-problem").textContent = error ? inWords(error) : "";
  $("jobs-problem").hidden = !error;
}

function show(jobs, { whole }) {
  const ids = new Set(jobs.map(({ id }) => id));
  if (whole) for (const id of [...rows.keys()]) if (!ids.has(id)) drop(id);
  let place = $("jobs").firstElementChild;
  for (const job of jobs) {
    const row = rows.get(job.id) ?? made(job);
    if (row === place) place = row.nextElementSibling;
    else $("jobs").insertBefore(row, place);
    update(row, job);
  }
  $("no-jobs").hidden = rows.size > 0;
  $("older").hidden = !older;
}

function made({ id }) {
  const link = element("a", { href: `#${new URLSearchParams({ job: id })}`, className: "job-link" });
  const words = element("p", { className: "small" });
  const bar = element("progress", {});
  const actions = element("div", { className: "row actions" });
  const row = Object.assign(element("li", { className: "job-row" }, link, bar, words, actions), { link, words, bar, actions });
  rows.set(id, row);
  mark(row, id === opened);
  return row;
}

function update(row, job) {
  row.job = job;
  row.link.textContent = nameOf(job);
  row.bar.max = Math.max(1, job.progress.total);
  row.bar.value = job.progress.done;
  row.bar.hidden = isOver(job);
  row.bar.setAttribute("aria-label", `Progress of ${nameOf(job)}`);
  row.words.textContent = `${progressWords(job)}. ${new Date(job.created_at).toLocaleString()}, ${size(job.size_bytes)}.`;
  const possible = actionsOf(job);
  const { possible: shown } = row.actions.dataset;
  if (shown !== ASKED && shown !== String(possible)) offer(row, possible);
}

function drop(id) {
  rows.get(id)?.remove();
  rows.delete(id);
  $("no-jobs").hidden = rows.size > 0;
}

// --- what can be done

function actionsOf(job) {
  if (!isOver(job)) return ["Cancel", "Delete"];
  const again = job.progress.failed > 0 || job.progress.done < job.progress.total;
  return again ? ["Retry", "Delete"] : ["Delete"];
}

function offer(row, possible) {
  const begun = { Cancel: () => change(row, "cancel"), Retry: () => change(row, "retry"), Delete: () => confirm(row) };
  const held = row.actions.contains(document.activeElement); // which goes
  row.actions.dataset.possible = String(possible);
  row.actions.replaceChildren(...possible.map((name) => button(row, name, begun[name])));
  if (held) row.actions.lastElementChild.focus();
}

function button(row, name, onclick) {
  const label = `${name} ${nameOf(row.job)}`; // so that each is told apart where only buttons are read out
  const made = element("button", { type: "button", className: "button slight", onclick }, name);
  made.setAttribute("aria-label", label);
  return made;
}

function confirm(row) {
  row.actions.dataset.possible = ASKED; // what comes in between leaves the question as it is
  const keep = button(row, "Keep", () => offer(row, actionsOf(row.job)));
  const words = element("span", { className: "small", role: "alert" }, "Delete it, with its pictures and results?");
  row.actions.replaceChildren(words, button(row, "Delete for good", () => remove(row)), keep);
  keep.focus();
}

async function change({ job }, action) {
  try {
    const now = await ask(`v1/jobs/${job.id}/${action}`, { method: "POST" });
    await listJobs();
    changed(now);
  } catch (error) {
    complain(error);
  }
}

async function remove({ job }) {
  try {
    await call(`v1/jobs/${job.id}`, { method: "DELETE" });
    const next = rows.get(job.id)?.nextElementSibling ?? rows.get(job.id)?.previousElementSibling;
    drop(job.id);
    next?.link.focus();
    changed({ ...job, deleted: true });
  } catch (error) {
    complain(error);
  }
}

$("older").addEventListener("click", async () => {
  try {
    const { jobs, next } = await ask("v1/jobs", { options: { cursor: older } });
    older = next;
    extended = true;
    for (const job of jobs) {
      const row = rows.get(job.id) ?? made(job);
      $("jobs").append(row);
      update(row, job);
    }
    $("older").hidden = !older;
  } catch (error) {
    complain(error);
  }
});
