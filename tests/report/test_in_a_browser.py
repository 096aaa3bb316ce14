"""The page in headless Chromium: nothing sticks out, no request leaves, no script runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import BINARY, Browser, assert_fits, chromium

pytestmark = pytest.mark.skipif(BINARY is None, reason="chromium is not installed (apt-get install chromium)")
WIDTHS = {"desktop": 1280, "phone": 390}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as tab:
        yield tab


@pytest.mark.usefixtures("drawn")  # else a shared run would be made here, without its figures
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize(
    "run", ["small_run", "hostile_run", pytest.param("large_run", marks=pytest.mark.slow)]
)
def test_nothing_overflows_and_no_request_leaves(
    run: str, width: int, browser: Browser, request: pytest.FixtureRequest
) -> None:
    seen = browser.view(request.getfixturevalue(run) / "report.html", width)
    assert_fits(seen, width)


def test_the_checks_see_a_page_that_is_wrong(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "wrong.html"
    page.write_text(
        "<!doctype html><body><div style='width: 500px'>wide</div><img src='http://example.com/x.png'>"
        "<svg viewBox='0 0 10 10' width='100'><text x='9' style='font-size: 2px'>cut off</text></svg>"
        "<script>window.pwned = 1</script>"
    )
    seen = browser.view(page, 390)
    assert seen.inner_width == 390
    assert seen.scroll_width > 390
    assert "DIV wide" in seen.overflowing
    assert "label cut off" in seen.overflowing
    assert seen.requests == ["http://example.com/x.png"]
    assert seen.scripts_run
    assert seen.smallest_text == pytest.approx(20)


def _prefer(browser: Browser, scheme: str, media: str = "screen") -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.call("Emulation.setEmulatedMedia", media=media, features=[feature])


@pytest.mark.parametrize(
    ("scheme", "media", "ground", "line"),
    [
        ("light", "screen", "rgb(255, 255, 255)", "rgb(0, 114, 178)"),
        ("dark", "screen", "rgb(20, 23, 27)", "rgb(74, 163, 223)"),
        ("dark", "print", "rgb(255, 255, 255)", "rgb(0, 114, 178)"),
    ],
)
def test_a_page_and_its_figures_are_dark_if_the_reader_prefers_that_and_light_on_paper(
    scheme: str, media: str, ground: str, line: str, browser: Browser, small_run: Path
) -> None:
    first = "svg [style*='stroke: #0072b2']"
    for page in (small_run / "report.html", small_run / "figures" / "error-against-rounds.svg"):
        _prefer(browser, scheme, media)
        if page.suffix == ".svg":
            browser.call("Page.navigate", url=page.as_uri())
        else:
            browser.view(page, 1280)
            assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == ground
        until = (
            f'document.querySelector("{first}") && getComputedStyle(document.querySelector("{first}")).stroke'
        )
        assert next(found for _ in range(200) if (found := browser.evaluate(until))) == line
    _prefer(browser, "light")
