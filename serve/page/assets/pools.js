// The KV cache as a map: a cell for each block, in the order of the pool, coloured by who holds it.

import { keyOf, plain } from "./colours.js";

const HEIGHT = 190; // at most, of all pools
const [FREE, CACHED, , SHARED] = [0, 1, 2, 3];

export function drawPools(place, hover, model, colour) {
  while (place.children.length > model.pools.length) place.lastChild.remove();
  model.pools.forEach((pool, group) => {
    place.children[group] ?? place.append(emptyPool(hover));
    const figure = place.children[group];
    const cells = owners(pool, group, model.requests);
    figure.firstChild.textContent = model.pools.length > 1 ? `Group ${group + 1}: ${pool.held} of ${pool.total} held` : "";
    figure.firstChild.hidden = model.pools.length === 1;
    draw(figure.lastChild, cells, colour, HEIGHT / model.pools.length);
    const shared = cells.filter((cell) => cell.state === SHARED).length;
    figure.lastChild.setAttribute("aria-label",
      `${pool.total} blocks: ${pool.held} held, ${shared} of them shared, ${pool.cached} cached, ${pool.free} free`);
  });
}

function emptyPool(hover) {
  const figure = document.createElement("div");
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  figure.append(document.createElement("p"), canvas);
  canvas.addEventListener("pointermove", (event) => {
    hover.textContent = canvas.tell?.(event.offsetX, event.offsetY) ?? "";
  });
  canvas.addEventListener("pointerleave", () => (hover.textContent = ""));
  return figure;
}

// Of each block its state, and the requests that hold it.
function owners(pool, group, requests) {
  const cells = Array.from({ length: pool.total }, (_, at) => ({ state: Number(pool.map[at] ?? FREE), holders: [] }));
  for (const request of requests) {
    for (const block of request.blocks[group] ?? []) cells[block]?.holders.push(request);
  }
  for (const cell of cells) if (cell.holders.length > 1) cell.state = SHARED;
  return cells;
}

function draw(canvas, cells, colour, height) {
  const width = canvas.parentElement.clientWidth;
  if (!width || !cells.length) return;
  const pitch = Math.max(2, Math.min(16, Math.floor(Math.sqrt((width * height) / cells.length))));
  const columns = Math.max(1, Math.floor(width / pitch));
  const rows = Math.ceil(cells.length / columns);
  const scale = devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = rows * pitch * scale;
  canvas.style.height = `${rows * pitch}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const gap = pitch >= 8 ? 2 : pitch >= 4 ? 1 : 0;
  const paint = painter(colour);
  cells.forEach((cell, at) => {
    context.fillStyle = paint(cell);
    context.beginPath();
    context.roundRect((at % columns) * pitch, Math.floor(at / columns) * pitch, pitch - gap, pitch - gap, pitch >= 8 ? 2.5 : 0);
    context.fill();
  });
  canvas.tell = (x, y) => {
    const at = Math.floor(y / pitch) * columns + Math.floor(x / pitch);
    return x < columns * pitch && cells[at] ? `Block ${at}: ${words(cells[at])}` : null;
  };
}

function painter(colour) {
  const [free, cached, shared, other] = ["--cell", "--cached", "--shared", "--accent"].map((name) => plain(`var(${name})`));
  const own = new Map();
  return ({ state, holders }) => {
    if (state === SHARED) return shared;
    if (!holders.length) return state === FREE ? free : state === CACHED ? cached : other;
    const key = keyOf(holders[0]);
    if (!own.has(key)) own.set(key, plain(colour(holders[0])));
    return own.get(key);
  };
}

function words({ state, holders }) {
  if (holders.length) return `${holders.length > 1 ? "shared by" : "held by"} ${holders.map((one) => one.id.slice(-6)).join(", ")}`;
  return ["free", "cached for a prefix that may come again", "held", "shared"][state];
}
