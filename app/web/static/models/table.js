// A table that is sorted by the column whose head is pressed; what is not known comes last.

import { element } from "../dom.js";

// `columns`: { title, value (of a row), text (of a value) }; `marked` says what is wrong with a row, or "".
export function fillTable(table, { caption, columns, rows, marked = () => "" }) {
  const body = element("tbody", {});
  const heads = columns.map(({ title }, index) => {
    const button = element("button", { type: "button", className: "sorter", onclick: () => sort(index) }, title);
    return element("th", { scope: "col" }, button);
  });
  const lines = rows.map((row) => ({ row, line: lineOf(row, columns, marked(row)) }));
  body.append(...lines.map(({ line }) => line));
  table.replaceChildren(element("caption", { className: "unseen" }, caption), element("thead", {}, element("tr", {}, ...heads)), body);

  function sort(index) {
    const descending = heads[index].ariaSort === "ascending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[index].ariaSort = descending ? "descending" : "ascending";
    const order = [...lines].sort((one, other) => compared(columns[index].value(one.row), columns[index].value(other.row), descending));
    body.append(...order.map(({ line }) => line));
  }
}

function compared(one, other, descending) {
  if (one == null || other == null) return (one == null) - (other == null);
  const ascending = typeof one === "string" ? one.localeCompare(other, "en", { numeric: true }) : one - other;
  return descending ? -ascending : ascending;
}

function lineOf(row, columns, mark) {
  const cells = columns.map(({ value, text = String }, index) => {
    const known = value(row);
    const cell = element(index ? "td" : "th", {}, known == null ? "–" : text(known));
    if (!index) cell.scope = "row";
    if (typeof known !== "string") cell.className = "figure";
    return cell;
  });
  if (mark) cells[0].append(" ", element("strong", { className: "mark wrong" }, mark));
  return element("tr", { className: mark ? "wrong-row" : "" }, ...cells);
}

// Numbers of any size with three digits.
export const figure = (value) => (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5) ? value.toExponential(2) : String(Number(value.toPrecision(3))));

export const share = (value) => `${(value * 100).toFixed(1)}%`;
