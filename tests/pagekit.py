"""A page in a browser as somebody sees and uses it, for the tests that have a Chromium."""

import json

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait


class Page:
    """A driver's tab. base: the address that fragments are added to."""

    def __init__(self, driver, base):
        self.driver, self.base = driver, base

    def go(self, fragment):
        self.driver.get(self.base + fragment)

    def one(self, css):
        """The one element, as soon as it is shown."""
        found = self.until(lambda: [e for e in self.all(css) if e.is_displayed()])
        assert len(found) == 1, css
        return found[0]

    def all(self, css):
        return list(self.driver.find_elements(By.CSS_SELECTOR, css))

    def until(self, so):
        """What `so` gives as soon as it is true. An element that the page drew anew is no error."""
        redrawn = [StaleElementReferenceException]
        return WebDriverWait(self.driver, 20, 0.05, redrawn).until(lambda _: so())

    def told(self, text, css="#status, #told, #problem"):
        """Wait until one of the places where a screen reader hears of it says a text."""
        self.until(lambda: any(text in e.text for e in self.all(css)))

    def button(self, text, within="body"):
        found = self.until(lambda: [b for b in self.all(f"{within} button") if b.text == text])
        return found[0]

    def search(self, query):
        field = self.one("#query")
        field.clear()
        field.send_keys(query, Keys.ENTER)
        self.told("found")

    def open(self, text):
        """Open the memory of the list that says a text."""
        found = self.until(lambda: [a for a in self.all("a.card") if text in a.text])
        found[0].click()
        self.until(lambda: text in self.one("#detail .whole").text)

    def focused(self):
        return self.driver.switch_to.active_element

    def press(self, *keys):
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def tab_to(self, css, text=""):
        """Press Tab until an element has the focus."""
        for _ in range(60):
            self.press(Keys.TAB)
            if text in self.focused().text and self.driver.execute_script(
                "return document.activeElement.matches(arguments[0])", css
            ):
                return
        raise AssertionError(f"Tab never reached {css} {text!r}")

    def show_as(self, width, scheme):
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def events(self, method):
        rows = self.driver.get_log("performance")
        found = [json.loads(row["message"])["message"] for row in rows]
        return [event["params"] for event in found if event["method"] == method]
