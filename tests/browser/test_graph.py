#!/usr/bin/env python3
"""The drawing of `sinkgrad graph` in a real browser.

  test_graph.py SINKGRAD [FOLDER]     # with FOLDER it also leaves pictures there
"""
from page_checks import check_figure, main

# What is written in a box stays in it: [text] of labels that leave the rectangle of their group.
OUTSIDE = """
return [...document.querySelectorAll('svg g')].flatMap(g => {
  const box = g.querySelector('.box').getBBox();
  return [...g.querySelectorAll('text')].filter(t => t.textContent).filter(t => t.getBBox().x < box.x || t.getBBox().x + t.getBBox().width > box.x + box.width).map(t => t.textContent);
});
"""


def make(run, folder):
    model = ["--set", "model.iterations=5", "--steps", "2", "--batch-size", "8"]
    run("graph", "set_shapes_small", *model, "--out", "closed.svg")
    run("graph", "set_shapes_small", *model, "--open", "--values", "1", "--out", "open.svg")
    return [folder / "closed.svg", folder / "open.svg"]


def check(browser, drawing):
    check_figure(browser, drawing)
    outside = browser.run(OUTSIDE)
    assert not outside, outside
    half_steps = browser.run("return document.querySelectorAll('.half').length")
    assert (half_steps > 0) == (drawing.stem == "open"), half_steps
    assert browser.run("return [...document.querySelectorAll('svg g')].every(g => g.querySelector('title').textContent)"), "a box without its tooltip"


if __name__ == "__main__":
    main(make, check)
