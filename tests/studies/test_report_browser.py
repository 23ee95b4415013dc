"""The page in a real browser: nothing goes wrong in it, and what can be clicked works. Skipped without chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ebft.studies.report import study_report
from tests.studies.browser import CHROMIUM, Browser
from tests.studies.made_study import make_study

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_study(tmp_path_factory.mktemp("study"))
    study_report.write(str(folder), paper=True)
    return folder / "report" / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(params=[(1280, False), (1280, True), (390, False)], ids=["light", "dark", "phone"])
def opened(request: pytest.FixtureRequest, browser: Browser, page: Path) -> Browser:
    browser.errors.clear()
    browser.requests.clear()
    browser.open(page, *request.param)
    return browser


def test_figures_are_there_and_nothing_is_wrong(opened: Browser, page: Path) -> None:
    assert opened.run("document.querySelectorAll('.chart svg').length") == 5  # two curves, one more, profile, Pareto
    assert opened.run("[...document.querySelectorAll('.chart')].every(c => c.querySelector('path, circle'))")
    assert opened.run("document.documentElement.scrollWidth <= innerWidth"), "the page must not scroll sideways"
    assert opened.run("document.title").startswith("a study </script>")
    assert opened.errors == []
    assert opened.requests == [page.resolve().as_uri()]


def test_the_main_table_fits_a_window_that_is_not_wide(browser: Browser, page: Path) -> None:
    browser.open(page, 1120)
    table = "document.querySelector('.scroll')"
    assert browser.run(f"{table}.scrollWidth <= {table}.clientWidth"), "its last columns are out of sight"


def test_dark_is_dark(browser: Browser, page: Path) -> None:
    shades = []
    for dark in (False, True):
        browser.open(page, dark=dark)
        shades.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert shades == ["rgb(255, 255, 255)", "rgb(20, 23, 27)"]


def test_the_legend_can_be_clicked(opened: Browser) -> None:
    shown = 'document.querySelectorAll(\'[data-chart="0"] [data-series="ebft"]\').length'
    assert opened.run(shown) == 1
    opened.click(".legend [data-row=ebft]")
    assert opened.run(shown) == 0
    pressed = "[...document.querySelectorAll('[data-row=ebft]')].map(b => b.ariaPressed)"
    assert set(opened.run(pressed)) == {"false"}  # in every legend
    opened.click(".legend [data-row=ebft]")
    assert opened.run(shown) == 1
    assert opened.errors == []


def test_the_axis_can_be_changed(opened: Browser) -> None:
    label = "document.querySelector('[data-chart=\"0\"] svg').textContent"
    assert opened.run(label).endswith("steps") or "steps" in opened.run(label)
    opened.click(".axis[data-axis=flops]")
    assert "FLOPs of training" in opened.run(label)
    assert "20G" in opened.run(label)
    assert opened.errors == []


def test_generations_can_be_searched(opened: Browser) -> None:
    count = "document.getElementById('count').textContent"
    assert opened.run(count) == "12 problems"
    assert opened.run("document.querySelectorAll('.problem').length") == 10
    opened.click("#more")
    assert opened.run("document.querySelectorAll('.problem').length") == 12
    opened.type_text("#search", "NEEDLE7")
    assert opened.run(count) == "1 problems"
    assert opened.run("document.querySelector('.problem h3').textContent") == "problem/7"
    assert opened.run("document.querySelectorAll('.problem .answers > div').length") == 4
    assert opened.run("document.querySelectorAll('.problem b').length") == 4  # of rows; none from data
    opened.run("(which.value = 'differ', which.dispatchEvent(new Event('change')))")
    opened.run("(search.value = '', search.dispatchEvent(new Event('input')))")
    for outcome in ("passed", "failed"):
        assert opened.run(f"[...document.querySelectorAll('.problem')].every(p => p.querySelector('.{outcome}'))")
    assert opened.errors == []


def test_every_number_explains_itself(opened: Browser) -> None:
    """On hover or focus, and inside the window."""
    visible = "getComputedStyle(document.querySelector('th .meaning')).display"
    assert opened.run(visible) == "none"
    opened.click("th .explained")
    assert opened.run(visible) == "block"
    box = opened.run(
        "(b => [b.left, b.right, innerWidth])(document.querySelector('th .meaning').getBoundingClientRect())"
    )
    assert 0 <= box[0] < box[1] <= box[2]
    columns = "[...document.querySelectorAll('#tables table')][0].querySelectorAll('th').length"
    explained = "[...document.querySelectorAll('#tables table')][0].querySelectorAll('th .meaning').length"
    assert opened.run(explained) == opened.run(columns) - 1  # all but the name of the row
