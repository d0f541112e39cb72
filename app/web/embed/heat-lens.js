// <heat-lens src="https://HEATLENS/embed/TOKEN" opacity="0.7" alt="..."></heat-lens>
//
// A picture with its heat, and a slider for the heat's opacity, in any page. It needs nothing from that page but the
// leave to load scripts and pictures from the HeatLens server (script-src and img-src, if there is such a policy).
// Colours follow the page's `color-scheme`; `::part(slider)`, `::part(caption)` and `::part(fault)` can be styled.

const STYLE = `
  :host { display: inline-block; max-width: 100%; color: inherit; font-size: .9375rem; }
  :host([hidden]), [hidden] { display: none !important; }
  figure { margin: 0; }
  .frame { position: relative; width: fit-content; max-width: 100%; }
  img { display: block; max-width: 100%; height: auto; }
  .heat { position: absolute; inset: 0; width: 100%; height: 100%; }
  figcaption { display: flex; align-items: center; gap: .6rem; padding: .4rem 0; }
  input { flex: 1; min-width: 5rem; max-width: 16rem; }
  output { min-width: 3.5em; font-variant-numeric: tabular-nums; }
  .fault { margin: 0; padding: .1rem 0 .1rem .5rem; border-left: .25rem solid #dd513a; }
`;
const FAULT = "The picture cannot be shown: its link has expired, or the server does not answer.";
const DEFAULT_OPACITY = 0.7;

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

class HeatLens extends HTMLElement {
  static observedAttributes = ["src", "opacity", "alt"];

  #picture = element("img", { alt: "" });
  #heat = element("img", { alt: "", className: "heat" });
  #slider = element("input", { type: "range", min: 0, max: 100, id: "opacity" });
  #percent = element("output");
  #fault = element("p", { className: "fault", hidden: true });
  #figure = element("figure");

  constructor() {
    super();
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(STYLE);
    const root = this.attachShadow({ mode: "open" });
    root.adoptedStyleSheets = [sheet];
    this.#fault.setAttribute("role", "alert");
    this.#fault.setAttribute("part", "fault");
    this.#slider.setAttribute("part", "slider");
    this.#percent.setAttribute("aria-hidden", "true");
    const caption = element("figcaption", {}, element("label", { htmlFor: "opacity" }, "Heat"), this.#slider, this.#percent);
    caption.setAttribute("part", "caption");
    this.#figure.append(element("div", { className: "frame" }, this.#picture, this.#heat), caption);
    root.append(this.#figure, this.#fault);
    this.#slider.addEventListener("input", () => { this.opacity = this.#slider.value / 100; });
    for (const image of [this.#picture, this.#heat]) image.addEventListener("error", () => this.#fail());
  }

  // Opacity of the heat, 0 to 1.
  get opacity() {
    const text = this.getAttribute("opacity");
    const given = Number(text);
    return text === null || text.trim() === "" || Number.isNaN(given) ? DEFAULT_OPACITY : Math.min(1, Math.max(0, given));
  }

  set opacity(value) {
    this.setAttribute("opacity", value);
  }

  connectedCallback() {
    this.#show();
    if (!this.hasAttribute("src")) this.#fail();
  }

  attributeChangedCallback(name) {
    if (name === "src") this.#load();
    this.#show();
  }

  #load() {
    const src = (this.getAttribute("src") ?? "").replace(/\/+$/, "");
    if (!src) return this.#fail();
    this.#fault.hidden = true;
    this.#fault.textContent = "";
    this.#figure.hidden = false;
    this.#picture.src = `${src}/picture`;
    this.#heat.src = `${src}/heat`;
  }

  #show() {
    const percent = Math.round(100 * this.opacity);
    this.#heat.style.opacity = this.opacity;
    this.#heat.alt = this.getAttribute("alt") ?? "Where the model looked";
    this.#slider.value = percent;
    this.#slider.setAttribute("aria-valuetext", `${percent} %`);
    this.#percent.textContent = `${percent} %`;
  }

  #fail() {
    this.#figure.hidden = true;
    this.#fault.hidden = false;
    this.#fault.textContent = FAULT;
  }
}

if (!customElements.get("heat-lens")) customElements.define("heat-lens", HeatLens);
