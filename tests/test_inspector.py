"""The memory inspector in a real browser: headless Chromium, driven by Selenium."""

import json
import os
import shutil

import pytest
from inspectorkit import EVIL, fact, filled
from memorykit import texts
from serverkit import TOKEN

from edgemem.pipeline import image_memories

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if BROWSER is None or DRIVER is None:
    pytest.skip(
        "needs Chromium and its driver: apt-get install chromium chromium-driver",
        allow_module_level=True,
    )
webdriver = pytest.importorskip("selenium.webdriver")

from pagekit import Page  # noqa: E402
from selenium.common.exceptions import TimeoutException  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

pytestmark = pytest.mark.slow


class Chromium:
    """A browser that can be started again: on a busy machine its tabs hang for minutes at times."""

    def __init__(self):
        self.driver = self._started()

    def _started(self):
        options = webdriver.ChromeOptions()
        options.binary_location = BROWSER
        arguments = ["--headless=new", "--disable-gpu", "--disable-renderer-backgrounding"]
        arguments += ["--disable-background-timer-throttling"]
        if not os.path.isdir("/dev/shm") or shutil.disk_usage("/dev/shm").free < 2**30:
            arguments.append("--disable-dev-shm-usage")
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            arguments.append("--no-sandbox")
        for argument in arguments:
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        # With both paths given, Selenium looks for no driver to download.
        driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        driver.set_page_load_timeout(30)
        return driver

    def restart(self):
        self.driver.quit()
        self.driver = self._started()

    def page(self, port):
        """The page in a new tab, its token given."""
        self.driver.switch_to.new_window("tab")
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        made = Page(self.driver, f"http://127.0.0.1:{port}/")
        made.show_as(1200, "light")
        made.go(f"#token={TOKEN}")
        made.told("memories, the latest first")
        return made


@pytest.fixture(scope="module")
def chromium():
    browser = Chromium()
    yield browser
    browser.driver.quit()


@pytest.fixture
def memory():
    with filled() as opened:
        yield opened


@pytest.fixture
def page(chromium, server):
    try:
        made = chromium.page(server.port)
    except TimeoutException:
        chromium.restart()
        made = chromium.page(server.port)
    yield made
    try:
        chromium.driver.close()
        chromium.driver.switch_to.window(chromium.driver.window_handles[0])
    except TimeoutException:
        chromium.restart()


# -- who may look --------------------------------------------------------------------------------


def test_the_token_leaves_the_address_at_once_and_stays_in_its_tab(page):
    assert TOKEN not in page.driver.current_url
    page.driver.refresh()
    page.told("memories, the latest first")
    page.driver.switch_to.new_window("tab")
    page.go("")
    assert page.one("#token").is_displayed() and not page.all("a.card")
    page.driver.close()
    page.driver.switch_to.window(page.driver.window_handles[-1])


def test_a_wrong_token_is_refused_in_words_and_the_right_one_lets_in(page):
    page.button("Lock").click()
    assert page.focused().get_attribute("id") == "token" and not page.all("a.card")
    for wrong in ("a-wrong-token-of-ours", "ключ"):
        page.one("#token").send_keys(wrong, Keys.ENTER)
        page.told("The server refused this token", "[role=alert]")
        assert not page.all("a.card")
        assert page.one("#token").get_attribute("value") == ""
    page.one("#token").send_keys(TOKEN, Keys.ENTER)
    page.told("memories, the latest first")
    assert page.all("[role=alert]")[0].text == ""


def test_locking_leaves_nothing_private_in_the_page_or_its_address(page):
    page.search("harbour")
    page.driver.execute_script("location.hash = '#/entity/Ana'")
    page.until(lambda: page.one("#detail-title").text == "Ana")
    page.button("Lock").click()
    assert page.one("#token").is_displayed()
    left = page.driver.execute_script(
        "return document.documentElement.outerHTML + document.getElementById('query').value"
    )
    assert not [word for word in ("Ana", '"ana"', "harbour") if word in left]
    assert page.driver.current_url == page.base
    page.one("#token").send_keys(TOKEN, Keys.ENTER)
    page.told("memories, the latest first")


