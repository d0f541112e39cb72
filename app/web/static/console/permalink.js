// A link that brings the view back: all of it is in the fragment, which is sent to no server and is in no log.

import { Problem, ask, onceKeyed } from "../server.js";

export const GONE = "Its picture is not kept any longer: it has expired, or was deleted. Choose the picture again.";

// Opens the view that the address of this page holds, now and whenever it is another one. `arriving` returns a signal
// for a picture that is on its way, which is aborted when another one comes.
export function offerPermalink(arriving, restore, complain) {
  async function open() {
    const pairs = [...new URLSearchParams(location.hash.slice(1))];
    const { image, ...options } = Object.fromEntries(pairs);
    if (!image) return;
    const signal = arriving();
    try {
      await ask(`v1/images/${encodeURIComponent(image)}`, { signal });
      await restore({ name: "The picture of this link", id: image }, options, pairs, signal);
    } catch (error) {
      if (signal.aborted) return;
      complain("This link cannot be opened.", error.code === "unknown_image" ? new Problem(GONE) : error, open);
      onceKeyed(() => signal.aborted || open());
    }
  }
  addEventListener("hashchange", open);
  open();
}

export function linkTo(image, options) {
  const link = new URL(document.baseURI);
  link.hash = new URLSearchParams([["image", image], ...options]);
  return link.href;
}

// The address is of another picture than the one that is shown now.
export function dropLink() {
  if (location.hash) history.replaceState(null, "", location.pathname + location.search);
}
