// The read-out: which pixel is under the pointer, and what the map says there; the arrow keys move a point instead.

import { $, figure } from "../dom.js";
import { state } from "./state.js";

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const STEP = 1 / 50; // of the side, for a press of a key; a tenth of it with Shift
const HINT = "Point at the picture, or move a point with the arrow keys, to read its values.";

let grid; // the values that are read
let point = [0.5, 0.5]; // in shares of the sides

export function offerReadout() {
  const frame = $("frame");
  frame.addEventListener("pointermove", (event) => {
    const box = frame.getBoundingClientRect();
    read([(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height]);
  });
  frame.addEventListener("pointerleave", rest);
  frame.addEventListener("focus", () => frame.matches(":focus-visible") && read(point));
  frame.addEventListener("blur", rest);
  frame.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    const length = event.shiftKey ? STEP / 10 : STEP;
    read(point.map((share, axis) => share + length * step[axis]));
  });
}

export function readFrom(values) {
  grid = values;
  rest();
}

export function forget() {
  grid = undefined;
  rest();
}

function rest() {
  $("point").hidden = true;
  $("readout").textContent = grid ? HINT : "";
}

function read(wanted) {
  if (!grid) return;
  point = wanted.map((share) => Math.min(Math.max(share, 0), 1));
  const [x, y] = point;
  $("point").style.left = `${100 * x}%`;
  $("point").style.top = `${100 * y}%`;
  $("point").hidden = false;
  const { width, height } = state.answer.image;
  const [column, row] = [at(x, width), at(y, height)];
  $("readout").textContent = `Pixel ${column}, ${row} (${colourAt(x, y)}): ${valueAt(x, y)}.`;
}

const at = (share, length) => Math.min(Math.floor(share * length), length - 1);

function colourAt(x, y) {
  const canvas = $("picture");
  const [red, green, blue] = canvas.getContext("2d").getImageData(at(x, canvas.width), at(y, canvas.height), 1, 1).data;
  return `red ${red}, green ${green}, blue ${blue}`;
}

function valueAt(x, y) {
  const [column, row] = [at(x, grid.width), at(y, grid.height)];
  if (!grid.sees(column, row)) return "the model did not look here";
  const value = grid.numbers[row * grid.width + column];
  const share = grid.scale > 0 ? Math.min(Math.max(value / grid.scale, 0), 1) : 0;
  return `value ${figure(value)}, ${Math.round(100 * share)}% of full heat`;
}
