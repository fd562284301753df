"""A picture in SVG, drawn in pixels from the top left."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import escape

FONT = "Helvetica, Arial, DejaVu Sans, sans-serif"
INK, FAINT, GRID = "#1f2933", "#5f6b7a", "#d9dee5"


@dataclass
class Picture:
    """White, `width` wide and `height` high."""

    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def text(
        self,
        x: float,
        y: float,
        content: str,
        size: int = 12,
        anchor: str = "start",
        fill: str = INK,
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{weight}>'
            f"{escape(content)}</text>"
        )

    def upright(self, x: float, y: float, content: str, size: int = 12) -> None:
        """Text that reads upwards, centred at y."""
        self.parts.append(f'<g transform="translate({x:.0f} {y:.0f}) rotate(-90)">')
        self.text(0, 0, content, size, "middle")
        self.parts.append("</g>")

    def bar(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"/>')

    def dot(self, x: float, y: float, radius: float, fill: str) -> None:
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}" fill-opacity="0.85"/>')

    def line(self, points: list[tuple[float, float]], stroke: str, width: float = 1) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="{width}"/>')

    def svg(self) -> str:
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}">'
        paper = f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>'
        return "\n".join([head, paper, *self.parts, "</svg>", ""])
