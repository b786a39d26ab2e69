"""The page in a real browser: asked, taught, compared; by mouse and keyboard, on a phone, light and dark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from served import Server, task_table

from ibpwf.serving.access import add_token

sync_api = pytest.importorskip("playwright.sync_api")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if BROWSER is None:
    pytest.skip("there is no Chromium", allow_module_level=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that must have nothing to complain of. Tests that start a server ask for `start` first: the page, which
    may still ask it for news, is then closed before it."""
    context = browser.new_context(viewport={"width": 1100, "height": 800})
    found = context.new_page()
    said: list[str] = []
    found.on("console", lambda message: said.append(message.text))
    found.on("pageerror", lambda error: said.append(str(error)))
    yield found
    context.close()
    assert said == []


def test_a_visitor_finds_models_tasks_and_answers(page, server: Server):
    page.goto(server.address)
    page.get_by_role("link", name="things").click()
    assert page.get_by_role("row").count() == 4
    assert "16 new" in page.locator("table").first.inner_text()
    page.set_input_files("#ask-file", server.models.parent / "test.csv")
    page.get_by_role("button", name="Predict with version 3").click()
    page.wait_for_selector("#ask tbody tr")
    assert page.locator("#ask tbody tr").count() == 30
    assert "familiar" in page.locator("#ask tbody").inner_text()
    page.set_input_files("#compare-file", server.models.parent / "test.csv")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_selector("#compare .good")
    assert "bit-identical" in page.locator("#compare").inner_text()
    page.get_by_role("link", name="2", exact=True).click()
    assert page.get_by_role("heading", level=1).inner_text() == "things version 2"


def test_a_file_is_dropped_on_the_page(page, server: Server):
    page.goto(f"{server.address}/models/things")
    text = (server.models.parent / "test.csv").read_text()
    dropped = page.evaluate_handle(
        "text => { const found = new DataTransfer(); found.items.add(new File([text], 'test.csv')); return found; }",
        text,
    )
    page.dispatch_event("#ask [data-drop]", "drop", {"dataTransfer": dropped})
    page.get_by_role("button", name="Predict with version 3").click()
    page.wait_for_selector("#ask tbody tr")
    assert "30 rows. " in page.locator("#ask .answer").inner_text()


def test_an_image_is_answered(page, server: Server, tmp_path):
    import numpy as np
    from served import png

    (tmp_path / "one.png").write_bytes(png(np.arange(16, dtype=np.uint8).reshape(4, 4)))
    page.goto(f"{server.address}/models/pictures")
    page.set_input_files("#ask-file", tmp_path / "one.png")
    page.get_by_role("button", name="Predict with version 2").click()
    page.wait_for_selector("#ask tbody tr")
    assert "novel" in page.locator("#ask tbody").inner_text()


def test_the_page_is_worked_from_the_keyboard_and_says_what_is_wrong(browser, server: Server):
    page = browser.new_context().new_page()
    page.goto(f"{server.address}/models/things")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.locator("#ask-text").focus()
    page.keyboard.type("f0,f1\n1,2")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#ask [role=alert]")
    assert "lacks columns" in page.locator("#ask [role=alert]").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_on_a_phone(browser, server: Server, scheme):
    page = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme=scheme).new_page()
    page.goto(f"{server.address}/models/things")
    page.set_input_files("#ask-file", server.models.parent / "test.csv")
    page.locator("#ask button").click()
    page.wait_for_selector("#ask tbody tr")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    for cell in page.locator("#ask tbody tr").first.locator("td").all():  # nor is anything out of sight
        box = cell.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    bright = sum(int(part) for part in ground[4:-1].split(","))
    assert (bright > 600) == (scheme == "light")


def test_a_task_is_taught_and_its_curve_is_seen(start, page, models):
    server = start()
    page.goto(f"{server.address}/models/things")
    page.fill("#teach-task", "colors")
    page.set_input_files("#teach-file", task_table(models.parent, 3))
    page.get_by_role("button", name="Learn", exact=True).click()
    page.wait_for_selector(".state.done", timeout=240_000)
    assert page.locator(".job .accuracy").get_attribute("points").count(",") == 6
    page.get_by_role("link", name="Look at it").click()
    assert page.get_by_role("heading", level=1).inner_text() == "things version 4"


def test_a_visitor_signs_in_and_sees_what_the_token_allows(browser, start, tmp_path):
    file = tmp_path / "tokens.json"
    token = add_token(file, "alice", "predict")
    server = start("--tokens", str(file))
    page = browser.new_context().new_page()
    page.goto(f"{server.address}/models/things")
    page.get_by_label("Your token").fill("wrong")
    page.keyboard.press("Enter")
    assert page.get_by_role("alert").inner_text() == "This token is not known."
    page.get_by_label("Your token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="things").click()
    assert "alice (predict)" in page.locator("header").inner_text()
    assert page.locator("#teach").count() == 0
    page.set_input_files("#ask-file", server.models.parent / "test.csv")
    page.get_by_role("button", name="Predict with version 3").click()
    page.wait_for_selector("#ask tbody tr")
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Sign out").click()
    assert page.get_by_role("heading", level=1).inner_text() == "Sign in"
