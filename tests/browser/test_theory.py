#!/usr/bin/env python3
"""The page of `sinkgrad theory` in a real browser.

  test_theory.py SINKGRAD [FOLDER]     # with FOLDER it also leaves pictures there
"""
from page_checks import check_page, main

VERDICTS = "return [...document.querySelectorAll('.verdict')].map(v => v.textContent.split(':')[0])"


def make(run, folder):
    run("theory", "--out", "theory.html")
    return [folder / "theory.html"]


def check(browser, page):
    check_page(browser, page, "Sinkformers: the theory in numbers and pictures")
    assert browser.run("return document.querySelectorAll('script').length") == 0
    assert browser.run(VERDICTS) == ["ok"] * 7
    assert browser.run("return document.querySelectorAll('main h2').length") == 7
    # Each statement has its figures and the table of its numbers.
    parts = browser.run("return [...document.querySelectorAll('main > *')].map(e => e.tagName)")
    sections = "".join("f" if tag == "FIGURE" else "t" if tag == "DIV" else "|" if tag == "H2" else "" for tag in parts).split("|")[1:]
    assert all(section.strip("f") == "t" and "f" in section for section in sections), sections


if __name__ == "__main__":
    main(make, check)
