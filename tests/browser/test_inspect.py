#!/usr/bin/env python3
"""`sinkgrad inspect` from outside: the files it writes, and its page in a real browser.

  test_inspect.py SINKGRAD [FOLDER]     # with FOLDER it also leaves pictures there
"""
import json
import math
import re
import struct
import zipfile

from page_checks import check_page, main


def read_npy(data):
    assert data[:8] == b"\x93NUMPY\x01\x00" and (10 + struct.unpack("<H", data[8:10])[0]) % 64 == 0
    length = struct.unpack("<H", data[8:10])[0]
    header = data[10:10 + length].decode()
    assert "'descr': '<f8', 'fortran_order': False" in header and header.endswith("\n")
    shape = tuple(int(d) for d in re.search(r"'shape': \(([^)]*)\)", header)[1].split(",") if d.strip())
    return shape, struct.unpack(f"<{math.prod(shape)}d", data[10 + length:])


def flatten(nested):
    return [x for part in nested for x in flatten(part)] if isinstance(nested, list) else [float(nested)]


def shape_of(nested):
    return (len(nested),) + shape_of(nested[0]) if isinstance(nested, list) else ()


def check_files(folder):
    """JSON and .npz hold the same arrays under the documented names."""
    content = json.loads((folder / "small.json").read_text())
    l, n, m = 3, 4, 5
    shapes = {"C": (n, m), "f": (l, n), "g": (l, m), "P": (l, n, m), "row_sum": (l, n), "col_sum": (l, m), "err_row": (l,), "err_col": (l,), "dual": (l,),
              "entropy": (l,), "largest": (l,), "W": (n, m), "gbar_f": (l, n), "gbar_g": (l, m), "dC_direct": (n, m), "dC_step": (l, n, m), "dC": (n, m),
              "dC_implicit": (n, m), "dC_frozen": (n, m), "dC_fd": (n, m), "P_limit": (n, m), "dC_limit": (n, m), "sigma2": (), "sv": (3, 4 * 4)}
    with zipfile.ZipFile(folder / "small.npz") as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == sorted(name + ".npy" for name in shapes)
        for name, shape in shapes.items():
            found, values = read_npy(archive.read(name + ".npy"))
            assert found == shape == shape_of(content[name]), (name, found, shape_of(content[name]))
            assert list(values) == flatten(content[name]), name
    assert content["schema"] == 1 and content["half_steps"] == l and content["rows"] == [0, 1, 2, 3] and content["columns"] == [0, 1, 3, 4]
    assert [mode["name"] for mode in content["modes"]] == ["unrolled", "implicit", "frozen", "finite_differences"]
    assert all(row[2] == 0 for row in content["dC"]), "a masked column has gradient 0"
    assert math.isclose(sum(content["row_sum"][0]), n, rel_tol=1e-14)


VISIBLE = "return [...document.querySelectorAll('.frames')].map(box => [...box.querySelectorAll('.frame')].filter(f => f.offsetHeight > 0).length)"


def check_sliders(browser, page, half_steps):
    # One frame each, moved with the keyboard.
    browser.open(page)
    assert browser.run(VISIBLE) == [1, 1]
    place = "return document.querySelector('.slider output').textContent"
    shown = "return [...document.querySelectorAll('.frames')[0].querySelectorAll('.frame')].findIndex(f => f.offsetHeight > 0)"
    assert browser.run(place) == "1 (rows)" and browser.run(shown) == 0
    browser.press(".slider input", "right")
    assert browser.run(place) == "2 (columns)" and browser.run(shown) == 1
    assert browser.run("return document.querySelector('.slider input').getAttribute('aria-valuetext')") == "2 (columns)"
    browser.press(".slider input", "end")
    assert browser.run(place) == f"{half_steps} (rows)" and browser.run(VISIBLE) == [1, 1]

    # In print, and where scripts do not run, all frames are there.
    browser.devtools("Emulation.setEmulatedMedia", media="print")
    assert min(browser.run(VISIBLE)) > 1
    browser.devtools("Emulation.setEmulatedMedia", media="")
    browser.devtools("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(page)
    browser.devtools("Emulation.setScriptExecutionDisabled", value=False)
    counts = browser.run("return [...document.querySelectorAll('.frames')].map(box => box.querySelectorAll('.frame').length)")
    assert browser.run(VISIBLE) == counts and min(counts) > 1, "all frames are shown without scripts"
    assert browser.run("return document.querySelector('.slider')") is None


HALF_STEPS = {"small": 3, "large": 21}


def make(run, folder):
    run("inspect", "--size", "4", "5", "-l", "3", "--mask-columns", "2", "--out", "small")
    run("inspect", "--size", "64", "--spread", "2", "-l", "21", "--out", "large")
    run("inspect", "--size", "6", "8", "--spread", "2", "-l", "1", "--against", "5", "--out", "against")
    run("inspect", "--size", "64", "--seed", "1", "--against", "large.json", "--out", "against_large")
    check_files(folder)
    return [folder / (name + ".html") for name in ("small", "large", "against", "against_large")]


def check(browser, page):
    if page.stem in HALF_STEPS:
        check_page(browser, page, "Sinkhorn, half-step by half-step")
        check_sliders(browser, page, HALF_STEPS[page.stem])
    else:
        check_page(browser, page, "Sinkhorn, side by side")
        assert browser.run("return document.querySelectorAll('script').length") == 0


if __name__ == "__main__":
    main(make, check)
