// What all pages share of the document: elements by id, new ones, and figures in words.

export const $ = (id) => document.getElementById(id);

export function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export function percent(probability) {
  if (probability > 0 && probability < 0.001) return "< 0.1%";
  if (probability < 1 && probability > 0.999) return "> 99.9%";
  return `${(probability * 100).toFixed(1)}%`;
}

// A number with three digits that count, and a minus as long as a plus.
export function figure(number) {
  const short = Math.abs(number) >= 1e-3 && Math.abs(number) < 1e5 ? String(Number(number.toPrecision(3))) : number.toExponential(1);
  return (number === 0 ? "0" : short).replaceAll("-", "\u2212");
}