def test_a_token_that_is_refused_later_shows_nothing_more(page):
    page.driver.execute_script("sessionStorage.setItem('edgemem-token', 'another-one')")
    page.all("a.card")[0].click()
    page.told("The server refused this token", "[role=alert]")
    assert not page.all("a.card") and "kayak" not in page.one("body").text


# -- looking -------------------------------------------------------------------------------------


def test_a_search_shows_scores_and_parts_that_add_up_to_them(page):
    Select(page.one("#user_id")).select_by_value("ana")
    page.search("Where is the harbour?")
    first = page.all("#rows li")[0]
    assert "harbour" in first.text
    score = float(first.find_element(By.CSS_SELECTOR, ".score").text.split()[-1])
    first.find_element(By.TAG_NAME, "summary").click()
    shown = [e.text for e in first.find_elements(By.CSS_SELECTOR, "td.number")]
    parts = [float(value.replace("\u2212", "-")) for value in shown]
    assert len(parts) > 2 and sum(parts) == pytest.approx(score, abs=0.0006 * len(parts))
    assert "bm25" in first.text and "its words" in first.text


def test_a_search_says_what_it_leaves_out_and_what_hardly_fits(page, memory):
    memory.add([f"Note {i} of the harbour." for i in range(25)], user_id="cy", infer=False)
    page.search("harbour")
    page.told("The 20 best found, best first.")
    page.button("Show more").click()
    page.told("26 memories found, best first.")  # the other is of ana
    assert page.focused() == page.all("a.card")[20]
    assert [h.text for h in page.all("#rows h2")] == ["Hardly fits"]
    page.search("xyzzy nothing")
    page.told("Nothing found that fits. These come nearest.")
    assert page.all("#rows h2")[0].text == "Hardly fits" and page.all("a.card")


def test_searching_keeps_to_whose_and_which_are_chosen(page):
    page.search("Ana")
    assert len(page.all("a.card")) > 1
    Select(page.one("#kind")).select_by_value("fact")
    page.until(lambda: all("Fact" in a.text for a in page.all("a.card")))
    Select(page.one("#user_id")).select_by_value("ben")
    page.told("Nothing found.")


def test_a_memory_shows_its_turns_and_history(page):
    page.open("Ana has a cat called Tom")
    detail = page.one("#detail").text
    assert "My cat is called Tom." in detail and "added" in detail and "Valid from" in detail


def test_the_timeline_shows_from_when_until_when_and_what_came_after(page, memory):
    page.one("nav a[href='#/timeline']").click()
    page.told("4 memories")
    assert page.all("#rows h2")[0].text.endswith("2025")
    (old,) = (li for li in page.all("#rows li") if "Ana lives in Oslo" in li.text)
    assert "superseded by Ana moved to Bergen" in old.text
    times = [t.get_attribute("datetime")[:10] for t in old.find_elements(By.TAG_NAME, "time")]
    assert times == ["2025-03-01", "2025-04-01"]
    old.find_element(By.LINK_TEXT, "Ana moved to Bergen").click()
    page.until(lambda: "Supersedes" in page.one("#detail").text)
    assert page.driver.current_url.endswith(fact(memory, "Bergen"))


def test_a_timeline_without_facts_shows_what_was_said(page, memory):
    memory.erase_all(user_id="ana")
    page.driver.refresh()
    page.one("nav a[href='#/timeline']").click()
    page.told("1 memory, the latest first.")
    assert EVIL in page.one("#rows").text
    Select(page.one("#kind")).select_by_value("fact")
    page.told("No memories are as chosen above.")


def test_an_empty_store_says_how_to_add_a_memory(page, memory):
    memory.reset()
    page.driver.refresh()
    page.told("No memories yet. edgemem add TEXT stores one, and edgemem chat what you tell it.")
    assert page.all("#status code")[0].text == "edgemem add TEXT"


