// The ways into a page that all pages share: files that are chosen, dropped anywhere or pasted, and the sample picture.

import { call, content } from "./server.js";

const SAMPLE = new URL("cat.jpg", import.meta.url);

// Calls `came` with the transfer of what is dropped on the page.
export function offerDrop(came) {
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
    came(event.dataTransfer);
  });
}

// Calls `take` with the files that are chosen in `input`, dropped or pasted; `nothing` is called where a drop has none.
export function offerFiles(input, take, nothing) {
  offerChoice(input, take);
  addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (!files.length) return;
    event.preventDefault();
    take(files);
  });
  offerDrop(({ files }) => (files.length ? take([...files]) : nothing()));
}

// Calls `take` with the files that are chosen in `input`.
export function offerChoice(input, take) {
  input.addEventListener("change", () => {
    const files = [...input.files];
    input.value = ""; // so that the same files can be chosen again
    if (files.length) take(files);
  });
}

// Returns the sample picture as a file.
export async function sample(signal) {
  const response = await call(SAMPLE, { signal });
  return new File([await content(response, "blob", signal)], "cat.jpg", { type: "image/jpeg" });
}
