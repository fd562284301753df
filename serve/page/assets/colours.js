// A colour for each request, as long as it lives; neighbours in time are far apart on the wheel.

const hues = new Map();
let next = 212;

export const keyOf = (request) => `${request.id}/${request.sample}`;

// For these requests; the colours of those that are gone are forgotten.
export function colours(requests) {
  const living = new Set(requests.map(keyOf));
  for (const key of hues.keys()) if (!living.has(key)) hues.delete(key);
  for (const key of living) {
    if (hues.has(key)) continue;
    hues.set(key, next);
    next = (next + 137.5) % 360;
  }
  return (request) => `hsl(${hues.get(keyOf(request))} var(--request-chroma) var(--request-light))`;
}

// What a colour with variables in it comes to, for canvases.
export function plain(colour) {
  const style = getComputedStyle(document.documentElement);
  return colour.replace(/var\((--[a-z-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
}
