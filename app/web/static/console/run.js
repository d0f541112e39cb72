// An explanation that is under way: what is at work, since when, and a button to stop it.

import { $ } from "../dom.js";

const app = $("app");
let run; // its AbortController
let pressed; // what the button does

$("run-button").addEventListener("click", () => pressed());

// Runs `work(signal)` now, and nothing else any more; returns what it does, or undefined if it was stopped. The button
// is for calling `halted`.
export async function runNow(name, words, work, halted) {
  stop();
  run = Object.assign(new AbortController(), { name });
  const { signal } = run;
  const started = Date.now();
  say("running", words, "Stop", halted);
  const second = setInterval(() => {
    $("run-seconds").textContent = `${Math.round((Date.now() - started) / 1000)} s`;
  }, 1000);
  try {
    const done = await work(signal);
    signal.throwIfAborted();
    stop();
    return done;
  } catch (error) {
    if (signal.aborted) return undefined;
    stop();
    throw error;
  } finally {
    clearInterval(second);
  }
}

// What is under way, by the name that it was given; undefined: nothing.
export const running = () => run?.name;

export function stop() {
  run?.abort();
  run = undefined;
  app.classList.remove("running");
  $("run").hidden = true;
  $("note").hidden = false;
}

// Says how it stands, beside a button for `press`; without `button` there is none.
export function say(state, text, button, press) {
  pressed = press;
  app.classList.toggle("running", state === "running");
  $("run").dataset.state = state;
  $("run-text").textContent = text;
  $("run-seconds").textContent = "";
  $("run-button").textContent = button;
  $("run-button").hidden = !button;
  $("run").hidden = false;
  $("note").hidden = true;
}

// Says what is waited for.
export function waiting(words) {
  $("run-text").textContent = words;
}
