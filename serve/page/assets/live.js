// The engine at work: asks the server how it is, twice a second while somebody looks.

import { request } from "./api.js";
import { bars, line } from "./charts.js";
import { colours } from "./colours.js";
import { drawPools } from "./pools.js";

const PERIOD = 500;
const SAMPLES = 60; // of the line: half a minute
const WORDS = { starting: "starting", shutting_down: "shutting down", engine_gone: "engine gone" };
const of = (id) => document.getElementById(id);
const rates = [];
let last = null; // {model, at, tokens}

export async function follow(select) {
  for (;;) {
    if (!document.hidden) await look(select);
    await new Promise((resolve) => setTimeout(resolve, PERIOD));
  }
}

async function look(select) {
  let live;
  try {
    live = await (await request("/llmc/live")).json();
  } catch {
    return say("server gone", "gone");
  }
  say(WORDS[live.state] ?? live.state, live.state === "ready" ? "ready" : live.state === "engine_gone" ? "gone" : "");
  list(select, Object.keys(live.models));
  const model = live.models[select.value];
  if (!model) return;
  const colour = colours(model.requests);
  now(select.value, model, colour);
  drawPools(of("pools"), of("kv-hover"), model, colour);
  cache(model);
  requests(model, colour);
  latencies(model.histograms);
  totals(model.counters, model.cache);
  of("facts").textContent = facts(model.facts);
}

function say(text, state) {
  const pill = of("state");
  if (pill.textContent !== text) pill.textContent = text;
  pill.dataset.state = state;
}

function list(select, names) {
  if (names.join("\n") === [...select.options].map((option) => option.value).join("\n")) return;
  select.replaceChildren(...names.map((name) => new Option(name, name)));
  select.disabled = names.length < 2;
}

function now(name, model, colour) {
  const at = performance.now();
  const tokens = model.counters.generated_tokens;
  if (last?.model !== name) rates.length = 0;
  else rates.push((1000 * Math.max(0, tokens - last.tokens)) / (at - last.at));
  last = { model: name, at, tokens };
  if (rates.length > SAMPLES) rates.shift();
  const recent = rates.slice(-3);
  const rate = recent.reduce((sum, one) => sum + one, 0) / (recent.length || 1);
  const { step } = model;
  const busy = model.running > 0;
  of("step").textContent = busy && step.kind !== "idle" ? step.kind : "idle";
  of("step").nextElementSibling.textContent = busy && step.tokens ? `${step.tokens} tok in ${time(step.seconds)}` : "step";
  of("rate").textContent = rate >= 100 ? Math.round(rate) : rate.toFixed(1);
  of("batch").textContent = `${model.running} / ${model.facts.max_batch}`;
  of("waiting").textContent = model.waiting;
  slots(model, colour);
  line(of("rate-line"), rates, SAMPLES);
}

// A place for each request that can run at once, up to as many as can be told apart.
function slots(model, colour) {
  const row = of("slots");
  const count = Math.min(model.facts.max_batch, 64);
  while (row.children.length > count) row.lastChild.remove();
  while (row.children.length < count) row.append(document.createElement("i"));
  const running = model.requests.filter((request) => request.state === "running");
  [...row.children].forEach((place, at) => {
    const filled = at < running.length ? colour(running[at]) : at < Math.min(model.running, count) ? "var(--accent)" : "";
    place.style.background = filled;
  });
  row.setAttribute("aria-label", `Batch: ${model.running} of ${model.facts.max_batch} places taken`);
}

function cache({ pools, cache }) {
  const sum = (name) => pools.reduce((total, pool) => total + pool[name], 0);
  const looked = cache.hits + cache.misses;
  const parts = [`${Math.round((100 * sum("held")) / (sum("total") || 1))} % held`];
  if (sum("cached")) parts.push(`${sum("cached")} cached`);
  if (looked) parts.push(`${Math.round((100 * cache.hits) / looked)} % hits`);
  of("kv-text").textContent = parts.join(" · ");
}

function requests(model, colour) {
  of("requests-text").textContent = `${model.running} running · ${model.waiting} waiting`;
  const order = { running: 0, waiting: 1 };
  const shown = [...model.requests].sort((a, b) => (order[a.state] ?? 2) - (order[b.state] ?? 2)).slice(0, 12);
  const rows = shown.map((one) => {
    const name = `${one.id.slice(-6)}${one.sample ? `·${one.sample}` : ""}`;
    return row([name, one.state, one.latency, count(one.prompt_len), count(one.output_len)], colour(one));
  });
  if (model.requests.length > shown.length) rows.push(note(`and ${model.requests.length - shown.length} more`));
  if (!rows.length) rows.push(note("Nobody asks for anything"));
  of("requests").tBodies[0].replaceChildren(...rows);
}

function row(cells, colour) {
  const made = document.createElement("tr");
  cells.forEach((text, at) => {
    const cell = made.insertCell();
    if (at === 0) cell.appendChild(document.createElement("i")).style.background = colour;
    cell.append(text);
    cell.classList.toggle("number", at > 2);
  });
  return made;
}

function note(text) {
  const made = document.createElement("tr");
  const cell = made.insertCell();
  cell.colSpan = 5;
  cell.className = "none";
  cell.textContent = text;
  return made;
}

function latencies({ ttft, tpot }) {
  for (const [name, buckets] of [["ttft", ttft], ["tpot", tpot]]) {
    const { half, most } = bars(of(name), buckets, time);
    of(`${name}-text`).textContent = half === null ? "none yet" : `p50 ${time(half)} · p95 ${time(most)}`;
  }
}

function totals(counters, cache) {
  const { goodput, ...others } = { ...counters, ...cache };
  const names = { finished: "answered", cancelled: "cancelled", failed: "failed", preempted: "preempted", prompt_tokens: "tokens read", generated_tokens: "tokens written", tokens_saved: "tokens cached" };
  const entries = Object.entries(names).map(([name, label]) => [label, count(others[name])]);
  for (const [latency, number] of Object.entries(goodput)) entries.push([`${latency} in time`, count(number)]);
  of("totals").replaceChildren(...entries.map(([label, value]) => {
    const group = document.createElement("div");
    group.appendChild(document.createElement("dt")).textContent = label;
    group.appendChild(document.createElement("dd")).textContent = value;
    return group;
  }));
}

function facts({ architecture, dtype, target, max_len, block_tokens, weights_bytes, kv_bytes, version }) {
  const bytes = (n) => (n >= 2 ** 30 ? `${(n / 2 ** 30).toFixed(1)} GiB` : `${(n / 2 ** 20).toFixed(1)} MiB`);
  return `${architecture}, ${dtype} on ${target} · ${count(max_len)} tokens of context · blocks of ${block_tokens} tokens · ` +
    `${bytes(weights_bytes)} of weights, ${bytes(kv_bytes)} of KV · llmc ${version}`;
}

function time(seconds) {
  return seconds >= 10 ? `${Math.round(seconds)} s` : seconds >= 1 ? `${seconds.toFixed(1)} s` : seconds >= 0.01 ? `${Math.round(1000 * seconds)} ms` : `${(1000 * seconds).toFixed(1)} ms`;
}

function count(number) {
  return number >= 1e6 ? `${(number / 1e6).toFixed(1)} M` : number >= 1e4 ? `${(number / 1e3).toFixed(1)} k` : String(number);
}
