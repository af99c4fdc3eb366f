"""What holds for every page and figure of this program, asked of a real browser.

  check_page(browser, path, title)      # an HTML page
  check_figure(browser, path)           # an SVG file on its own
  main(make, check)                     # a test: test_x.py SINKGRAD [FOLDER], with FOLDER it also leaves pictures there
"""
import pathlib
import subprocess
import sys
import tempfile

from browser import Browser

LIMIT = 2 << 20  # bytes
LAPTOP, PHONE = (1280, 900), (390, 844)

# Labels that leave their figure, and pairs of labels of one figure that cover each other.
MISPLACED = """
const wrong = [];
for (const svg of document.querySelectorAll('svg')) {
  const box = svg.getBoundingClientRect();
  if (box.height == 0) continue;
  const labels = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]).filter(([text, r]) => r.width > 0);
  for (const [text, r] of labels)
    if (r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1)
      wrong.push(`'${text}' leaves the figure '${svg.getAttribute('aria-label')}'`);
  for (let i = 0; i < labels.length; ++i)
    for (let j = 0; j < i; ++j) {
      const [a, p] = labels[i], [b, q] = labels[j];
      if (Math.min(p.right, q.right) - Math.max(p.left, q.left) > 2 && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 4)
        wrong.push(`'${a}' covers '${b}' in the figure '${svg.getAttribute('aria-label')}'`);
    }
}
return wrong;
"""

# The contrast ratio of WCAG 2 between each text and what is behind it, and between each curve and its figure's ground.
FAINT = """
const numbers = colour => colour.match(/[0-9.]+/g).map(Number);
const light = colour => {
  const [r, g, b] = numbers(colour).slice(0, 3).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ratio = (a, b) => { const [low, high] = [light(a), light(b)].sort((x, y) => x - y); return (high + 0.05) / (low + 0.05); };
const behind = element => {
  for (let e = element; e; e = e.parentElement) {
    const colour = getComputedStyle(e).backgroundColor;
    if (numbers(colour)[3] !== 0) return colour;
  }
  return 'rgb(255, 255, 255)';
};
const faint = [], check = (name, colour, ground, least) => {
  if (ratio(colour, ground) < least) faint.push(`${name}: ${colour} on ${ground}, ratio ${ratio(colour, ground).toFixed(2)}`);
};
for (const element of document.querySelectorAll('body *:not(svg, svg *, script)')) {
  const own = [...element.childNodes].filter(n => n.nodeType == 3).map(n => n.textContent.trim()).join('');
  if (own && element.offsetHeight > 0) check(`'${own.slice(0, 30)}'`, getComputedStyle(element).color, behind(element), 4.5);
}
for (const svg of document.querySelectorAll('svg')) {
  const ground = getComputedStyle(svg.querySelector('.bg')).fill;
  for (const t of svg.querySelectorAll('text')) {
    const box = t.classList.contains('oncell') ? t.previousElementSibling : t.closest('g')?.querySelector('.box');
    check(`'${t.textContent.slice(0, 30)}'`, getComputedStyle(t).fill, box ? getComputedStyle(box).fill : ground, box ? 4 : 4.5);
  }
  for (const curve of svg.querySelectorAll('.curve')) check(curve.getAttribute('class'), getComputedStyle(curve).stroke, ground, 3);
}
return [...new Set(faint)];
"""

COLOURS = "const s = getComputedStyle(document.querySelector('svg text')), g = getComputedStyle(document.querySelector('svg .bg')); return [s.fill, g.fill]"
SMALLEST_LABEL = """
return Math.min(...[...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().height > 0).flatMap(s =>
  [...s.querySelectorAll('text')].map(t => parseFloat(getComputedStyle(t).fontSize) * s.getBoundingClientRect().width / s.viewBox.baseVal.width)));
"""


def resize(browser, size):
    browser.devtools("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=False)


def check_loading(browser, path):
    assert path.stat().st_size < LIMIT, (path, path.stat().st_size)
    browser.open(path)
    assert browser.messages() == [], f"{path} writes to the console"
    assert browser.requests() == {path.resolve().as_uri()}, f"{path} asks for more than itself"


def check_drawing(browser, path):
    """Names and descriptions for those who cannot see the figures; placement and contrast of labels for those who can, light and dark."""
    assert browser.run("return document.querySelectorAll('svg').length") > 0
    assert browser.run("return [...document.querySelectorAll('svg')].every(s => s.getAttribute('role') == 'img' && s.getAttribute('aria-label')"
                       " && s.querySelector('title').textContent && s.querySelector('desc').textContent)"), f"{path}: a figure without name or description"
    colours = []
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        colours.append(browser.run(COLOURS))
        faint = browser.run(FAINT)
        assert not faint, (path, scheme, faint)
    assert all(light != dark for light, dark in zip(*colours)), colours
    misplaced = browser.run(MISPLACED)
    assert not misplaced, (path, misplaced)


def check_figure(browser, path):
    check_loading(browser, path)
    check_drawing(browser, path)


def check_page(browser, path, title):
    resize(browser, LAPTOP)
    check_loading(browser, path)
    assert browser.run("return document.title") == title
    assert browser.run("return document.documentElement.lang") == "en"
    levels = browser.run("return [...document.querySelectorAll('h1, h2, h3')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1 and all(b <= a + 1 for a, b in zip(levels, levels[1:])), levels
    links = browser.run("return [...document.querySelectorAll('nav a')].map(a => document.querySelector(a.getAttribute('href')) != null)")
    assert all(links), "the list of contents leads nowhere"
    check_drawing(browser, path)
    for size in (LAPTOP, PHONE):
        resize(browser, size)
        assert browser.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth"), f"{path} is wider than {size}"
        assert browser.run(SMALLEST_LABEL) >= 8, f"{path}: labels are too small to read on {size}"
    resize(browser, LAPTOP)
    browser.devtools("Emulation.setEmulatedMedia", media="print")
    assert browser.run("return [...document.querySelectorAll('figure svg')].every(s => s.getBoundingClientRect().height > 0)"), "a figure is not printed"
    browser.devtools("Emulation.setEmulatedMedia", media="")


def take_pictures(browser, path, folder):
    """Light and dark, on a laptop and a telephone, for eyes to judge."""
    for device, size in (("laptop", LAPTOP), ("phone", PHONE)):
        resize(browser, size)
        for scheme in ("light", "dark"):
            browser.prefer(scheme)
            browser.open(path)
            browser.screenshot(folder / f"{path.stem}_{path.suffix[1:]}_{device}_{scheme}.png")


def main(make, check):
    """`make(run, folder)` lets run("inspect", ...) write files into an empty folder and lists them; `check(browser, path)` is asked of each."""
    program, pictures = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory(prefix="sinkgrad-pages-") as folder, Browser() as browser:
        def run(*arguments):
            subprocess.run([program, *arguments], check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for path in make(run, pathlib.Path(folder)):
            if pictures:
                take_pictures(browser, path, pictures)
            check(browser, path)
