"""Small SVG pictures: boxes, texts and arrows.

Boxes are light with dark text, and lines and free texts have a middle grey. So a picture can be read on white and on
dark pages, whatever chooses the page's colours.
"""

from __future__ import annotations

from html import escape

GREY = "#7a8699"
FILLS = {"blue": "#dbe7ff", "green": "#d7f2df", "amber": "#ffe9c7", "grey": "#e8ebf0", "red": "#ffdcd8"}
EDGES = {"blue": "#3d6fd6", "green": "#2f9e56", "amber": "#c98512", "grey": "#8a94a6", "red": "#d1483b"}
INK = "#1c2430"
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"


class Picture:
    """An SVG document that grows by what is drawn on it. Units are pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = width, height
        self._title = title
        self._parts: list[str] = []

    def box(
        self, x: float, y: float, width: float, height: float, text: str, *, fill: str = "grey", top: bool = False
    ) -> None:
        """A box; the first line of its text is bold. top: the text stands at its top, because boxes stand below."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" fill="{FILLS[fill]}" '
            f'stroke="{EDGES[fill]}" stroke-width="1.4"/>'
        )
        lines = text.split("\n")
        first = y + 20 if top else y + height / 2 - 8.5 * (len(lines) - 1) + 4.5
        for number, line in enumerate(lines):
            self._write(x + width / 2, first + 17 * number, line, bold=number == 0, color=INK, anchor="middle")

    def text(self, x: float, y: float, text: str, *, bold: bool = False, anchor: str = "start") -> None:
        """Free text, one or more lines."""
        for number, line in enumerate(text.split("\n")):
            self._write(x, y + 17 * number, line, bold=bold, color=GREY, anchor=anchor)

    def arrow(self, *points: tuple[float, float], color: str = GREY, both: bool = False, dashed: bool = False) -> None:
        """A line through the points, with a head at its end."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        marker = ' marker-start="url(#head)"' if both else ""
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6" '
            f'marker-end="url(#head)"{marker}{dashes}/>'
        )

    def line(self, *points: tuple[float, float], color: str = GREY, width: float = 1.6) -> None:
        """A line without a head."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width:g}"/>')

    def _write(self, x: float, y: float, text: str, *, bold: bool, color: str, anchor: str) -> None:
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="13" text-anchor="{anchor}" fill="{color}"{weight}>'
            f"{escape(text)}</text>"
        )

    def __str__(self) -> str:
        width, height = self._size
        head = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0,0 L8,4 L0,8 z" fill="{GREY}"/></marker></defs>'
        )
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                f'height="{height}" role="img" font-family="{FONT}">',
                f"<title>{escape(self._title)}</title>",
                head,
                *self._parts,
                "</svg>\n",
            ]
        )
