// The layers of a model that a method can look at, from the first to the last.

import { ask } from "../server.js";

const known = new Map(); // by model

// Returns {default, layers}: the layers that keep the picture's rows and columns.
export async function spatialLayers(model, signal) {
  if (!known.has(model)) {
    const listing = await ask(`v1/models/${encodeURIComponent(model)}/layers`, { signal });
    known.set(model, { default: listing.default, layers: listing.layers.filter((layer) => layer.spatial) });
  }
  return known.get(model);
}

// At most `most` of them, evenly over the depth, the first and the last among them.
export function spread(layers, most) {
  if (layers.length <= most) return layers;
  return Array.from({ length: most }, (_, place) => layers[Math.round((place * (layers.length - 1)) / (most - 1))]);
}