def test_an_address_of_nothing_closes_what_was_open(page):
    for wrong in ("nonsense", "%"):
        page.go("#/memories")
        page.open("My cat is called Tom.")
        page.go(f"#/memory/{wrong}")
        page.told(f"There is no memory with the id '{wrong}'.", "[role=alert]")
        assert not page.all("#detail button") and not page.all(".split")


def test_a_name_shows_its_picture_and_what_is_told_of_it_and_leads_on(page):
    page.one("nav a[href='#/graph']").click()
    page.told("6 names.")  # Ana, Oslo, Bergen, the harbour, Tom, and what Tom is
    page.tab_to("a.card", "Ana")
    page.press(Keys.ENTER)
    page.until(lambda: page.one("#detail h2").text == "Ana")
    drawn = page.one("#detail svg")
    assert drawn.get_attribute("aria-label") == "Ana and 3 neighbours"  # Oslo is over
    (old,) = [li for li in page.all("#detail li") if "Oslo" in li.text]
    times = [t.get_attribute("datetime")[:10] for t in old.find_elements(By.TAG_NAME, "time")]
    assert times == ["2025-03-01", "2025-04-01"] and "lives in" in old.text
    page.tab_to("#detail a", "Tom")
    page.press(Keys.ENTER)
    page.until(lambda: page.one("#detail h2").text == "Tom")
    page.one("#detail").find_element(By.LINK_TEXT, "the fact").click()
    page.until(lambda: "Ana has a cat called Tom" in page.one("#detail").text)


def test_what_waits_and_what_was_sent_is_shown(page):
    page.one("nav a[href='#/pending']").click()
    page.told("1 piece of work waits.")
    assert "I bought a red kayak." in page.one("#rows").text
    page.one("nav a[href='#/cloud']").click()
    page.told("1 call.")
    assert (
        "some-model" in page.one("#rows").text and "No cloud is set up" in page.one("#about").text
    )
    page.one("#rows .inline a").click()
    page.until(lambda: "Ana works at the harbour" in page.one("#detail").text)


def test_more_are_shown_when_asked_for_and_the_first_of_them_has_the_focus(page, memory):
    memory.add([f"Note {i} of the log." for i in range(60)], user_id="cy", infer=False)
    page.driver.refresh()
    page.told("50 memories, and more")
    memory.add([f"Note {i} of the pier." for i in range(9)], user_id="cy", infer=False)
    page.button("Show more").click()
    page.told("69 memories")  # eight of ana are valid, and one of ben
    assert not page.one("body").find_element(By.ID, "more").is_displayed()
    assert page.focused() == page.all("a.card")[50]


def test_a_text_that_is_markup_stays_text(page):
    page.open(EVIL)
    for place in ("#rows", "#detail"):
        assert EVIL in page.one(place).text
        assert not page.all(f"{place} img, {place} script")
    page.button("Erase for good…").click()
    assert EVIL in page.one("#dialog").text and not page.all("#dialog img, #dialog script")
    assert page.driver.title != "1"
    with pytest.raises(Exception, match="TrustedHTML"):  # not by a mistake of ours either
        page.driver.execute_script("document.body.innerHTML = '<b>x</b>'")


# -- changing ------------------------------------------------------------------------------------


def test_an_edit_is_stored_and_the_old_text_stays_in_the_history(page, memory):
    page.open("Ana works at the harbour")
    page.button("Edit…").click()
    field = page.one("#new-text")
    assert field.get_attribute("value") == "Ana works at the harbour"
    field.clear()
    field.send_keys("   ")
    page.button("Save", "#dialog").click()
    page.told("empty", "#dialog [role=alert]")  # the server's own words
    field.clear()
    field.send_keys("Ana works at the mill")
    page.button("Save", "#dialog").click()
    page.told("Saved.")
    assert page.one("#detail .whole").text == "Ana works at the mill"
    assert page.one("#detail del").text == "Ana works at the harbour"
    assert "Ana works at the mill" in texts(memory.get_all())


