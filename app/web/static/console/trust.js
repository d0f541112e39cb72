// How far a map can be trusted: its raw range, and what is measured when asked for; told in words, with the figures.

import { $, element, figure } from "../dom.js";

export const MEASURES = { faithfulness: true, stability: true };

// Calls `measure` when the measures are asked for.
export const offerTrust = (measure) => $("trust-button").addEventListener("click", measure);

const VERDICTS = {
  better_than_controls: "This map finds what counts for the model.",
  better_than_random: "This map finds what counts for the model, but not clearly better than the mere centre or edge of the picture would.",
  inconclusive: "Whether this map finds what counts cannot be told: chance may do as well.",
  no_better_than_random: "Do not rely on this map: the same shape laid anywhere else does as well.",
};
const STEADY = 0.5; // below, what changes the map changes it much

// Tells what is known of an explanation, or offers to measure it.
export function showTrust({ map, faithfulness, stability }) {
  const held = document.activeElement === $("trust-button");
  $("trust-button").hidden = Boolean(faithfulness);
  $("trust-verdict").textContent = faithfulness ? `${VERDICTS[faithfulness.verdict]}${wavering(stability)}` : "";
  if (held && faithfulness) $("trust-verdict").focus();
  $("trust-words").textContent = [faithfulness, stability].map((measured) => measured?.words ?? "").join(" ").trim();
  $("trust").classList.toggle("doubtful", faithfulness?.verdict === "no_better_than_random");
  const facts = [range(map), faithfulness && against(faithfulness), stability && steadiness(stability)];
  const pairs = facts.filter(Boolean).flatMap(([name, words]) => [element("dt", {}, name), element("dd", {}, words)]);
  $("trust-facts").replaceChildren(...pairs);
}

// The sentence for a map that does not stay as it is.
function wavering({ noise, mirror }) {
  const changes = [[noise, "A little noise"], [mirror, "Mirroring the picture"]].filter(([value]) => value !== null && value < STEADY);
  return changes.length ? ` ${changes.map(([, what]) => what).join(" and ").replace("and M", "and m")} ${changes.length > 1 ? "change" : "changes"} it much.` : "";
}

const range = ({ min, max, mean }) => [
  "Raw values",
  `from ${figure(min)} to ${figure(max)}, on average ${figure(mean)}; those above 0 are drawn as heat`,
];

function against({ insertion, deletion }) {
  const lead = (order) => figure(insertion[order] - deletion[order]);
  return [
    "Finds what counts",
    `${lead("map")}; the same shape laid elsewhere ${lead("random")}, the centre ${lead("centre")}, the edge ${lead("edge")}. ` +
      "1 would be best, 0 says nothing.",
  ];
}

function steadiness({ noise, mirror }) {
  const share = (value) => (value === null ? "no figure" : figure(value));
  return ["Stays the same", `with a little noise ${share(noise)}, mirrored ${share(mirror)}. 1: unchanged, 0: another map.`];
}
