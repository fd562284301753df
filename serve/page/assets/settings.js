// What the form of settings says, kept in this browser; fields that are empty are the model's own.

const KEPT = "llmc.settings";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"];
const form = document.getElementById("composer");

export function restore(changed) {
  const kept = JSON.parse(localStorage.getItem(KEPT) ?? "{}");
  for (const field of fields()) {
    if (!(field.name in kept)) continue;
    if (field.type === "checkbox") field.checked = kept[field.name];
    else field.value = kept[field.name];
  }
  document.getElementById("settings").addEventListener("input", () => {
    localStorage.setItem(KEPT, JSON.stringify(values()));
    changed(values());
  });
  changed(values());
}

export function values() {
  return Object.fromEntries(fields().map((field) => [field.name, field.type === "checkbox" ? field.checked : field.value]));
}

// The fields of a request that are set.
export function sampling() {
  const given = values();
  const set = NUMBERS.filter((name) => given[name] !== "");
  return {
    ...Object.fromEntries(set.map((name) => [name, Number(given[name])])),
    latency: given.latency,
    ...(given.alternatives ? { logprobs: true, top_logprobs: 6 } : {}),
  };
}

// The first field with a value that it cannot have, named for people; null if all are right.
export function mistake() {
  const wrong = fields().find((field) => !field.checkValidity());
  return wrong ? `${wrong.closest("label").textContent.trim()}: ${wrong.validationMessage}` : null;
}

function fields() {
  return [...form.querySelectorAll("#settings [name]")];
}
