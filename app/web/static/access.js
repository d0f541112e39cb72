// Asks people for an API key, and has a button in the header for it. The key itself passes through and stays nowhere.

import { $ } from "./dom.js";

const SENDABLE = /^[!-~]+$/; // what a header can carry

let answer; // settles what `askForKey` returned
let pressed; // what the button in the header does

// Opens the dialog, which says why; returns the key that people type, or undefined if they give none.
export function askForKey(why) {
  $("access-why").textContent = why;
  $("access").showModal();
  return new Promise((resolve) => (answer = resolve));
}

// Shows the button in the header with these words; without words there is none.
export function offerButton(words, press) {
  pressed = press;
  $("access-button").textContent = words;
  $("access-button").hidden = !words;
}

$("access-button").addEventListener("click", () => pressed());
$("access-cancel").addEventListener("click", () => $("access").close());
$("access-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = $("access-key").value.trim();
  if (SENDABLE.test(key)) {
    answer(key);
    $("access").close();
  } else {
    $("access-why").textContent = "That is no key: a key has no spaces and no accents.";
    $("access-key").select();
  }
});
// However it was closed, nothing is left in the field.
$("access").addEventListener("close", () => {
  $("access-form").reset();
  answer(undefined); // which changes nothing where there was an answer
});
