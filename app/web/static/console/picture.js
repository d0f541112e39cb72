// The picture itself: on the page as the server sees it.

import { $ } from "../dom.js";
import { call, content } from "../server.js";
import { post, state } from "./state.js";

const MAX_SIDE_PX = 1024; // the server's default for max_side
// What browsers turn upright as the server does; other formats are shown as the server decodes them.
const DRAWN_HERE = new Set(["image/jpeg", "image/png", "image/gif", "image/bmp"]);

// Draws the picture as far as this browser can by itself; returns the size that it had, if so.
export async function drawHere({ file }, signal) {
  const bitmap = DRAWN_HERE.has(file?.type) ? await createImageBitmap(file).catch(() => null) : null;
  signal.throwIfAborted();
  return bitmap && draw(bitmap);
}

// Draws it as the server decodes it: of a file, that is the left half of the view "side_by_side".
export async function drawFromServer({ width, height }, options, signal) {
  const { file, id } = state.source;
  const response = file
    ? await post("explain", [["format", "jpeg"], ["view", "side_by_side"], ...options], { signal })
    : await call(`v1/images/${encodeURIComponent(id)}/picture`, { options: { max_side: MAX_SIDE_PX }, signal });
  const [w, h] = fitted(width, height);
  const bitmap = await createImageBitmap(await content(response, "blob", signal), 0, 0, w, h);
  signal.throwIfAborted();
  draw(bitmap);
}

// The size that the server draws a picture of this size in.
function fitted(width, height) {
  const scale = Math.min(1, MAX_SIDE_PX / Math.max(width, height));
  return [width, height].map((side) => Math.max(1, Math.round(side * scale)));
}

// Draws and gives up the bitmap; returns the size that it had.
function draw(bitmap) {
  const { width, height } = bitmap;
  const canvas = $("picture");
  [canvas.width, canvas.height] = fitted(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white"; // the server lays transparent pictures on white
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  $("frame").style.setProperty("--ratio", width / height);
  $("frame").classList.add("drawn");
  bitmap.close();
  return { width, height };
}