def test_an_edit_is_not_lost_without_being_asked(page, memory):
    page.open("Ana works at the harbour")
    page.button("Edit…").click()
    page.one("#new-text").send_keys(" now")
    for answer in ("dismiss", "dismiss", "accept"):
        assert page.one("#new-text").get_attribute("value") == "Ana works at the harbour now"
        page.press(Keys.ESCAPE)
        question = page.driver.switch_to.alert
        assert question.text == "Leave without saving the change?"
        getattr(question, answer)()
    page.until(lambda: page.focused().text == "Edit…")
    assert not page.all("dialog[open]") and "Ana works at the harbour" in texts(memory.get_all())


def test_a_deleted_memory_is_in_no_list_but_can_be_found_to_be_erased(page, memory):
    page.open("Ana has a cat called Tom")
    page.button("Delete…").click()
    page.button("Cancel", "#dialog").click()
    assert "Ana has a cat called Tom" in texts(memory.get_all())
    page.button("Delete…").click()
    page.button("Delete", "#dialog").click()
    page.told("Deleted.")
    assert "Ana has a cat called Tom" not in texts(memory.get_all())
    assert "Ana has a cat called Tom" not in page.one("#rows").text
    assert [b.text for b in page.all("#detail button")] == ["Erase for good…"]
    Select(page.one("#state")).select_by_value("deleted")
    page.told("1 memory")
    assert "Ana has a cat called Tom" in page.one("#rows").text


def test_deleting_a_message_says_which_facts_go_with_it(page, memory):
    page.open("My cat is called Tom.")
    page.button("Delete…").click()
    told = page.one("#dialog").text
    assert "1 fact was taken from it alone, and goes too:\nAna has a cat called Tom" in told
    page.button("Delete", "#dialog").click()
    page.told("Deleted, with 1 fact that was taken from it alone.")
    assert not {"My cat is called Tom.", "Ana has a cat called Tom"} & set(texts(memory.get_all()))


def test_erasing_shows_what_goes_asks_and_takes_it(page, memory):
    id = fact(memory, "harbour")
    page.open("Ana works at the harbour")
    page.button("Erase for good…").click()
    told = page.one("#dialog").text
    assert "2 memories and 1 turn" in told and "I work at the harbour." in told
    assert page.focused().text == "Cancel"
    page.press(Keys.ENTER)
    assert memory.get(id) is not None
    page.button("Erase for good…").click()
    page.button("Erase for good", "#dialog").click()
    page.told("Erased 2 memories.")
    assert memory.store.get([id], include_deleted=True) == {}
    assert not page.one("body").find_element(By.ID, "detail").is_displayed()
    assert "harbour" not in page.one("#rows").text
    assert page.focused().get_attribute("id") == "list-title"


def test_what_somebody_else_erased_meanwhile_is_told(page, memory):
    memory.erase(fact(memory, "cat"))
    next(a for a in page.all("a.card") if "Ana has a cat" in a.text).click()
    page.told("There is no memory with the id", "[role=alert]")


# -- without a mouse, without sight, in the dark, on a small screen ------------------------------


def test_the_keyboard_alone_is_enough(page, memory):
    page.button("Lock").click()
    page.press(TOKEN, Keys.ENTER)  # the field has the focus
    page.told("memories, the latest first")
    page.tab_to("#query")
    page.press("harbour", Keys.ENTER)
    page.told("found, best first")
    page.tab_to("a.card", "I work at the harbour.")
    page.press(Keys.ENTER)
    page.until(lambda: page.focused().get_attribute("id") == "detail-title")
    page.tab_to("button", "Edit…")
    page.press(Keys.ENTER)
    assert page.focused().get_attribute("id") == "new-text"
    page.press(Keys.ESCAPE)
    page.until(lambda: page.focused().text == "Edit…")  # where it came from
    page.press(Keys.ENTER)
    for _ in range(8):  # no Tab leads out of the dialog into the page behind it
        page.press(Keys.TAB)
        assert page.driver.execute_script(
            "return document.activeElement === document.body"
            " || document.activeElement.closest('dialog') !== null"
        )
    page.tab_to("#new-text")
    page.focused().send_keys(Keys.CONTROL + "a")
    page.press("I work at the mill.")
    page.tab_to("button", "Save")
    page.press(Keys.ENTER)
    page.told("Saved.")
    assert "I work at the mill." in texts(memory.get_all())
    page.tab_to("a", "Back to the list")
    page.press(Keys.ENTER)
    page.until(lambda: page.driver.execute_script(
        "return document.activeElement.matches('a.card, #list-title')"
    ))  # fmt: skip


