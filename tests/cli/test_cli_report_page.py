"""The page of pariskv report in a real browser, at two widths and in both colour schemes.

PARISKV_KEEP_SHOTS=FOLDER keeps the pictures that are in docs/pictures."""

import io
import json
import os
from pathlib import Path

import headless
import numpy as np
import pytest

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
FILES = [RESULTS / f"{name}-2026-11-30.json" for name in (
    "quality-rules", "cache-decode", "cpu-peers", "cuda-step-h200")]  # fmt: skip
LOOKS = [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")]
# Texts of plots that are shown: their size in pixels, and whether they are inside of the picture.
TEXTS = """
[...document.querySelectorAll("svg.plot")].filter(plot => plot.getClientRects().length)
  .flatMap(plot => [...plot.querySelectorAll("text")].map(text => {
    const a = text.getBoundingClientRect(), b = plot.getBoundingClientRect();
    return [parseFloat(getComputedStyle(text).fontSize) * plot.getScreenCTM().a,
            a.left >= b.left - 1 && a.right <= b.right + 1 && a.bottom <= b.bottom + 1,
            text.textContent];
  }))
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = headless.find()
    if program is None:
        pytest.skip("no chromium here (PARISKV_BROWSER names one)")
    pytest.importorskip("PIL")
    with headless.Browser(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(cli, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    cli("report", *FILES, "--title", "ParisKV, measured", "-o", path).succeeds()
    return path


def pixels(png):
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def keep(png, name, height):
    """A palette and the first `height` rows: small enough for the repository."""
    from PIL import Image

    folder = os.environ.get("PARISKV_KEEP_SHOTS")
    if folder:
        picture = Image.open(io.BytesIO(png)).convert("RGB")
        picture = picture.crop((0, 0, picture.width, min(height, picture.height)))
        few = picture.quantize(160, dither=Image.Dither.NONE)
        few.save(Path(folder) / name, optimize=True)


@pytest.mark.parametrize("width, scheme", LOOKS)
def test_the_page_of_committed_results_is_readable(browser, page, width, scheme):
    tab = browser.tab()
    tab.show(page.as_uri(), width, 900, scheme)
    assert tab.complaints() == []
    assert tab.requests() == [page.as_uri()]
    assert tab.value("document.documentElement.scrollWidth") == width
    assert tab.value("document.querySelectorAll('section').length") == 6
    texts = tab.value(TEXTS)
    assert len(texts) > 150
    assert [text for text in texts if text[0] < 10.5 or not text[1]] == []
    shot = tab.screenshot()
    seen = pixels(shot)
    assert seen.shape == (900, width, 3)
    corner = seen[0, 0].astype(int)
    assert corner.min() > 200 if scheme == "light" else corner.max() < 60
    colours, counts = np.unique(seen.reshape(-1, 3), axis=0, return_counts=True)
    assert len(colours) > 100
    assert counts.max() < 0.97 * counts.sum()
    keep(tab.screenshot(whole=True), f"report-{'wide' if width > 500 else 'phone'}-{scheme}.png",
         2050 if width > 500 else 1900)  # fmt: skip


def test_every_plot_has_one_picture_per_width(browser, page):
    tab = browser.tab()
    shown = "[...document.querySelectorAll('svg.plot')].filter(p => p.getClientRects().length)"
    for width, kind in ((1280, "wide"), (360, "narrow")):
        tab.show(page.as_uri(), width, 900, "light")
        kinds = tab.value(f"{shown}.map(p => p.classList.contains('{kind}'))")
        assert len(kinds) == tab.value("document.querySelectorAll('figure').length") > 12
        assert all(kinds)


def test_a_hostile_file_adds_no_element(browser, cli, tmp_path):
    evil = "</title></style></svg><script>document.title='x'</script><img src='http://a.test/'>"
    row = {"trace": evil, "method": evil, "n": 9, "k": 1, "error": 0.1, "recall": 0.5}
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"device": evil, "command": evil, "results": [row]}))
    page = tmp_path / "page.html"
    cli("report", path, "--title", evil, "-o", page).succeeds()
    tab = browser.tab()
    tab.show(page.as_uri(), 360, 900, "light")
    assert tab.value("document.scripts.length + document.images.length") == 0
    assert tab.value("document.title") == evil
    assert tab.complaints() == []
    assert tab.requests() == [page.as_uri()]
    assert tab.value("document.documentElement.scrollWidth") == 360


def test_a_pdf_is_printed(browser, cli, page, tmp_path):
    path = tmp_path / "page.pdf"
    cli("report", FILES[0], "--pdf", path).succeeds()
    assert path.read_bytes().startswith(b"%PDF-")
    assert b"%%EOF" in path.read_bytes()[-64:]
    assert [p.name for p in tmp_path.iterdir()] == ["page.pdf"]
