"""What an operator sees and does."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import redis
from playwright.sync_api import Browser, Page, expect

from penstock.dashboard.security import SESSION_COOKIE
from penstock.sync import StreamClient, StreamProducer
from tests.browser.conftest import PATIENCE_MS
from tests.dashboard.conftest import running
from tests.dashboard.test_pages import addresses

pytestmark = pytest.mark.usefixtures("default_server")
PICTURES = Path(__file__).parents[2] / "docs" / "images"
PHONE, SCREEN = {"width": 390, "height": 844}, {"width": 1280, "height": 860}
TOKEN = "a token of 20 letters"


def violations(page: Page, axe: str) -> list[str]:
    """Returns what axe finds that is serious or worse."""
    page.evaluate(axe)  # not as a <script>, which the policy of the page refuses
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {[node['target'] for node in each['nodes']][:3]}"
        for each in found["violations"]
        if each["impact"] in {"serious", "critical"}
    ]


def overflow(page: Page) -> int:
    """Returns by how many pixels the page is wider than the screen."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_is_accessible_and_fits_in_both_themes(page: Page, raw: redis.Redis, axe: str, theme: Any) -> None:
    page.emulate_media(color_scheme=theme)
    found = {}
    for address in addresses(raw):
        page.goto(address)
        found[address] = [*violations(page, axe), *(["too wide"] if overflow(page) else [])]
    assert {address: wrong for address, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_questions_errors_and_the_login_are_accessible(
    browser: Browser, redis_url: str, address: str, raw: redis.Redis, axe: str, theme: Any
) -> None:
    pending = raw.xpending_range("orders", "billing", "-", "+", 1)[0]["message_id"].decode()
    paths = [
        "/confirm/redrive?stream=orders", "/confirm/purge?stream=orders&reason=none", "/confirm/trim?stream=orders",
        f"/confirm/claim?stream=orders&group=billing&id={pending}", "/nowhere", "/stream?name=none", "/stream",
    ]  # fmt: skip
    found = {}
    with running(redis_url, token=TOKEN) as locked:
        for path in [*(address + path for path in paths), f"{locked}/login", f"{locked}/login?token=wrong"]:
            for size in (SCREEN, PHONE):
                page = browser.new_page(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
                page.goto(path)
                found[path] = [*violations(page, axe), *(["too wide"] if overflow(page) else [])]
                page.close()
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_dialogs_are_accessible(page: Page, axe: str) -> None:
    found = {}
    for path, button in (
        ("/dead-letters?stream=orders", "Redrive all that match…"), ("/dead-letters?stream=orders", "Delete all that match…"),
        ("/group?stream=orders&group=billing", "Claim…"), ("/group?stream=orders&group=billing", "Dead-letter…"),
    ):  # fmt: skip
        page.goto(path)
        if not button.endswith("match…"):
            page.locator("tbody input[type=checkbox]").first.check()
        page.get_by_role("button", name=button).click()
        expect(page.get_by_role("dialog").get_by_role("link", name="Cancel")).to_be_visible()
        found[button] = violations(page, axe)
    page.goto("/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    found["?"] = violations(page, axe)
    assert {button: wrong for button, wrong in found.items() if wrong} == {}


def test_with_a_token_a_browser_logs_in_and_works(
    browser: Browser, redis_url: str, world: StreamClient, raw: redis.Redis
) -> None:
    with running(redis_url, token=TOKEN, allow_actions=True) as address:
        context = browser.new_context(base_url=address)
        page = context.new_page()
        page.goto("/dead-letters?stream=orders")
        expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
        page.get_by_label("Token").fill("a wrong token of 20 letters")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_have_text("Wrong token.")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("#live-status")).to_have_text("live")
        assert page.url == f"{address}/dead-letters?stream=orders"
        page.get_by_role("button", name="Delete all that match…").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_role("status").filter(has_text="deleted")).to_be_visible()
        assert raw.xlen("orders_dlq") == 0
        assert TOKEN not in page.content()
        [cookie] = [each for each in context.cookies() if each["name"] == SESSION_COOKIE]
        assert cookie["httpOnly"]
        assert cookie["sameSite"] == "Strict"
        context.close()


def test_every_page_fits_on_a_phone(page: Page, raw: redis.Redis, axe: str) -> None:
    page.set_viewport_size(PHONE)
    found = {}
    for address in addresses(raw):
        page.goto(address)
        found[address] = [*violations(page, axe), *([f"{overflow(page)} px too wide"] if overflow(page) else [])]
    assert {address: wrong for address, wrong in found.items() if wrong} == {}
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Dead letters").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Dead letters")


