// One message of the conversation in the page. What models and people wrote goes in as text, never as markup.

import { show } from "./tokens.js";

// `actions`: regenerate and edit, called with the message.
export class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.root = element("article", `message ${message.role}`);
    this.root.setAttribute("aria-label", message.role === "user" ? "You" : "Answer");
    this.body = element("div", "body");
    this.footer = element("div", "actions");
    this.root.append(this.body, this.footer);
    if (message.role === "assistant") {
      this.body.tabIndex = 0;
      this.thoughts = null;
      this.calls = [];
      this.text = element("span", "text");
      this.body.append(this.text);
      this.body.setAttribute("aria-description", "Arrow keys show the alternatives of each token");
    }
    this.update();
  }

  update() {
    const { message } = this;
    if (message.role === "user") {
      this.body.textContent = message.content;
      this.footer.replaceChildren(this.button("Edit", () => this.edit()));
      return;
    }
    this.root.setAttribute("aria-busy", String(message.running));
    this.reasoning();
    show(this.text, message.tokens, message.content);
    message.calls.forEach((call, at) => this.call(call, at));
    if (message.error && !this.error) this.error = this.root.insertBefore(element("p", "error"), this.footer);
    if (this.error) this.error.textContent = message.error;
    if (!message.running) this.end();
  }

  reasoning() {
    if (!this.message.reasoning) return;
    if (!this.thoughts) {
      this.thoughts = element("details");
      this.thoughts.append(element("summary"), element("div"));
      this.root.insertBefore(this.thoughts, this.body);
    }
    const thinking = this.message.running && !this.message.content;
    this.thoughts.firstChild.textContent = thinking ? "Thinking …" : "Reasoning";
    this.thoughts.lastChild.textContent = this.message.reasoning;
  }

  call(call, at) {
    this.calls[at] ??= this.root.insertBefore(element("p", "call"), this.footer);
    this.calls[at].textContent = `${call.name}(${call.arguments})`;
  }

  end() {
    const facts = element("span", "facts");
    facts.textContent = this.facts();
    this.footer.replaceChildren(this.button("Regenerate", () => this.actions.regenerate(this.message)), facts);
  }

  facts() {
    const { reason, usage, first, last, began } = this.message;
    const words = { length: "stopped at the limit", stopped: "stopped" };
    const parts = [words[reason]];
    if (usage) parts.push(`${usage.completion_tokens} tokens`);
    if (first) parts.push(`first after ${Math.round(first - began)} ms`);
    if (usage?.completion_tokens > 1 && last > first) {
      parts.push(`${((usage.completion_tokens - 1) / ((last - first) / 1000)).toFixed(1)} tokens/s`);
    }
    if (usage?.prompt_tokens_details?.cached_tokens) parts.push(`${usage.prompt_tokens_details.cached_tokens} prompt tokens cached`);
    return parts.filter(Boolean).join(" · ");
  }

  // In place: Enter sends what it has become, Escape leaves it as it was.
  edit() {
    const field = element("textarea");
    field.value = this.message.content;
    field.rows = Math.min(12, field.value.split("\n").length + 1);
    field.setAttribute("aria-label", "Edit your message");
    const leave = () => {
      field.replaceWith(this.body);
      this.update();
    };
    const send = () => field.value.trim() && this.actions.edit(this.message, field.value.trim());
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    this.body.replaceWith(field);
    this.footer.replaceChildren(this.button("Send again", send), this.button("Cancel", leave));
    field.focus();
  }

  button(label, act) {
    const button = element("button");
    button.type = "button";
    button.textContent = label;
    button.addEventListener("click", act);
    return button;
  }
}

function element(tag, className = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  return made;
}
