// Draws heat here, from the raw values that an answer holds, with the colours and the fade of the server.

import { INFERNO } from "./inferno.js";

const VEIL = [112, 112, 112, 170]; // over what the model did not see

// The raw values of an answer as numbers, row by row, and where the model saw.
export function decode({ width, height, scale, base64 }, image) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const numbers = Float32Array.from({ length: width * height }, (_, place) => view.getFloat32(4 * place, true));
  const { left, top, right, bottom } = image.seen;
  const [across, down] = [image.width / width, image.height / height];
  const sees = (column, row) => {
    const [x, y] = [(column + 0.5) * across, (row + 0.5) * down];
    return x >= left && x < right && y >= top && y < bottom;
  };
  return { width, height, scale, numbers, sees };
}

// How opaque a value in [0, 1] is drawn: a smooth step, full from 0.6 on.
function fade(value) {
  const x = Math.min(value / 0.6, 1);
  return x * x * (3 - 2 * x);
}

// Draws the values on a canvas of their own size: alone, or (`fading`) for being laid over the picture.
export function paint(canvas, { width, height, numbers, sees, scale: own }, { scale = own, fading = false } = {}) {
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(width, height);
  numbers.forEach((number, place) => {
    const value = scale > 0 ? Math.min(Math.max(number, 0), scale) / scale : 0;
    const level = Math.round(255 * value);
    const seen = sees(place % width, Math.floor(place / width));
    const colour = seen ? INFERNO.subarray(3 * level, 3 * level + 3) : VEIL.slice(0, 3);
    const opacity = seen ? Math.round(255 * fade(level / 255)) : VEIL[3];
    pixels.data.set([...colour, fading ? opacity : 255], 4 * place);
  });
  context.putImageData(pixels, 0, 0);
  return canvas;
}

// Draws the picture and the heat over it on one canvas, as large as the values are.
export function overlay(canvas, picture, values, { scale, opacity }) {
  const heat = paint(document.createElement("canvas"), values, { scale, fading: true });
  [canvas.width, canvas.height] = [values.width, values.height];
  const context = canvas.getContext("2d");
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  context.globalAlpha = opacity;
  context.drawImage(heat, 0, 0);
  context.globalAlpha = 1;
}
