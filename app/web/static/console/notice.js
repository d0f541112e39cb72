// What the page as a whole is doing, and what went wrong with a picture.

import { $ } from "../dom.js";
import { inWords } from "../server.js";

const app = $("app");

let retry; // what "Try again" does

$("again").addEventListener("click", () => retry());

// The whole page is empty, busy with a picture, or done.
export function setState(name) {
  app.dataset.state = name;
  app.setAttribute("aria-busy", String(name === "busy"));
}

// Says what went wrong; `again` is done when trying again may help and is asked for.
export function complain(title, error, again) {
  const held = [$("verdict"), $("again")].includes(document.activeElement);
  if (app.dataset.state === "busy") {
    setState("empty");
    $("verdict").textContent = "";
  }
  $("problem-title").textContent = title;
  $("problem-detail").textContent = inWords(error);
  retry = again;
  $("again").hidden = !error.repeatable || !again;
  $("problem").hidden = false;
  $("problem").scrollIntoView({ block: "nearest" });
  if (held) $($("again").hidden ? "file" : "again").focus();
}
