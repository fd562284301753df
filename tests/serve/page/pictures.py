"""The pictures of the page in docs/: `python -m tests.serve.page.pictures ENGINE FOLDER`, with ten users at work."""

from __future__ import annotations

import random
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
from playwright.sync_api import Page, sync_playwright

from tests.serve.page.conftest import CHROMIUM, FLAGS
from tests.serve.page.waiting import until_page
from tests.serve.serving import served

SYSTEM = "You are a careful assistant who answers questions about nature, cooking, history and language. " * 6
QUESTIONS = ("Why do leaves fall in autumn?", "How do I bake bread?", "What is a haiku?", "How do bees find their way?")
UNSURE = """[...document.querySelectorAll('.token')].findIndex(
    (t, at) => at > 5 && /^ [a-z]{4,}/.test(t.textContent) && t.dataset.sure !== 'yes')"""


def use(url: str, number: int, over: threading.Event) -> None:
    """One user, who asks again and again, until the server is gone."""
    draw = random.Random(number)
    with httpx.Client(timeout=300) as client, suppress(httpx.HTTPError):
        while not over.is_set():
            body = {
                "messages": [
                    {"role": "system", "content": SYSTEM if number % 2 else SYSTEM[:300]},
                    {"role": "user", "content": draw.choice(QUESTIONS)},
                ],
                "max_tokens": draw.randint(40, 220),
                "latency": ("interactive", "standard", "batch")[number % 3],
                "stream": True,
            }
            with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
                for _ in answer.iter_lines():
                    if over.is_set():
                        return
            time.sleep(2 * draw.random())


def ask(page: Page) -> None:
    page.get_by_text("Settings").click()
    page.get_by_label("Seed").fill("3")
    page.get_by_label("Temperature").fill("0.7")
    page.get_by_label("Max tokens").fill("160")
    page.get_by_text("Settings").click()
    page.get_by_label("Message", exact=True).fill("Why is the sky blue?")
    page.keyboard.press("Enter")
    page.wait_for_selector(".message .facts", state="visible", timeout=300_000)


def take(url: str, folder: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1360, "height": 860})
        page.goto(url)
        until_page(page, "document.getElementById('state').textContent === 'ready'")
        time.sleep(30)  # the line of tokens a second shows so much
        ask(page)
        page.locator(".token").nth(page.evaluate(UNSURE)).hover()
        page.screenshot(path=folder / "page.png")
        page.mouse.move(300, 600)
        page.emulate_media(color_scheme="dark")
        page.evaluate("document.getElementById('engine').scrollTop = 1000")
        time.sleep(1)
        page.screenshot(path=folder / "page-dark.png")
        narrow = browser.new_page(viewport={"width": 360, "height": 720})
        narrow.goto(url)
        narrow.get_by_role("button", name="Engine").click()
        time.sleep(15)
        narrow.screenshot(path=folder / "page-narrow.png")
        browser.close()


def main(engine: Path, folder: Path) -> None:
    over = threading.Event()
    with ExitStack() as stack:
        options = ("--threads", "2", "--max-batch", "16", "--kv-memory", "180000000")
        server = stack.enter_context(served(engine, *options, name=engine.name))
        stack.callback(over.set)
        for number in range(10):
            threading.Thread(target=use, args=(server.url, number, over), daemon=True).start()
        take(server.url, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
