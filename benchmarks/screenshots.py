"""Take pictures of the page of a run: light, dark and on a phone.

`python -m benchmarks.screenshots DIR --out FOLDER` needs Chromium with its driver, and selenium
(`.[test]`).
"""

import argparse
from pathlib import Path

from cwm_cli import report
from tests.support.browser import opened_browser

SIZES = {
    "light": {"width": 1280, "height": 860},
    "dark": {"width": 1280, "height": 860, "dark": True},
    "phone": {"width": 390, "height": 844},
}
TREE = "document.querySelector('.tree')?.scrollIntoView()"
OPEN = "document.querySelector('.as-list .list [data-node], .canvas .best')?.dispatchEvent("
CLICK = OPEN + "new MouseEvent('click', {bubbles: true}))"
SHOWN = "return !document.querySelector('.drawer') || document.querySelector('.pane').textContent"


def main() -> None:
    """Write the page of a run, and pictures of its top, its tree and a node."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--out", type=Path, default=Path("screenshots"), help="where to write")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    page = chosen.out / "report.html"
    report(chosen.run, html=page)
    with opened_browser() as browser:
        for name, size in SIZES.items():
            browser.open(page, **size)  # type: ignore[arg-type]
            browser.picture(chosen.out / f"{name}-top.png")
            browser.run(TREE)
            browser.picture(chosen.out / f"{name}-tree.png")
            browser.run(CLICK)
            while not browser.run(SHOWN):
                pass
            browser.picture(chosen.out / f"{name}-node.png")
            browser.picture(chosen.out / f"{name}-all.png", whole=True)
            print(*sorted(chosen.out.glob(f"{name}-*.png")), sep="\n")


if __name__ == "__main__":
    main()
