"""The page in a browser: opened, clicked through, looked at in two widths and two schemes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, missing_programs

from rsm_fast import Memory, sample
from rsm_fast.inspect import write_report

HOSTILE = (
    "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='x'\">"
)
QUESTIONS = ["Where does the user live now?", "When do the adrenaline pens expire?"]
ENTER, TAB, RIGHT, ESCAPE = "\ue007", "\ue004", "\ue014", "\ue00c"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    page = tmp_path_factory.mktemp("page") / "report.html"
    with Memory(embedder="hashing") as memory:
        memory.add_many(sample.turns())
        memory.add(HOSTILE, role=HOSTILE, session=HOSTILE, timestamp="2026-12-01", id="hostile")
        write_report(memory, page, queries=[*QUESTIONS, HOSTILE], budget=300)
    return page.as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if missing := missing_programs():
        pytest.skip(f"not installed: {', '.join(missing)} (Debian: chromium, chromium-driver)")
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def picture(browser: Browser) -> str:
    return str(browser.run("return document.getElementById('plane').toDataURL()"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_it_fits_the_window_and_nothing_stored_runs(
    browser: Browser, url: str, width: int, dark: bool
) -> None:
    browser.open(url, width=width, dark=dark)
    assert browser.console() == [], "no error, no refused request"
    assert browser.run("return document.title") == "Inside a memory in RAM"
    assert browser.run("return document.images.length") == 0
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    shown = browser.run(
        "const c = document.getElementById('plane'), p = c.getContext('2d');"
        "return new Set(new Uint32Array(p.getImageData(0, 0, c.width, c.height).data.buffer)).size"
    )
    assert shown > 8, "the map is drawn, in colours"
    ground = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(23, 24, 26)" if dark else "rgb(251, 250, 248)")


@pytest.mark.parametrize("width", [400, 1280])
def test_map_and_atoms_answer_clicks(browser: Browser, url: str, width: int) -> None:
    browser.open(url, width=width)
    tsne = picture(browser)
    browser.click('[data-layout="pca"]')
    pca = picture(browser)
    assert pca != tsne
    assert browser.run("return document.querySelector('[data-layout=pca]').ariaPressed") == "true"
    browser.click(".legend [data-atom]")
    assert picture(browser) != pca, "the other atoms fade"
    assert browser.run("return document.querySelectorAll('[data-atom][aria-pressed=true]').length")
    browser.click(".legend [data-atom]")
    assert picture(browser) == pca
    browser.click("#atoms [data-atom]")
    assert browser.run("return document.getElementById('map').getBoundingClientRect().top < 400")


def test_map_answers_keys(browser: Browser, url: str) -> None:
    browser.open(url, width=1280)
    browser.click("#plane")
    browser.type("#plane", ESCAPE + RIGHT)
    first = browser.text("#point-meta")
    assert "atom" in first and browser.text("#point-text")
    browser.type("#plane", RIGHT)
    assert browser.text("#point-meta") != first
    browser.type("#plane", ENTER)
    pressed = "return document.querySelectorAll('[data-atom][aria-pressed=true]').length"
    assert browser.run(pressed) > 0
    browser.type("#plane", ESCAPE)
    assert browser.run(pressed) == 0


def test_stored_text_is_shown_as_text(browser: Browser, url: str) -> None:
    browser.open(url, width=1280)
    index = browser.run(
        "return JSON.parse(document.getElementById('data').textContent).points"
        ".findIndex((point) => point.id === 'hostile#0')"
    )
    assert index >= 0
    browser.type("#query", "pwned" + ENTER)
    assert HOSTILE in browser.run("return document.querySelector('.pack:not([hidden])').innerText")
    assert browser.run("return document.title") == "Inside a memory in RAM"
    assert browser.run("return document.images.length") == 0 and browser.console() == []


@pytest.mark.parametrize("width", [400, 1280])
def test_questions_open_their_packs(browser: Browser, url: str, width: int) -> None:
    browser.open(url, width=width)
    heading = ".pack:not([hidden]) h3"
    assert browser.text(heading) == QUESTIONS[0]
    rings = picture(browser)
    browser.click('[data-query="1"]')
    assert browser.text(heading) == QUESTIONS[1]
    assert picture(browser) != rings, "other chunks are ringed"
    browser.type("#query", "user LIVE" + ENTER)
    assert browser.text(heading) == QUESTIONS[0]
    assert browser.run("return document.querySelectorAll('[data-query]:not([hidden])').length") == 1
    assert not browser.run("return document.getElementById('no-query').checkVisibility()")
    browser.type("#query", " submarine")
    assert browser.run("return document.getElementById('no-query').checkVisibility()")
    browser.click(".pack:not([hidden]) > details summary")
    assert "Memory: data" in browser.text(".pack:not([hidden]) pre")


def test_the_keyboard_reaches_everything(browser: Browser, url: str) -> None:
    browser.open(url, width=1280)
    browser.run("document.querySelector('.skip').focus()")
    reached = set()
    for _ in range(40):
        reached.add(
            browser.run(
                "const e = document.activeElement;"
                "return e.id || Object.keys(e.dataset)[0] || e.tagName.toLowerCase()"
            )
        )
        browser.press(TAB)
    assert {"layout", "plane", "atom", "summary", "a"} <= reached


def test_screenshots_for_the_eye(browser: Browser, url: str, tmp_path: Path) -> None:
    for width in (400, 1280):
        browser.open(url, width=width)
        file = tmp_path / f"{width}.png"
        browser.screenshot(file)
        assert file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size > 20_000