def test_the_overview_is_live_and_draws_charts(page: Page, world: StreamClient) -> None:
    page.goto("/")
    expect(page.locator(".uplot")).to_have_count(5)
    expect(page.locator("#live-status")).to_have_text("live")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="invoices", exact=True))
    before = row.get_by_role("cell").nth(7).inner_text()
    StreamProducer(world, "invoices").push_many([{"order": i} for i in range(40)])
    expect(row.get_by_role("cell").nth(7)).not_to_have_text(before)
    expect(row.get_by_role("cell").nth(7)).to_have_text("100")


def test_updates_pause_while_rows_are_selected_and_when_asked_to(
    page: Page, world: StreamClient, raw: redis.Redis
) -> None:
    page.goto("/group?stream=orders&group=billing")
    box = page.locator("tbody input[type=checkbox]").first
    box.check()
    expect(page.locator("#live-status")).to_have_text("paused while you select")
    raw.xack("orders", "billing", *[row["message_id"] for row in raw.xpending_range("orders", "billing", "-", "+", 5)])
    expect(box).to_be_checked()
    box.uncheck()
    expect(page.locator("dl.numbers")).to_contain_text("25")
    page.keyboard.press("p")
    expect(page.locator("#live-status")).to_have_text("paused")
    page.reload()
    expect(page.locator("#live-status")).to_have_text("paused")


