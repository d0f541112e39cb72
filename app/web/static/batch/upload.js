// A new job: what goes in, with which options, and its way to the server.

import { $, element } from "../dom.js";
import { chosen, dropped, sorted } from "./files.js";
import { count, size } from "./words.js";
import { Problem, ask, call, inWords, onceKeyed, upload } from "../server.js";
import { offerChoice, offerDrop } from "../ways.js";

const DEFAULT_METHOD = "gradcam";

let taken = sorted([]);
let key; // of this upload: sent again with the same key, it makes no second job
let sending; // the upload that is under way, its AbortController

// Lets people make jobs, and calls `started` with each.
export function offerUpload(started) {
  for (const id of ["files", "folder"]) offerChoice($(id), (files) => take(chosen(files)));
  offerDrop(async (transfer) => {
    try {
      take(await dropped(transfer));
    } catch {
      complain(new Problem("What was dropped cannot be read."));
    }
  });
  $("clear").addEventListener("click", () => take([]));
  $("stop").addEventListener("click", () => sending?.abort());
  $("new").addEventListener("change", renewKey); // with other options it is another job
  $("new").addEventListener("submit", async (event) => {
    event.preventDefault();
    const job = await start();
    if (job) started(job);
  });
  offerChoices();
}

// crypto.randomUUID is there only on pages that came by https or from this machine.
const renewKey = () => (key = crypto.getRandomValues(new Uint32Array(4)).join("-"));

function take(files) {
  if (sending) return;
  taken = sorted(files);
  renewKey();
  const { archives, pictures, bytes, others } = taken;
  const wrong = wrongWith(taken, files.length);
  const what = archives.length ? archives[0].path : count(pictures.length, "picture");
  const rest = others ? `; ${count(others, "other file")} left out` : "";
  $("taken").textContent = files.length && !wrong ? `${what}, ${size(bytes)}${rest}` : "";
  $("start").disabled = Boolean(wrong) || !files.length;
  $("clear").hidden = !files.length;
  complain(wrong && new Problem(wrong));
}

function wrongWith({ archives, pictures }, files) {
  if (archives.length > 1) return "A job is made of one archive; start one job for each.";
  if (archives.length && pictures.length) return "A job is made of an archive or of pictures, not of both.";
  if (files && !archives.length && !pictures.length) return "There is no picture and no archive in it.";
  return "";
}

function complain(error) {
  $("new-problem").textContent = error ? inWords(error) : "";
  $("new-problem").hidden = !error;
}

// --- the way to the server

async function start() {
  if (sending) return undefined;
  complain();
  sending = new AbortController();
  progress(0);
  busy(true);
  try {
    const job = await send(form(), sending.signal);
    sending = undefined;
    take([]);
    return job;
  } catch (error) {
    if (!sending.signal.aborted) complain(error);
    return undefined;
  } finally {
    sending = undefined;
    busy(false);
  }
}

function form() {
  const body = new FormData();
  const targets = $("targets").value.split("\n").map((target) => target.trim());
  const options = { name: $("name").value.trim(), model: $("model").value, method: $("method").value };
  if ($("faithfulness").checked) options.faithfulness = "true";
  for (const [name, value] of Object.entries(options)) if (value) body.append(name, value);
  for (const target of targets.filter(Boolean)) body.append("target", target);
  for (const { file, path } of taken.archives) body.append("archive", file, path);
  for (const { file, path } of taken.pictures) body.append("image", file, path);
  return body;
}

// Gigabytes are not sent in vain: whether jobs are taken from here is asked before.
async function send(body, signal) {
  await call("v1/jobs", { options: { limit: 1 }, signal });
  return upload("v1/jobs", { body, headers: { "Idempotency-Key": key }, signal, progress });
}

function progress(share) {
  $("sent").value = share;
  const on = share < 1 ? `${Math.floor(share * 100)}% sent` : "All sent; the server looks through it";
  $("sent-words").textContent = on;
}

function busy(is) {
  $("sending").hidden = !is;
  for (const id of ["files", "folder", "clear"]) $(id).disabled = is;
  $("start").disabled = is || !(taken.archives.length + taken.pictures.length);
}

// --- the choices

async function offerChoices() {
  try {
    const [{ models }, { methods }] = await Promise.all([ask("v1/models"), ask("v1/methods")]);
    const usable = models.filter(({ weights }) => weights !== "missing");
    $("model").replaceChildren(...usable.map(({ name }) => element("option", { value: name }, name)));
    $("method").replaceChildren(...methods.map((method) => element("option", { value: method.name }, inList(method))));
    $("method").value = DEFAULT_METHOD;
    const describe = () => {
      $("method-summary").textContent = methods.find(({ name }) => name === $("method").value)?.summary ?? "";
    };
    $("method").addEventListener("change", describe);
    describe();
  } catch (error) {
    complain(error);
    onceKeyed(() => {
      complain();
      offerChoices();
    });
  }
}

const inList = ({ name, cost_class: cost }) => (cost === "low" ? name : `${name} (${cost === "high" ? "slow" : "takes a while"})`);
