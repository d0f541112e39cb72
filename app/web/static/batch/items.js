// The pictures of a job as a long list of which only parts are here: all of them by number, or those that a filter finds.

import { ask } from "../server.js";

const PAGE = 100;

const slim = ({ number, name, status, label, confidence, error, links }) => ({ number, name, status, label, confidence, error, overlay: links.overlay });

// All pictures: the place in the list is the number, so that any part of it can be asked for.
export class Everything {
  #job;
  #items = new Map(); // by place
  #pages = new Set(); // those that need not be asked for

  constructor({ id, progress }) {
    this.#job = id;
    this.count = progress.total;
    this.known = progress.total; // whether they are here or not
    this.complete = true;
  }

  at(place) {
    return this.#items.get(place);
  }

  update(item) {
    this.#items.set(item.number, slim(item));
  }

  // Has what waits asked for again.
  refresh() {
    for (const { number, status } of this.#items.values()) if (status === "waiting") this.#pages.delete(Math.floor(number / PAGE));
  }

  // Loads what is missing between two places, and says whether something came.
  async load(first, last, signal) {
    const wanted = [];
    const final = Math.min(last, this.count - 1);
    for (let page = Math.floor(first / PAGE); page <= Math.floor(final / PAGE); page += 1) if (!this.#pages.has(page)) wanted.push(page);
    for (const page of wanted) {
      const { items } = await ask(`v1/jobs/${this.#job}/items`, { options: { start: page * PAGE, limit: PAGE }, signal });
      items.forEach((item) => this.update(item));
      this.#pages.add(page);
    }
    return wanted.length > 0;
  }
}

// What a filter finds: how many that are shows as one goes on, from page to page.
export class Found {
  #job;
  #filter;
  #items = [];
  #next;

  constructor({ id }, filter) {
    this.#job = id;
    this.#filter = filter;
    this.complete = false;
  }

  // With room for the next page, as long as there is one.
  get count() {
    return this.#items.length + (this.complete ? 0 : PAGE);
  }

  get known() {
    return this.#items.length;
  }

  at(place) {
    return this.#items[place];
  }

  update(item) {
    const place = this.#items.findIndex(({ number }) => number === item.number);
    if (place >= 0) this.#items[place] = slim(item);
  }

  async load(first, last, signal) {
    let came = false;
    while (!this.complete && last >= this.#items.length) {
      const onwards = this.#next ? { cursor: this.#next } : {};
      const options = { ...this.#filter, limit: PAGE, ...onwards };
      const { items, next } = await ask(`v1/jobs/${this.#job}/items`, { options, signal });
      this.#items.push(...items.map(slim));
      this.#next = next;
      this.complete = !next;
      came = true;
    }
    return came;
  }
}