def test_the_feed_closes_while_the_tab_is_hidden(page: Page) -> None:
    page.goto("/")
    expect(page.locator("#live-status")).to_have_text("live")
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true})"
    page.evaluate(hide % "true")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_load_state("networkidle")  # a feed that were open would never let it come to rest
    page.evaluate(hide % "false")
    with page.expect_request(re.compile("/events")):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_selected_dead_letters_are_redriven_after_a_confirmation_with_their_count(page: Page, raw: redis.Redis) -> None:
    dead, waiting = raw.xlen("orders_dlq"), raw.xlen("orders")
    page.goto("/dead-letters?stream=orders")
    for box in page.locator("tbody input[type=checkbox]").all()[:2]:
        box.check()
    expect(page.get_by_text("2 selected")).to_be_visible()
    page.get_by_role("button", name="Redrive…", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Redrive 2 dead letters")
    assert raw.xlen("orders_dlq") == dead
    dialog.get_by_role("button", name="Redrive").click()
    expect(page.get_by_role("status").filter(has_text="redriven")).to_contain_text(
        "2 dead letters of orders_dlq redriven."
    )
    assert (raw.xlen("orders_dlq"), raw.xlen("orders")) == (dead - 2, waiting + 2)


def test_all_dead_letters_of_a_cause_are_redriven(page: Page, raw: redis.Redis) -> None:
    page.goto("/dead-letters?stream=orders")
    page.get_by_role("button", name=re.compile("redrive all… of")).first.click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    expect(page.get_by_role("status").filter(has_text="redriven")).to_be_visible()
    assert raw.xlen("orders_dlq") == 0


def test_a_dead_letter_is_edited_and_redriven(page: Page, raw: redis.Redis) -> None:
    waiting = raw.xlen("orders")
    page.goto("/dead-letters?stream=orders")
    page.locator("#live form td.id a").first.click()
    page.get_by_label("Payload").fill('{"order": 999, "customer": "c-1"}')
    page.get_by_role("button", name="Redrive with this payload…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Redrive with this payload")
    assert raw.xlen("orders") == waiting
    dialog.get_by_role("button", name="Redrive").click()
    expect(page.get_by_role("status").filter(has_text="redriven")).to_be_visible()
    [(_, fields)] = raw.xrevrange("orders", count=1)
    assert json.loads(fields[b"data"])["order"] == 999


def test_pending_messages_are_claimed_for_another_consumer(page: Page, raw: redis.Redis) -> None:
    page.goto("/group?stream=orders&group=billing")
    page.locator("tbody input[type=checkbox]").first.check()
    page.get_by_role("button", name="Claim…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Claim 1 message")
    dialog.get_by_label("To consumer").fill("billing-new")
    dialog.get_by_label("Only if idle").fill("")
    dialog.get_by_role("button", name="Claim").click()
    expect(page.get_by_role("status").filter(has_text="claimed")).to_contain_text(
        "1 message of 1 claimed for billing-new"
    )
    assert len(raw.xpending_range("orders", "billing", "-", "+", 5, consumername="billing-new")) == 1


def test_a_dialog_is_left_without_doing_anything(page: Page, raw: redis.Redis) -> None:
    dead = raw.xlen("orders_dlq")
    page.goto("/dead-letters?stream=orders")
    page.get_by_role("button", name="Delete all that match…").click()
    expect(page.get_by_role("dialog")).to_contain_text(f"Delete {dead} dead letters")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert raw.xlen("orders_dlq") == dead
    assert not raw.exists("penstock-audit")


def test_the_keyboard_goes_to_pages_and_rows(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page.get_by_role("heading", level=1)).to_have_text("Streams")
    page.wait_for_load_state()  # its heading is there before its script, which hears the keys
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.closest('tr').rowIndex") == 1
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.closest('tr').rowIndex") == 2
    page.keyboard.press("/")
    page.keyboard.type("inv")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert "match=inv" in page.url
    page.locator("h1").click()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next and previous row")


def test_a_chosen_theme_stays(page: Page) -> None:
    page.emulate_media(color_scheme="light")
    page.goto("/")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_label("Theme").select_option("dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.goto("/streams")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_text_of_a_message_is_never_markup(page: Page, raw: redis.Redis) -> None:
    hostile = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><b id=injected>"
    entry_id = raw.xadd(hostile, {"data": json.dumps({hostile: hostile}), hostile: hostile}).decode()
    raw.xgroup_create(hostile, hostile, "0")
    raw.xadd("orders_dlq", {"data": hostile, "dlq_reason": hostile, "dlq_error": hostile, "dlq_traceback": hostile})
    page.on("dialog", lambda dialog: pytest.fail(f"a message opened a dialog: {dialog.message}"))
    page.goto("/streams")
    page.get_by_role("link", name=hostile[:20]).click()
    expect(page.locator("h1")).to_contain_text("<script>alert(1)</script>")
    page.get_by_role("link", name=entry_id).click()
    expect(page.locator("pre").first).to_contain_text("onerror=alert(2)")
    for address in ("/", "/dead-letters?stream=orders", "/retention", "/workers"):
        page.goto(address)
        expect(page.locator("#injected")).to_have_count(0)


@pytest.mark.skipif(not os.environ.get("PENSTOCK_PICTURES"), reason="make pictures writes the pictures of the docs")
def test_pictures_of_the_main_pages(browser: Browser, address: str, world: StreamClient) -> None:
    PICTURES.mkdir(exist_ok=True)
    pictures = {
        "overview": ("/", "light"),
        "overview-dark": ("/", "dark"),
        "group": ("/group?stream=orders&group=billing", "light"),
        "dead-letters": ("/dead-letters?stream=orders", "light"),
    }
    producer = StreamProducer(world, "invoices")
    for name, (path, theme) in pictures.items():
        page = browser.new_page(base_url=address, viewport={"width": 1280, "height": 800}, color_scheme=theme)  # type: ignore[arg-type]
        page.set_default_timeout(PATIENCE_MS)
        page.goto(path)
        if path == "/":
            for _ in range(12):  # something to draw
                producer.push_many([{"order": i} for i in range(5)])
                with page.expect_response(lambda reply: reply.request.headers.get("hx-request") == "true"):
                    pass
        page.screenshot(path=PICTURES / f"dashboard-{name}.png")
        page.close()
