// The conversation: what was said, and the answer that is under way.

import { events, request } from "./api.js";
import { MessageView } from "./message.js";
import { mistake, sampling, values } from "./settings.js";
import { watch } from "./tokens.js";

const messages = document.getElementById("messages");
const composer = document.getElementById("composer");
const prompt = document.getElementById("prompt");
const send = document.getElementById("send");
const stop = document.getElementById("stop");
let views = [];
let running = null; // the AbortController of the answer under way
let model = () => "";

export function begin(chosenModel) {
  model = chosenModel;
  watch(messages);
  composer.addEventListener("submit", (event) => {
    event.preventDefault();
    say();
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      say();
    }
  });
  prompt.addEventListener("input", fit);
  stop.addEventListener("click", () => running?.abort());
  document.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());
  document.getElementById("new-chat").addEventListener("click", () => cut(0));
}

function say() {
  const text = prompt.value.trim();
  if (!text || running) return;
  prompt.value = "";
  fit();
  add({ role: "user", content: text });
  answer();
}

function regenerate(message) {
  if (running) return;
  cut(views.findIndex((view) => view.message === message));
  answer();
}

function edit(message, content) {
  if (running) return;
  cut(views.findIndex((view) => view.message === message));
  add({ role: "user", content });
  answer();
}

// Forget all from this message on.
function cut(at) {
  running?.abort();
  for (const view of views.splice(at)) view.root.remove();
}

function add(message) {
  const view = new MessageView(message, { regenerate, edit });
  views.push(view);
  messages.append(view.root);
  messages.scrollTop = messages.scrollHeight;
  return view;
}

async function answer() {
  const said = views.map((view) => view.message);
  const message = {
    role: "assistant", content: "", reasoning: "", tokens: [], calls: [], running: true,
    reason: null, usage: null, error: mistake(), began: performance.now(), first: 0, last: 0,
  };
  const view = add(message);
  running = new AbortController();
  const mine = running;
  busy(true);
  let drawn = 0;
  const draw = () => {
    drawn ||= requestAnimationFrame(() => {
      drawn = 0;
      redraw(view);
    });
  };
  try {
    if (!message.error) await stream(said, message, mine.signal, draw);
  } catch (error) {
    if (error.name === "AbortError") message.reason = "stopped";
    else message.error = error.message || "the connection was lost";
  }
  message.running = false;
  redraw(view);
  if (running === mine) {
    running = null;
    busy(false);
  }
}

async function stream(said, message, signal, draw) {
  const system = values().system.trim();
  const body = {
    model: model(),
    messages: [...(system ? [{ role: "system", content: system }] : []), ...said.map(({ role, content }) => ({ role, content }))],
    stream: true,
    stream_options: { include_usage: true },
    ...sampling(),
  };
  for await (const chunk of events(await request("/v1/chat/completions", { body, signal }))) {
    if (chunk.error) throw new Error(chunk.error.message);
    message.usage = chunk.usage ?? message.usage;
    for (const choice of chunk.choices) take(message, choice);
    draw();
  }
}

function take(message, { delta, logprobs, finish_reason }) {
  message.content += delta.content ?? "";
  message.reasoning += delta.reasoning_content ?? "";
  message.tokens.push(...(logprobs?.content ?? []));
  for (const part of delta.tool_calls ?? []) {
    const call = (message.calls[part.index] ??= { name: "", arguments: "" });
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
  message.reason = finish_reason ?? message.reason;
  if (delta.content || delta.reasoning_content || delta.tool_calls || logprobs) {
    message.last = performance.now();
    message.first ||= message.last;
  }
}

// Follows the end, unless the reader has scrolled away from it.
function redraw(view) {
  const follows = messages.scrollHeight - messages.scrollTop - messages.clientHeight < 60;
  view.update();
  if (follows) messages.scrollTop = messages.scrollHeight;
}

function busy(now) {
  send.hidden = now;
  stop.hidden = !now;
  if (!now && document.activeElement === document.body) prompt.focus({ preventScroll: true });
}

function fit() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}