def test_going_back_gives_the_focus_to_where_one_came_from(page):
    page.open("My cat is called Tom.")
    page.one("#detail a[href='#/memories']").click()
    page.until(lambda: "My cat is called Tom." in page.focused().text)
    page.driver.back()
    page.until(lambda: page.focused().get_attribute("id") == "detail-title")


NAMED = {
    "button", "link", "textbox", "searchbox", "combobox", "dialog", "main", "navigation", "search",
    "region", "heading", "checkbox", "DisclosureTriangle", "group",
}  # fmt: skip


def controls(page):
    """The role and name of all that a screen reader tells of."""
    nodes = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    return [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
    ]


def test_every_control_has_a_name_and_every_view_its_landmarks(page):
    page.search("harbour")
    page.all("summary")[0].click()
    page.open("I work at the harbour.")
    seen = controls(page)
    for view in ("timeline", "pending", "cloud"):
        page.go(f"#/{view}")
        page.until(lambda view=view: view in page.driver.title.lower() and page.all("#rows li"))
        roles = {role for role, _ in controls(page)}
        assert {"banner", "main", "navigation"} <= roles
        assert {"search"} <= roles or view in ("pending", "cloud")
        seen += controls(page)
    page.go("#/memories")
    page.open("I work at the harbour.")
    for button in ("Edit…", "Delete…", "Erase for good…"):
        page.button(button).click()
        page.until(lambda: page.one("#dialog"))
        assert "dialog" in {role for role, _ in controls(page)}
        seen += controls(page)
        page.press(Keys.ESCAPE)
    page.button("Lock").click()
    seen += controls(page)
    unnamed = {
        role for role, name in seen if role in NAMED - {"main", "group"} and not name.strip()
    }
    assert unnamed == set()
    assert {"button", "link", "textbox", "searchbox", "combobox"} <= {role for role, _ in seen}


CONTRAST = """
const light = (css) => {
  const part = css.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
};
const ground = (node) => {
  for (; node; node = node.parentElement) {
    const css = getComputedStyle(node).backgroundColor;
    if (!/, 0\\)$/.test(css)) return css;
  }
};
const low = [];
for (const node of document.querySelectorAll("body *")) {
  const written = [...node.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!written || !node.checkVisibility() || node.disabled) continue;
  const [a, b] = [light(getComputedStyle(node).color), light(ground(node))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) low.push([node.textContent.slice(0, 30), ratio]);
}
return [low, light(ground(document.body))];
"""


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_light_and_dark_are_as_the_reader_has_chosen_and_can_be_read(page, scheme, dark):
    page.show_as(1200, scheme)
    page.search("harbour")
    page.all("summary")[0].click()
    page.open("I work at the harbour.")
    for view in ("memories", "timeline", "cloud"):
        page.go(f"#/{view}")
        page.until(lambda view=view: view in page.driver.title.lower() and page.all("#rows li"))
        low, ground = page.driver.execute_script(CONTRAST)
        assert low == [] and (ground < 0.1 if dark else ground > 0.9)
    page.go("#/memories")
    page.open("I work at the harbour.")
    page.button("Erase for good…").click()
    page.one("#dialog")
    assert page.driver.execute_script(CONTRAST)[0] == []


