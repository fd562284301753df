// A line of what was, and bars of how often.

import { plain } from "./colours.js";

// The newest value is at the right end; there is room for `length` of them.
export function line(canvas, values, length) {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!width) return;
  const scale = devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const most = Math.max(1, ...values);
  const x = (at) => width - ((values.length - 1 - at) * width) / (length - 1);
  const y = (value) => height - 2 - (value / most) * (height - 6);
  context.strokeStyle = plain("var(--line)");
  context.beginPath();
  context.moveTo(0, height - 1);
  context.lineTo(width, height - 1);
  context.stroke();
  if (values.length < 2) return;
  context.beginPath();
  values.forEach((value, at) => context.lineTo(x(at), y(value)));
  context.strokeStyle = plain("var(--accent)");
  context.lineWidth = 1.6;
  context.lineJoin = "round";
  context.stroke();
  context.lineTo(width, height - 1);
  context.lineTo(x(0), height - 1);
  context.globalAlpha = 0.12;
  context.fillStyle = plain("var(--accent)");
  context.fill();
  canvas.setAttribute("aria-label", `Tokens per second, the last half minute: now ${Math.round(values.at(-1))}, at most ${Math.round(most)}`);
}

// `buckets`: [upper bound, how many up to it]. Gives the bounds below which half and 95 % are; null if there are none.
export function bars(place, buckets, words) {
  const total = buckets.at(-1)?.[1] ?? 0;
  const each = buckets.map(([bound, upTo], at) => ({ bound, number: upTo - (buckets[at - 1]?.[1] ?? 0) }));
  const used = each.filter((bucket) => bucket.number).map((bucket) => each.indexOf(bucket));
  const from = Math.max(0, (used[0] ?? 0) - 2);
  const shown = each.slice(from, Math.max((used.at(-1) ?? 0) + 3, from + 8));
  const most = Math.max(1, ...shown.map((bucket) => bucket.number));
  place.replaceChildren(...shown.map(({ bound, number }) => {
    const bar = document.createElement("i");
    bar.style.height = `${(100 * number) / most}%`;
    bar.title = `${number} ≤ ${words(bound)}`;
    return bar;
  }));
  scale(place, shown, words);
  if (!total) {
    place.setAttribute("aria-label", "none yet");
    return { half: null, most: null };
  }
  const below = (share) => buckets.find(([, upTo]) => upTo >= share * total)[0];
  place.setAttribute("aria-label", `${total} in all, half at most ${words(below(0.5))}, 95 % at most ${words(below(0.95))}`);
  return { half: below(0.5), most: below(0.95) };
}

function scale(place, shown, words) {
  let ends = place.nextElementSibling;
  if (!ends) {
    ends = place.parentElement.appendChild(document.createElement("div"));
    ends.className = "scale";
    ends.append(document.createElement("span"), document.createElement("span"));
  }
  ends.firstChild.textContent = words(shown[0].bound);
  ends.lastChild.textContent = words(shown.at(-1).bound);
}
