// What is on the stage as a command and as a program.

import { address, usesKey } from "../server.js";

// The key stays here; what is copied takes it from the environment of whoever runs it.
const VARIABLE = "HEATLENS_KEY";
const NAMELESS = "picture.jpg"; // a picture that came by a link has no name here

export const curl = ({ file, id }, options) => {
  const url = quoted(address("v1/explain", options).href);
  const access = usesKey() ? `-H "Authorization: Bearer $${VARIABLE}" ` : "";
  if (!file) {
    return `curl ${access}${url} -H 'Content-Type: application/json' -d '{"image": {"id": "${id}"}}' -o ${heatOf(NAMELESS)}`;
  }
  const plain = /[[\]{}]/.test(file.name) ? "-g " : ""; // else curl takes these for a pattern
  return `curl ${access}${plain}-T ${quoted(file.name)} ${url} -o ${quoted(heatOf(file.name))}`;
};

export function python({ file, id, width, height }, options) {
  const name = file?.name ?? NAMELESS;
  const grouped = Map.groupBy(options, ([option]) => option);
  const given = [...grouped].map(([option, pairs]) => `${option}=${literal(pairs.map(([, value]) => value))}`);
  const call = [file ? string(name) : "picture", ...given].join(", ");
  const access = usesKey() ? `, api_key=environ["${VARIABLE}"]` : "";
  const imports = [usesKey() && "from os import environ", !file && `from urllib.request import ${usesKey() ? "Request, " : ""}urlopen`];
  return `${[...imports.filter(Boolean), ""].join("\n")}
from app.client import HeatLens
${file ? "" : fetched(id, Math.max(width, height, 16))}
with HeatLens(${string(address("").origin)}${access}) as lens:
    lens.explain(${call}).save(${string(heatOf(name))})`.trimStart();
}

// The lines that fetch the picture that the server keeps, in its whole size.
function fetched(id, side) {
  const url = address(`v1/images/${encodeURIComponent(id)}/picture`, { max_side: side, format: "png" }).href;
  const asked = usesKey()
    ? `Request(${string(url)}, headers={"Authorization": f"Bearer {environ['${VARIABLE}']}"})`
    : string(url);
  return `
with urlopen(${asked}) as answer:
    picture = answer.read()
`;
}

// The name of a picture with the heat on it, or of another file of that kind.
export const heatOf = (name, extension = "jpg") => `${name.replace(/\.[^.]+$/, "")}.heat.${extension}`;

const quoted = (text) => (/^[\w./-]+$/.test(text) && !text.startsWith("-") ? text : `'${text.replaceAll("'", "'\\''")}'`);

const string = (text) => JSON.stringify(text); // which Python reads as well

function literal([first, ...more]) {
  if (more.length) return `[${[first, ...more].map((value) => literal([value])).join(", ")}]`;
  const text = String(first);
  if (text === "true" || text === "false") return text === "true" ? "True" : "False";
  return text !== "" && Number.isFinite(Number(text)) ? text : string(text);
}
