#!/usr/bin/env python3
"""Learning curves of `sinkgrad plot`, with the attention of every layer, in a real browser.

  test_plot.py SINKGRAD [FOLDER]     # with FOLDER it also leaves pictures there
"""
import json

from page_checks import check_figure, check_page, main

RECIPE = {"model": {"name": "set_transformer", "dim": 16, "heads": 2, "inducing": 4}, "data": {"name": "shapes", "points": 12, "train": 48, "test": 24},
          "epochs": 4, "batch_size": 8}


def make(run, folder):
    (folder / "tiny.json").write_text(json.dumps(RECIPE))
    for half_steps in ("1", "5"):
        for seed in ("1", "2", "3"):
            run("train", "tiny.json", "--set", f"model.iterations={half_steps}", "--seed", seed, "--attention-every", "6", "--out", f"runs/l{half_steps}_{seed}")
    run("plot", "runs", "--group-seeds", "--attention", "--out", "several.html")
    run("plot", "runs/l5_1", "--attention", "--out", "one.html")
    run("plot", "runs", "--metric", "accuracy", "--out", "accuracy.svg")
    return [folder / name for name in ("several.html", "one.html", "accuracy.svg")]


def check(browser, page):
    if page.suffix == ".svg":
        return check_figure(browser, page)
    check_page(browser, page, "Learning curves")
    assert browser.run("return document.querySelectorAll('script').length") == 0
    charts = browser.run("return [...document.querySelectorAll('svg')].map(s => s.getAttribute('aria-label'))")
    assert charts[:2] == ["Learning curves: loss", "Learning curves: accuracy"]
    for layer in range(5):
        for quantity in ("column sums", "marginal error", "entropy"):
            assert f"Layer {layer}: {quantity}" in charts
    # Configurations are folded away, and open without a script.
    assert browser.run("return document.querySelector('details pre').checkVisibility()") is False
    browser.run("document.querySelector('summary').click()")
    assert browser.run("return document.querySelector('details pre').checkVisibility()") is True


if __name__ == "__main__":
    main(make, check)
