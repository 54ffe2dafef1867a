"""HTML pages in tests: their parts by a parser, and how a browser shows them, if there is one."""

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
from matplotlib.image import imread

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

MEASURE = """<script>addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map((frame) => {
    const inside = frame.contentDocument, boxes = [...inside.querySelectorAll(".scroll, figure")];
    return {window: inside.documentElement.clientWidth, page: inside.documentElement.scrollWidth,
      scrolling: boxes.filter((box) => box.scrollWidth > box.clientWidth + 1).length}; });
  document.body.innerHTML = "<pre>" + JSON.stringify(found) + "</pre>"; });</script>"""


class Parts(HTMLParser):
    """The elements, addresses, ids and text of a page."""

    VOID = ("meta", "br", "img", "link", "input", "hr")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.addresses, self.words, self.identities = [], [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        named = dict(attributes)
        self.addresses += [named[name] for name in ("src", "href", "xlink:href") if name in named]
        self.identities += [named["id"]] if "id" in named else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def assert_self_contained(self):
        """Nothing is loaded from elsewhere, nothing is executed, and every id is unique."""
        assert "script" not in self.tags
        assert "link" not in self.tags
        assert all(address.startswith(("data:", "#")) for address in self.addresses)
        assert len(set(self.identities)) == len(self.identities)
        assert {address[1:] for address in self.addresses if address[0] == "#"} <= set(self.identities)


def run_browser(page, *options):
    """Run the browser on a page without a window -> its standard output."""
    command = [
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={page.parent / 'profile'}",
    ]
    done = subprocess.run(
        [*command, *options, f"file://{page}"], check=True, capture_output=True, text=True, timeout=120
    )
    return done.stdout


def screenshot(page, *, is_dark):
    """(row, column, colour) the upper part of a page in a window of 1,200 pixels."""
    shot = page.with_name("shot.png")
    run_browser(
        page,
        "--hide-scrollbars",
        "--window-size=1200,2400",
        f"--blink-settings=preferredColorScheme={0 if is_dark else 1}",
        f"--screenshot={shot}",
    )
    return imread(shot)[:, :, :3]


def assert_contrast(shot, *, is_dark):
    """Text, lines and figures contrast with the page."""
    brightness = shot.mean(axis=2)
    assert (np.median(brightness) < 0.2) == is_dark
    # In the tables at the top, and in the figures below.
    for part in (brightness[:700], brightness[1200:2200]):
        contrasting = np.abs(part - np.median(brightness)) > 0.5
        assert 0.002 < contrasting.mean() < 0.3
    colourful = shot.max(axis=2) - shot.min(axis=2) > 0.3
    assert colourful[1000:].mean() > 0.0005


def measured_widths(page, *widths):
    """For windows of these widths, the widths of window and page in pixels, and how many of its boxes scroll."""
    text = html.escape(page.read_text(encoding="utf-8"))
    frames = "".join(f'<iframe width="{width}" height="900" srcdoc="{text}"></iframe>' for width in widths)
    measured = page.with_name("measured.html")
    measured.write_text(f"<!doctype html><meta charset=utf-8><body>{frames}{MEASURE}</body>", encoding="utf-8")
    shown = run_browser(measured, "--window-size=1400,900", "--dump-dom")
    return json.loads(re.search(r"<pre>(.*?)</pre>", shown)[1])
