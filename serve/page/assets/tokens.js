// An answer's text as the tokens that it was chosen in, and the card of what else might have been chosen.

const card = document.getElementById("alternatives");
const decoder = new TextDecoder();

// Pieces of `content`, each with its token's entry of logprobs. One piece without an entry if they do not fit.
export function pieces(entries, content) {
  const text = decoder.decode(Uint8Array.from(entries.flatMap((entry) => entry.bytes ?? [])));
  const start = text.lastIndexOf(content);
  const starts = firstUnits(entries);
  if (!content || start < 0 || starts.at(-1) !== text.length) return content ? [{ text: content, entry: null }] : [];
  const found = [];
  entries.forEach((entry, at) => {
    const from = Math.max(starts[at], start);
    const to = Math.min(starts[at + 1], start + content.length);
    if (from < to) found.push({ text: text.slice(from, to), entry });
  });
  return found;
}

// Where each token's text begins, in the units of strings; a character belongs to the token of its first byte.
function firstUnits(entries) {
  const starts = [0];
  for (const entry of entries) {
    let units = 0;
    for (const byte of entry.bytes ?? []) units += byte >= 0xf0 ? 2 : byte >= 0xc0 || byte < 0x80 ? 1 : 0;
    starts.push(starts.at(-1) + units);
  }
  return starts;
}

// Bring the spans of `body` in line with the text; those that are right stay as they are.
export function show(body, entries, content) {
  const wanted = entries.length ? pieces(entries, content) : content ? [{ text: content, entry: null }] : [];
  wanted.forEach((piece, at) => {
    let span = body.children[at];
    if (!span) span = body.appendChild(document.createElement("span"));
    if (span.textContent !== piece.text) span.textContent = piece.text;
    if (span.entry === piece.entry) return;
    span.entry = piece.entry;
    span.className = piece.entry ? "token" : "";
    if (piece.entry) span.dataset.sure = sure(Math.exp(piece.entry.logprob));
  });
  while (body.children.length > wanted.length) body.lastChild.remove();
}

function sure(probability) {
  return probability < 0.2 ? "low" : probability < 0.55 ? "some" : "yes";
}

// Pointing at a token shows its alternatives; in an answer that has the focus, the arrows walk from token to token.
export function watch(messages) {
  messages.addEventListener("pointerover", (event) => point(event.target.closest(".token")));
  messages.addEventListener("pointerleave", () => point(null));
  messages.addEventListener("scroll", () => point(null));
  messages.addEventListener("focusout", () => point(null));
  messages.addEventListener("keydown", (event) => {
    if (!event.target.classList.contains("body")) return;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") point(null);
    if (!step) return;
    event.preventDefault();
    const tokens = [...event.target.querySelectorAll(".token")];
    const now = tokens.findIndex((token) => token.classList.contains("current"));
    point(tokens[Math.max(0, Math.min(tokens.length - 1, now + step))]);
  });
}

function point(span) {
  document.querySelector(".token.current")?.classList.remove("current");
  card.hidden = !span?.entry;
  if (card.hidden) return;
  span.classList.add("current");
  card.replaceChildren(list(span.entry));
  place(span.getClientRects()[0]);
}

function list(entry) {
  const rows = document.createElement("ol");
  const others = entry.top_logprobs.filter((other) => other.token !== entry.token);
  const all = [entry, ...others].sort((a, b) => b.logprob - a.logprob);
  for (const one of all) {
    const row = rows.appendChild(document.createElement("li"));
    const share = Math.exp(one.logprob);
    row.appendChild(document.createElement("i")).style.width = `${100 * share}%`;
    row.appendChild(document.createElement("code")).textContent = visible(one.token);
    row.appendChild(document.createElement("span")).textContent = percent(share);
    row.classList.toggle("chosen", one === entry);
  }
  return rows;
}

function place(token) {
  const { width, height } = card.getBoundingClientRect();
  const below = token.bottom + 8;
  card.style.left = `${Math.max(12, Math.min(token.left, innerWidth - width - 12))}px`;
  card.style.top = `${below + height < innerHeight ? below : Math.max(8, token.top - height - 8)}px`;
}

function visible(token) {
  return token.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
}

function percent(share) {
  return share >= 0.0995 ? `${Math.round(100 * share)} %` : share >= 0.001 ? `${(100 * share).toFixed(1)} %` : "< 0.1 %";
}