def test_nothing_is_cut_off_on_320_pixels(page, memory):
    long = "x" * 300
    memory.add(f"harbour {long}", user_id="u" * 80, infer=False)
    page.show_as(320, "light")
    page.driver.refresh()

    def fits():
        return bool(page.driver.execute_script(
            "return document.documentElement.scrollWidth <= innerWidth"
        ))  # fmt: skip

    page.told("memories, the latest first")
    assert fits()
    page.search("harbour")
    page.all("summary")[0].click()
    assert fits()
    page.open(long)
    assert fits() and not page.one("body").find_element(By.ID, "list").is_displayed()
    for button in ("Edit…", "Erase for good…"):
        page.button(button).click()
        assert page.one("#dialog").size["width"] <= 320 and fits()
        page.press(Keys.ESCAPE)
    page.one("#detail a[href='#/memories']").click()
    assert page.one("#list").is_displayed()
    for view in ("timeline", "pending", "cloud"):
        page.go(f"#/{view}")
        page.until(lambda view=view: view in page.driver.title.lower() and page.all("#rows li"))
        assert fits()


def test_nothing_is_asked_of_another_host_and_nothing_is_amiss(page):
    page.search("harbour")
    page.open("I work at the harbour.")
    for view in ("timeline", "pending", "cloud"):
        page.go(f"#/{view}")
        page.until(lambda view=view: view in page.driver.title.lower() and page.all("#rows li"))
    asked = page.events("Network.requestWillBeSent")
    urls = {event["request"]["url"] for event in asked}
    assert any("inspect/pending" in url for url in urls)
    assert {url for url in urls if not url.startswith(page.base)} == set()
    assert not [url for url in urls if TOKEN in url]
    assert not page.driver.get_cookies()
    assert page.driver.get_log("browser") == []  # nor has the browser refused anything


# -- images --------------------------------------------------------------------------------------


def test_an_image_is_shown_with_what_was_read_in_it_and_goes_when_it_is_erased(page, memory):
    pytest.importorskip("PIL")
    from imagekit import drawn, saved

    said = {"role": "user", "content": "The receipt of the kayak."}
    memory.add([said], images=[saved(drawn((400, 300)))], user_id="ana", infer=False)
    (item,) = [each for each in memory.get_all(user_id="ana") if each.image]
    assert item.image is not None
    box = [[20, 30], [380, 30], [380, 90], [20, 90]]
    boxes = json.dumps([{"text": "TOTAL 23.40", "confidence": 0.97, "box": box}])
    image_memories.set_text(memory, item.image.id, "done", "TOTAL 23.40", boxes)
    page.search("total of the receipt")
    (card,) = [a for a in page.all("a.card") if "TOTAL" in a.text]
    assert "In it: “TOTAL 23.40”" in card.text
    small = card.find_element(By.TAG_NAME, "img")
    page.until(lambda: page.driver.execute_script("return arguments[0].naturalWidth", small) == 256)
    assert small.get_attribute("alt") == "The receipt of the kayak."
    page.tab_to("a.card", "TOTAL")
    page.press(Keys.ENTER)
    page.until(lambda: page.all("#detail figure"))
    whole = page.one("#detail figure img")
    page.until(lambda: page.driver.execute_script("return arguments[0].naturalWidth", whole) == 400)
    (drawn_box,) = page.all("#detail polygon")
    assert drawn_box.get_attribute("points") == "20,30 380,30 380,90 20,90"
    page.tab_to("#detail .read button", "TOTAL 23.40")
    assert drawn_box.get_attribute("class") == "on"
    shown, outline = drawn_box.rect, whole.rect
    assert abs(shown["width"] / outline["width"] - 0.9) < 0.02
    page.press(Keys.TAB)
    assert drawn_box.get_attribute("class") == ""
    page.button("Erase for good…").click()
    assert "thumbnail" in page.one("#dialog").text
    page.button("Erase for good", "#dialog").click()
    page.told("Erased")
    assert memory.image(item.image.id) is None and not page.all("img.thumbnail")
