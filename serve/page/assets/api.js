// Requests to this server. A key, where it wants one, is asked for once and kept in this tab's session.

const KEY = "llmc.key";
let asking = null;

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// `method` GET, or POST where there is a body. The response is good, or Refused is thrown with the server's own words.
export async function request(path, { body, signal } = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = key ? { authorization: `Bearer ${key}` } : {};
    if (body) headers["content-type"] = "application/json";
    const response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
    if (response.ok) return response;
    if (response.status !== 401) throw new Refused(response.status, await cause(response));
    if (sessionStorage.getItem(KEY) === key) await askForKey(key !== null);
  }
}

// The data of server-sent events, parsed, up to [DONE].
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      if (!frame.startsWith("data: ")) continue;
      const data = frame.slice(6);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function cause(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

// All that wait for a key wait for the same dialog.
function askForKey(refused) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("key-dialog");
    const input = document.getElementById("key");
    const why = document.getElementById("key-why");
    why.textContent = refused ? "That key was not accepted." : "This server answers only who has a key.";
    why.classList.toggle("refused", refused);
    input.value = "";
    dialog.oncancel = (event) => event.preventDefault();
    dialog.onclose = () => {
      sessionStorage.setItem(KEY, input.value.trim());
      asking = null;
      resolve();
    };
    dialog.showModal();
  });
  return asking;
}
