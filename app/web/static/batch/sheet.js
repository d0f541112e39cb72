// The contact sheet: however long the list is, only the tiles near what is seen are in the document.

import { $, element, percent } from "../dom.js";
import { inWords, objectUrl } from "../server.js";

const ROW_PX = 208; // as high as a row is in batch.css, with its gap
const GAP_PX = 8;
const NARROWEST_PX = 128;
const ROWS_AROUND = 2; // beyond what is seen
const STILL_MS = 60; // for so long the sheet stands still before pictures are asked for

const sheet = $("sheet");
const shown = new Map(); // tiles by place
let source; // where the pictures come from: Everything or Found
let columns = 1;
let active = 0; // the place that the Tab key comes to
let loading = new AbortController();
let timer;
let open = () => {};
let changed = () => {};

// Calls `onOpen` with the place of a picture that is chosen, and `onChange` whenever pictures came.
export function offerSheet({ onOpen, onChange }) {
  open = onOpen;
  changed = onChange;
}

// Shows other pictures, from the first on.
export function showItems(from) {
  source = from;
  active = 0;
  sheet.scrollTop = 0;
  for (const place of [...shown.keys()]) remove(place);
  if (source) redraw();
  else stop();
}

export const itemAt = (place) => source?.at(place);

// Shows what has become known of the pictures that are in sight.
export function refill() {
  for (const [place, tile] of shown) fill(tile, place);
}

export function redraw() {
  const width = sheet.clientWidth;
  columns = Math.max(1, Math.floor((width + GAP_PX) / (NARROWEST_PX + GAP_PX)));
  $("tiles").style.height = `${Math.ceil(source.count / columns) * ROW_PX}px`;
  draw();
}

// Goes to a picture, and puts the focus on it.
export function focusOn(place) {
  active = place;
  const top = Math.floor(place / columns) * ROW_PX;
  if (top < sheet.scrollTop) sheet.scrollTop = top;
  if (top + ROW_PX > sheet.scrollTop + sheet.clientHeight) sheet.scrollTop = top + ROW_PX - sheet.clientHeight;
  draw();
  shown.get(place)?.button.focus({ preventScroll: true });
}

function range() {
  const first = Math.floor(sheet.scrollTop / ROW_PX) - ROWS_AROUND;
  const last = Math.ceil((sheet.scrollTop + sheet.clientHeight) / ROW_PX) + ROWS_AROUND;
  return [Math.max(0, first * columns), Math.min(source.count, last * columns) - 1];
}

function draw() {
  if (!source) return;
  const [first, last] = range();
  for (const [place, tile] of shown) {
    // One that has the focus stays, else the keyboard would lose its place.
    if ((place < first || place > last) && !tile.contains(document.activeElement)) remove(place);
  }
  for (let place = first; place <= last; place += 1) if (!shown.has(place)) add(place);
  const width = (sheet.clientWidth - GAP_PX * (columns - 1)) / columns;
  for (const [place, tile] of shown) {
    tile.style.width = `${width}px`;
    tile.style.transform = `translate(${(place % columns) * (width + GAP_PX)}px, ${Math.floor(place / columns) * ROW_PX}px)`;
  }
  refill();
  clearTimeout(timer);
  timer = setTimeout(load, STILL_MS);
}

async function load() {
  stop();
  const { signal } = loading;
  try {
    const [first, last] = range();
    if (await source.load(first, last, signal)) {
      if (!signal.aborted) redraw();
    }
    changed();
  } catch (error) {
    if (!signal.aborted) changed(inWords(error));
  }
}

function stop() {
  clearTimeout(timer);
  loading.abort();
  loading = new AbortController();
}

// --- tiles

function add(place) {
  const button = element("button", { type: "button", className: "tile-button" });
  button.addEventListener("click", () => open(place));
  button.addEventListener("focus", () => settle(place));
  const tile = Object.assign(element("li", { className: "tile" }, button), { button });
  shown.set(place, tile);
  // In the order of the pictures, as the Tab key and screen readers go through them.
  const after = [...shown.keys()].filter((other) => other > place);
  $("tiles").insertBefore(tile, after.length ? shown.get(Math.min(...after)) : null);
}

function remove(place) {
  shown.get(place)?.work?.abort();
  shown.get(place)?.remove();
  shown.delete(place);
}

function fill(tile, place) {
  const item = source.at(place);
  tile.button.tabIndex = place === active ? 0 : -1;
  tile.setAttribute("aria-posinset", place + 1);
  tile.setAttribute("aria-setsize", source.complete ? source.count : -1);
  if (tile.item === item && tile.button.hasChildNodes()) return;
  const kept = item?.overlay && item.overlay === tile.item?.overlay;
  tile.item = item;
  if (!kept) tile.thumb = item ? thumb(tile, item) : element("span", { className: "thumb" }, "…");
  tile.dataset.status = item?.status ?? "unknown";
  tile.button.replaceChildren(...(item ? [tile.thumb, ...captions(item)] : [tile.thumb]));
}

function captions({ name, status, label, confidence }) {
  const caption = element("span", { className: "caption" }, element("span", { className: "tile-label" }, label ?? said(status)));
  if (confidence !== null) caption.append(element("span", { className: "tile-percent" }, percent(confidence)));
  return [caption, element("span", { className: "tile-name", title: name }, name)];
}

function thumb(tile, { overlay, error }) {
  const place = element("span", { className: "thumb" }, error?.code.replaceAll("_", " ") ?? "…");
  tile.work?.abort();
  tile.work = new AbortController();
  if (overlay) fetchInto(place, overlay, tile.work.signal);
  return place;
}

// Puts a picture in its place, unless the tile is gone by then.
async function fetchInto(place, overlay, signal) {
  let src;
  try {
    src = await objectUrl(overlay, { signal, priority: "low" });
    const image = element("img", { src, alt: "" });
    await image.decode();
    if (!signal.aborted) place.replaceChildren(image);
  } catch {
    if (!signal.aborted) place.replaceChildren("no picture");
  } finally {
    URL.revokeObjectURL(src); // what is decoded stays
  }
}

const said = (status) => ({ waiting: "Waiting", cancelled: "Cancelled", failed: "Failed" })[status] ?? "Explained";

// --- the keyboard

function settle(place) {
  shown.get(active)?.button.setAttribute("tabindex", -1);
  active = place;
  shown.get(active)?.button.setAttribute("tabindex", 0);
}

const STEPS = {
  ArrowRight: () => active + 1,
  ArrowLeft: () => active - 1,
  ArrowDown: () => active + columns,
  ArrowUp: () => active - columns,
  Home: () => 0,
  End: () => source.known - 1,
};

$("tiles").addEventListener("keydown", (event) => {
  const place = STEPS[event.key]?.();
  if (place === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  if (place >= 0 && place < source.known) focusOn(place);
});
let frame;
sheet.addEventListener("scroll", () => {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(draw);
});
new ResizeObserver(() => source && redraw()).observe(sheet);
