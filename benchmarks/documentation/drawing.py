"""Draw the diagram and the badges of the documentation.

`python -m benchmarks.documentation.drawing` writes SVG files into `docs/images`. The diagram has a
light and a dark version.
"""

from html import escape
from pathlib import Path
from typing import NamedTuple

IMAGES = Path(__file__).parents[2] / "docs" / "images"
LETTERS = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


class Colours(NamedTuple):
    """Colours of a drawing."""

    ink: str
    faint: str
    box: str
    edge: str
    trusted: str
    confined: str


THEMES = {
    "light": Colours("#1d2b30", "#5d6f76", "#ffffff", "#9db2b8", "#eaf3f1", "#fbf1e3"),
    "dark": Colours("#e6eeee", "#9fb1b6", "#1d282c", "#52676e", "#17292b", "#2c2518"),
}

BADGES = {
    "badge-python": ("python", "3.11+"),
    "badge-licence": ("licence", "Apache-2.0"),
    "badge-offline": ("network", "not needed"),
}


class Drawing:
    """An SVG image of boxes, words and arrows; coordinates are in pixels."""

    def __init__(self, width: int, height: int, colours: Colours, title: str) -> None:
        self.colours = colours
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'role="img" aria-label="{escape(title)}" font-family="{LETTERS}">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
            f'markerHeight="7" orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" '
            f'fill="{colours.faint}"/></marker></defs>',
        ]

    def area(self, x: int, y: int, width: int, height: int, fill: str, name: str) -> None:
        """Draw a region with its name in the upper left corner."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="14" fill="{fill}"/>'
        )
        self.words(x + 16, y + 26, name, size=13, faint=True)

    def box(self, x: int, y: int, width: int, title: str, *lines: str) -> None:
        """Draw a box with a title and lines of small words, 20 pixels per line."""
        height = 42 + 20 * len(lines)
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="9" '
            f'fill="{self.colours.box}" stroke="{self.colours.edge}" stroke-width="1.3"/>'
        )
        self.words(x + 14, y + 27, title, size=16, bold=True)
        for i, line in enumerate(lines):
            self.words(x + 14, y + 49 + 20 * i, line, size=13.5, faint=True)

    def words(
        self, x: float, y: float, text: str, *, size: float, bold: bool = False, faint: bool = False
    ) -> None:
        """Write words; `x` and `y` are the left end of the baseline."""
        colour = self.colours.faint if faint else self.colours.ink
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}"{weight}>'
            f"{escape(text)}</text>"
        )

    def arrow(self, path: str, label: str = "", at: tuple[float, float] = (0, 0)) -> None:
        """Draw an arrow along an SVG path, with a label at `at`."""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{self.colours.faint}" stroke-width="1.6" '
            'marker-end="url(#tip)"/>'
        )
        if label:
            self.words(*at, label, size=13, faint=True)

    def save(self, name: str) -> None:
        """Write the drawing."""
        text = "\n".join([*self.parts, "</svg>\n"])
        (IMAGES / f"{name}.svg").write_text(text, encoding="utf-8")


def how_it_works(colours: Colours) -> Drawing:
    """Draw the steps from an environment to a program, and the uses of the program."""
    title = "From transitions to a program: search, sandbox, score; then plan, learn, export"
    drawing = Drawing(900, 520, colours, title)
    drawing.box(20, 50, 190, "Environment", "Gymnasium, MiniGrid,", "RTFM, your own")
    drawing.box(20, 210, 190, "Transitions", "training rows", "held-out rows")
    drawing.arrow("M115 132 V206", "collect", (124, 174))

    drawing.area(260, 20, 370, 352, colours.trusted, "search")
    drawing.box(280, 60, 330, "Strategy", "which program to write, fix or improve")
    drawing.box(280, 166, 330, "Backend", "language model or induction writes it")
    drawing.box(280, 272, 330, "Score", "accuracy, and mistakes for the prompt")
    drawing.arrow("M445 122 V162", "prompt", (454, 148))
    drawing.arrow("M445 228 V268", "program", (454, 254))
    drawing.arrow("M610 303 H622 V91 H614")
    drawing.arrow("M210 251 H276")

    drawing.area(660, 20, 220, 352, colours.confined, "sandbox")
    drawing.box(676, 166, 188, "The program", "set_state, step", "no files, no network")
    drawing.box(676, 292, 188, "Planner", "tries actions in it")
    drawing.arrow("M610 320 C640 320 640 225 672 225", "rows", (638, 320))
    drawing.arrow("M770 248 V288")

    drawing.box(260, 420, 160, "best.py", "read it, test it")
    drawing.box(440, 420, 190, "Run folder", "journal, data, scores")
    drawing.box(660, 420, 220, "Export", "a Gymnasium package")
    drawing.arrow("M340 334 V416", "best so far", (350, 396))
    drawing.arrow("M420 452 H436")
    drawing.arrow("M630 452 H656")
    drawing.arrow("M864 323 H889 V10 H115 V46", "act", (124, 30))
    return drawing


def badge(name: str, value: str) -> str:
    """Return a badge of two words."""
    left, right = (7 * len(word) + 16 for word in (name, value))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{name}: {value}"><title>{name}: {value}</title>'
        f'<rect width="{left + right}" height="20" rx="4" fill="#3a4a50"/>'
        f'<path d="M{left} 0h{right - 4}a4 4 0 0 1 4 4v12a4 4 0 0 1-4 4h-{right - 4}z" '
        f'fill="#2b7f6b"/><g fill="#fff" font-family="Verdana, sans-serif" font-size="11">'
        f'<text x="{left / 2}" y="14" text-anchor="middle">{name}</text>'
        f'<text x="{left + right / 2}" y="14" text-anchor="middle">{value}</text></g></svg>\n'
    )


def main() -> None:
    """Write the diagrams and badges."""
    for theme, colours in THEMES.items():
        how_it_works(colours).save(f"how-it-works-{theme}")
    for name, (left, right) in BADGES.items():
        (IMAGES / f"{name}.svg").write_text(badge(left, right), encoding="utf-8")


if __name__ == "__main__":
    main()
