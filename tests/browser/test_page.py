"""The page of `hybridr serve` in a real Chromium: `make test-page`; pictures go to $PICTURES if it is set.

Needs Debian's chromium and chromium-driver, and selenium, none of which the rest of the suite does.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.ui import WebDriverWait

from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.indexing.reindexing import reindex
from hybridr.serving.application import create_app
from hybridr.serving.page.workbench import add_workbench
from hybridr.serving.settings import ServeSettings
from support.corpus import fill_index, text_number
from support.deployed import Server
from support.hashing import HashingEncoder

COUNT, TOKEN = 60, "a long token"
HOSTILE = "<img src=x onerror=document.title='run'><script>document.title='run'</script> anchor"


@pytest.fixture(scope="module")
def index(cluster: Cluster) -> Iterator[str]:
    name = "t-page"
    fill_index(cluster, name, COUNT)
    body = {"text": f"{HOSTILE} {text_number(3)}", "price": 1.0, "tags": []}
    cluster.request("PUT", f"{path_of(name, '_doc', '<b>hostile</b>')}?refresh=true", body)
    reindex(cluster, name, HashingEncoder())
    yield name
    for info in cluster.indices(f"{name}*"):
        cluster.request("DELETE", path_of(info.name))


@pytest.fixture(scope="module")
def server(cluster: Cluster, index: str) -> Iterator[Server]:
    settings = ServeSettings(index=index, token=TOKEN)
    added = partial(add_workbench, settings=settings, cluster=cluster)
    running = Server(create_app(HashingEncoder(), settings, cluster=cluster, added=added))
    yield running
    running.stop()


@pytest.fixture
def browser(server: Server) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for option in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = shutil.which("chromium") or ""
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    driver.get(server.url)
    driver.find_element(By.ID, "token").send_keys(TOKEN, Keys.ENTER)
    WebDriverWait(driver, 20).until(lambda one: one.find_elements(By.CSS_SELECTOR, "#left option"))
    yield driver
    driver.quit()


def text_of_id(browser: webdriver.Chrome, name: str) -> str:
    return browser.find_element(By.ID, name).text


def until(browser: webdriver.Chrome, name: str, wanted: str, timeout_s: float = 60) -> None:
    WebDriverWait(browser, timeout_s).until(lambda one: wanted in text_of_id(one, name))


def picture(browser: webdriver.Chrome, name: str) -> None:
    if folder := os.environ.get("PICTURES"):
        browser.save_screenshot(str(Path(folder) / f"{name}.png"))


def complaints(browser: webdriver.Chrome) -> list[str]:
    """Give what the browser objected to, but for the first question without a token."""
    return [one["message"] for one in browser.get_log("browser") if "401" not in one["message"]]


def press(browser: webdriver.Chrome, key: str) -> None:
    browser.switch_to.active_element.send_keys(key)


def test_two_rankings_side_by_side(browser: webdriver.Chrome) -> None:
    browser.find_element(By.ID, "query").send_keys(f"anchor {text_number(3)}", Keys.ENTER)
    until(browser, "said", "share")
    hits = browser.find_elements(By.CSS_SELECTOR, "#right-hits li")
    assert len(hits) == 10
    assert "words" in hits[0].text
    assert "cosine" in hits[0].text
    assert "BM25" in browser.find_element(By.CSS_SELECTOR, "#left-hits li").text
    whole = text_of_id(browser, "left-hits") + text_of_id(browser, "right-hits")
    assert "by hybrid" in whole
    assert "by bm25" in whole
    assert "<b>hostile</b>" in whole
    assert "<script>" in whole
    assert browser.title == "hybridr"
    picture(browser, "compare")
    Select(browser.find_element(By.ID, "left")).select_by_visible_text("hybrid-stock")
    WebDriverWait(browser, 20).until(lambda one: text_of_id(one, "left-name") == "hybrid-stock")
    assert complaints(browser) == []


def test_from_queries_to_a_tuned_default_by_keyboard(browser, cluster, index):
    browser.find_element(By.ID, "to-judge").click()
    lines = [f"n{number} candle anchor" for number in range(0, 48, 4)]
    browser.find_element(By.ID, "queries").send_keys("\n".join(lines))
    browser.find_element(By.CSS_SELECTOR, "#queries-form button").click()
    until(browser, "said", "12 new queries")
    assert not browser.find_element(By.ID, "tune").is_enabled()
    browser.find_element(By.ID, "judge-name").send_keys("ada", Keys.ENTER)
    until(browser, "place", "document 1 of")
    picture(browser, "judge")
    pressed = 0
    for line in lines:
        assert text_of_id(browser, "judged-query") == line
        wanted = line.split()[0]
        while text_of_id(browser, "judged-query") == line:
            found = wanted in text_of_id(browser, "document").split()
            press(browser, "y" if found else "n")
            pressed += 1
            if found:
                press(browser, "r")
                pressed += 1
                WebDriverWait(browser, 20).until(
                    lambda one, line=line: text_of_id(one, "judged-query") != line
                )
    assert pressed <= 12 * len(lines)
    until(browser, "said", "no query is left")
    assert "12 of 30 queries judged" in text_of_id(browser, "progress-text")
    browser.find_element(By.ID, "evaluate").click()
    until(browser, "task", "evaluate: 12 judged queries")
    assert len(browser.find_elements(By.CSS_SELECTOR, "#table tr")) == 4
    browser.find_element(By.ID, "tune").click()
    until(browser, "task", "In use from now on")
    picture(browser, "tuned")
    assert "search: " in text_of_id(browser, "task")
    assert resolve(cluster, index).record.tuning.search
    browser.find_element(By.ID, "reset").click()
    until(browser, "task", "the defaults rank again")
    assert resolve(cluster, index).record.tuning is None
    assert complaints(browser) == []


def test_undo_and_a_second_judge_on_a_phone(browser: webdriver.Chrome) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True},
    )
    browser.find_element(By.ID, "to-judge").click()
    browser.find_element(By.ID, "judge-name").send_keys("bob", Keys.ENTER)
    until(browser, "place", "document 1 of")
    for name, place in (("yes", "document 2 of"), ("undo", "document 1 of")):
        browser.find_element(By.ID, name).click()
        until(browser, "place", place)
    assert "you said relevant" in text_of_id(browser, "place")
    first = text_of_id(browser, "judged-query")
    browser.find_element(By.ID, "rest").click()
    WebDriverWait(browser, 20).until(lambda one: text_of_id(one, "judged-query") != first)
    assert "ada and bob agree on" in text_of_id(browser, "agreement")
    width: Any = browser.execute_script("return document.documentElement.scrollWidth")
    assert width <= 390
    picture(browser, "phone")
    assert complaints(browser) == []


def test_every_control_has_a_name_and_a_focus(browser: webdriver.Chrome) -> None:
    browser.find_element(By.ID, "to-judge").click()
    for control in browser.find_elements(By.CSS_SELECTOR, "button, input, select, textarea, a"):
        if control.is_displayed():
            assert control.accessible_name, control.get_attribute("outerHTML")
    browser.find_element(By.ID, "judge-name").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.value_of_css_property("outline-style") != "none"
