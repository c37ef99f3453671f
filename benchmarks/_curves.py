"""A chart of two bundles of curves, as SVG that is readable on light and on dark pages, and on a phone."""

import statistics
from collections.abc import Sequence

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 800, 360, 66, 236, 50, 62
GRAY, WRONG, CORRECTED = "#7a828c", "#d9480f", "#0f8f6b"
LOWEST, HIGHEST = -0.15, 0.6
FONT = "-apple-system, Segoe UI, Helvetica, Arial, sans-serif"


def picture(wrong: Sequence[Sequence[float]], corrected: Sequence[Sequence[float]]) -> str:
    """Draw the mean of each bundle, in a band from its lowest to its highest curve."""
    epochs = len(wrong[0])
    grid = [
        f'<path d="M{LEFT} {_height(share):.1f}H{WIDTH - RIGHT}" stroke="{GRAY}" opacity="0.35"/>'
        f'<text x="{LEFT - 10}" y="{_height(share) + 6:.0f}" text-anchor="end">{share:.0%}</text>'
        for share in (0.0, 0.2, 0.4, 0.6)
    ]
    ticks = [
        f'<text x="{_across(epoch, epochs):.0f}" y="{HEIGHT - 36}" text-anchor="middle">{epoch}</text>'
        for epoch in (1, 10, 20, 30, 40)
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="{FONT}" font-size="17" fill="{GRAY}">',
        f'<text x="{LEFT - 46}" y="24" font-size="19" font-weight="600">Variance explained on the test set</text>',
        *grid,
        *ticks,
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">epochs</text>',
        *_bundle(wrong, WRONG, "as written", "no error, no warning"),
        *_bundle(corrected, CORRECTED, "corrected", "one line changed"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _across(epoch: int, epochs: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (epoch - 1) / (epochs - 1)


def _height(share: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (HIGHEST - max(share, LOWEST)) / (HIGHEST - LOWEST)


def _bundle(curves: Sequence[Sequence[float]], color: str, name: str, remark: str) -> list[str]:
    by_epoch = list(zip(*curves, strict=True))

    def points(shares: list[float]) -> list[str]:
        return [f"{_across(n, len(shares)):.1f},{_height(share):.1f}" for n, share in enumerate(shares, 1)]

    means = [statistics.fmean(shares) for shares in by_epoch]
    band = points([max(shares) for shares in by_epoch]) + points([min(shares) for shares in by_epoch])[::-1]
    x, y = WIDTH - RIGHT + 14, _height(means[-1])
    return [
        f'<polygon points="{" ".join(band)}" fill="{color}" opacity="0.22"/>',
        f'<polyline points="{" ".join(points(means))}" fill="none" stroke="{color}" stroke-width="4"/>',
        f'<text x="{x}" y="{y + 4:.0f}" fill="{color}" font-size="27" font-weight="700">'
        f"{means[-1]:.0%} {name}</text>",
        f'<text x="{x}" y="{y + 28:.0f}">{remark}</text>',
    ]
