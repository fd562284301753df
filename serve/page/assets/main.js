// Puts the page together.

import { begin } from "./chat.js";
import { follow } from "./live.js";
import { restore } from "./settings.js";

const model = document.getElementById("model");

restore(({ tint }) => document.getElementById("messages").classList.toggle("tint", tint));
begin(() => model.value);
follow(model);

for (const button of document.querySelectorAll(".views button")) {
  button.addEventListener("click", () => {
    document.body.dataset.view = button.dataset.show;
    for (const other of document.querySelectorAll(".views button")) {
      other.setAttribute("aria-pressed", String(other === button));
    }
    dispatchEvent(new Event("resize"));
  });
}
