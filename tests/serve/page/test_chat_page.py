"""The page in a browser: a conversation, from the first word to the last token."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from llmc.runtime.errors import QueueFull
from tests.serve.chat.styles import TEMPLATES
from tests.serve.page.conftest import OpenPage
from tests.serve.page.waiting import until, until_page
from tests.serve.scripted import TEXT, ScriptedEngine, says
from tests.serve.serving import served

LONG = "one two three four five six seven eight nine ten. " * 8


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answer(page: Page, at: int = -1) -> str:
    """The last answer, once it is whole."""
    until_page(page, "document.querySelector('.message.assistant:last-of-type')?.ariaBusy === 'false'")
    return page.locator(".message.assistant .text").nth(at).text_content() or ""


def prompts(engine: ScriptedEngine) -> list[str]:
    assert engine.tokenizer is not None
    return [engine.tokenizer.decode(stream.prompt) for stream in engine.streams]


def test_an_answer_is_seen_as_it_comes(open_page: OpenPage) -> None:
    engine = ScriptedEngine(script=says(TEXT), step_seconds=0.01)
    page = open_page(engine)
    page.evaluate("""() => {
        window.seen = new Set();
        const messages = document.getElementById("messages");
        new MutationObserver(() => seen.add(document.querySelector(".message.assistant .text")?.textContent))
            .observe(messages, {childList: true, subtree: true, characterData: true});
    }""")
    ask(page, "Why?")
    assert answer(page) == TEXT
    seen = [text for text in page.evaluate("[...window.seen]") if text]
    assert len(seen) > 3 and all(TEXT.startswith(text.rstrip("\ufffd")) for text in seen)
    assert page.locator(".message.user .body").text_content() == "Why?"
    assert "tokens" in (page.locator(".message.assistant .facts").text_content() or "")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()


def test_an_answer_can_be_stopped(open_page: OpenPage) -> None:
    engine = ScriptedEngine(script=says(LONG), step_seconds=0.02, max_len=4096)
    page = open_page(engine)
    ask(page, "Count")
    until_page(page, "document.querySelectorAll('.token').length > 3")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_hidden()
    page.get_by_role("button", name="Stop").click()
    shown = answer(page)
    assert shown and LONG.startswith(shown) and len(shown) < len(LONG)
    assert (page.locator(".facts").text_content() or "").startswith("stopped")
    until(lambda: engine.streams[0].cancelled, "the engine was never told")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def test_answers_are_made_again_and_questions_changed(open_page: OpenPage) -> None:
    engine = ScriptedEngine(max_len=4096)
    page = open_page(engine)
    page.get_by_text("Settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Max tokens").fill("9")
    page.get_by_label("Latency class").select_option("batch")
    for number, question in enumerate(("First?", "Second?"), 1):
        ask(page, question)
        until_page(page, f"document.querySelectorAll('.message .facts').length === {number}")
    page.get_by_role("button", name="Regenerate").last.click()
    until(lambda: len(engine.streams) == 3, "nothing was asked")
    answer(page)
    assert prompts(engine)[2] == prompts(engine)[1] and "First?" in prompts(engine)[2]
    assert "system\nBe brief." in prompts(engine)[2]
    page.get_by_role("button", name="Edit").first.click()
    page.get_by_label("Edit your message").fill("Other?")
    page.keyboard.press("Enter")
    until(lambda: len(engine.streams) == 4, "nothing was asked")
    answer(page)
    assert "Other?" in prompts(engine)[3] and "First?" not in prompts(engine)[3] and "Second?" not in prompts(engine)[3]
    assert page.locator(".message").count() == 2
    params, asked = engine.streams[3].params, engine.streams[3].asked
    assert (params.temperature, params.max_tokens, params.logprobs, asked["latency"]) == (0, 9, 6, "batch")
    page.reload()
    assert page.get_by_label("Temperature").input_value() == "0"  # settings are kept


def test_what_else_a_token_might_have_been(open_page: OpenPage) -> None:
    page = open_page(ScriptedEngine(script=says("grüße 🦜 there")))
    ask(page, "Hi")
    assert answer(page) == "grüße 🦜 there"
    tokens = page.locator(".token")
    assert "".join(tokens.all_text_contents()) == "grüße 🦜 there"
    card = page.locator("#alternatives")
    tokens.nth(1).hover()
    expect(card).to_be_visible()
    assert "r" in card.locator("li.chosen code").all_text_contents() and card.locator("li").count() >= 6
    page.mouse.move(2, 2)
    expect(card).to_be_hidden()
    page.locator(".message.assistant .body").focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_have_class("token current")
    expect(card).to_be_visible()
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()


def test_reasoning_is_folded_away(open_page: OpenPage) -> None:
    template = (TEMPLATES / "thinking.jinja").read_text()
    page = open_page(ScriptedEngine(script=says("<think>\nHm.\n</think>\n\nYes."), template=template))
    ask(page, "Is it?")
    assert answer(page) == "Yes." and "".join(page.locator(".token").all_text_contents()) == "Yes."
    thoughts = page.locator(".message.assistant details")
    assert thoughts.get_attribute("open") is None and thoughts.locator("div").text_content() == "Hm."


def test_text_is_never_markup(open_page: OpenPage) -> None:
    evil = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script><b>&amp;</b>'
    page = open_page(ScriptedEngine(name='<img src=x onerror="window.hacked=1">', script=says(evil), max_len=4096))
    ask(page, evil)
    assert answer(page) == evil and page.locator(".message.user .body").text_content() == evil
    page.locator(".token").first.hover()
    page.get_by_role("button", name="Edit").click()
    assert page.locator("#messages img, #messages script, #messages b, #model img").count() == 0
    assert page.evaluate("window.hacked") is None


def test_a_key_is_asked_for_and_kept_in_the_tab(open_page: OpenPage) -> None:
    page = open_page(ScriptedEngine(), key="sesame", ready=False)
    for key, why in (("wrong", "has a key"), ("sesame", "not accepted")):
        expect(page.locator("#key-why")).to_contain_text(why)
        page.get_by_label("Key", exact=True).fill(key)
        page.get_by_role("button", name="Continue").click()
    until_page(page, "document.getElementById('state').textContent === 'ready'")
    ask(page, "Hi")
    assert answer(page) == TEXT
    assert page.evaluate("[sessionStorage.length, Object.keys(localStorage).includes('llmc.key')]") == [1, False]
    page.reload()
    until_page(page, "document.getElementById('state').textContent === 'ready'")


def test_refusals_are_shown_in_the_servers_words(open_page: OpenPage) -> None:
    engine = ScriptedEngine(refusal=QueueFull("64 requests wait already", 3.0))
    page = open_page(engine)
    ask(page, "Hi")
    expect(page.locator(".message .error")).to_contain_text("64 requests wait already")
    engine.refusal = None
    page.get_by_role("button", name="Regenerate").click()
    until_page(page, "document.querySelector('.message.assistant .text')?.textContent.length > 3")
    page.get_by_text("Settings").click()
    page.get_by_label("Top p").fill("7")
    ask(page, "Hi")
    expect(page.locator(".message .error")).to_contain_text("Top p")


def test_the_model_that_is_chosen_answers(open_page: OpenPage) -> None:
    engines = [ScriptedEngine(name=name, script=says(f"I am {name}")) for name in ("one", "two")]
    page = open_page(*engines)
    page.get_by_label("Model").select_option("two")
    ask(page, "Who?")
    assert answer(page) == "I am two" and len(engines[0].streams) == 0
    page.get_by_role("button", name="New conversation").click()
    assert page.locator(".message").count() == 0


def test_over_a_real_engine(shared_engine: Path, open_url: OpenPage) -> None:
    with served(shared_engine) as server:
        page = open_url(server.url)
        page.get_by_text("Settings").click()
        page.get_by_label("Max tokens").fill("12")
        ask(page, "Hi")
        answer(page)
        facts = page.locator(".message.assistant .facts")
        assert "12 tokens" in (facts.text_content() or "")
        expect(page.locator("#facts")).to_contain_text("blocks of")
        # The answer, and the one that the server warmed up with.
        until_page(page, "document.querySelector('#totals dd').textContent === '2'")
