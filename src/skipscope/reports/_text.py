"""How the reports write numbers, names, bars and sparklines: text in, text out, nothing measured.

A number is a float, or None where nothing was measured. NaN and the infinities are results and are
written out; None is a dash.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from unicodedata import category

Number = float | None

#: What stands in for characters that a plain ASCII stream cannot show.
PLAIN = str.maketrans(
    {
        "\u2026": "...",
        "\u00b7": "-",
        "\u2013": "-",
        "\u2014": "-",
        "\u00d7": "x",
        "\u03b1": "alpha",
        "\u2016": "||",
        "\u221a": "sqrt",
        "\u2192": "->",
        "\u2265": ">=",
        "\u2264": "<=",
        "\u2248": "~",
        "\u00b1": "+-",
        "\u201c": '"',
        "\u201d": '"',
        "\u2018": "'",
        "\u2019": "'",
    }
)

#: Categories of Unicode: control characters, directions and joiners, ends of line and paragraph.
STEERING = ("Cc", "Cf", "Zl", "Zp")
BLOCKS = "\u258f\u258e\u258d\u258c\u258b\u258a\u2589\u2588"
LEVELS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
PLAIN_LEVELS = "_.:-=+*#"
NUMBER = r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?"
DECADES = 4  #: of a bar; what is smaller has none


def visible(text: str) -> str:
    r"""`text` with "?" for what steers a terminal or turns the direction of writing.

    >>> visible("a\x1b[31m b\u202e c\n")
    'a?[31m b? c\n'
    """
    if text.isprintable():
        return text
    return "".join("?" if c not in "\n\t" and category(c) in STEERING else c for c in text)


def plain(text: str) -> str:
    """`text` in ASCII only.

    >>> plain("growth \u00d7 47 \u2026")
    'growth x 47 ...'
    """
    return text.translate(PLAIN).encode("ascii", "replace").decode("ascii")


def special(value: Number) -> str | None:
    """The text of a number that has no digits (missing, NaN, infinite), else None."""
    if value is None:
        return "-"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return None


def number(value: Number) -> str:
    """Two or three digits, as many as a reader compares.

    >>> [number(v) for v in (34.04, 0.4, 0.0102, 0.00213, 1234.5, 2.5e7, 0.0, None)]
    ['34.0', '0.40', '0.010', '2.1e-3', '1234', '2.5e7', '0', '-']
    """
    written = special(value)
    if written is not None or value is None:
        return written or "-"
    size = abs(value)
    if size == 0.0:
        return "0"
    if size >= 99_999.5 or size < 0.00995:
        return scientific(value)
    for limit, digits in ((99.95, 0), (9.995, 1), (0.0995, 2)):
        if size >= limit:
            return f"{value:.{digits}f}"
    return f"{value:.3f}"


def exact(text: str, value: float, limit: float) -> str:
    """`text` with more digits of `value`, where those it has put it on the limit or beyond.

    The number in the text that is nearest to the value counts as the value.

    >>> exact("0.95", 0.9496, 0.95), exact("0.94", 0.944, 0.95), exact("-> 2 (x3.0)", 2.997, 3.0)
    ('0.9496', '0.94', '-> 2 (x2.997)')
    """
    numbers = [*re.finditer(NUMBER, text)]
    if not numbers or not math.isfinite(value) or not math.isfinite(limit) or value == limit:
        return text
    written = min(numbers, key=lambda one: abs(float(one[0]) - value))
    sign = "+" if written[0].startswith("+") else ""
    finer = (f"{value:{sign}.{digits}g}" for digits in range(3, 18))
    told = next(
        one
        for one in (written[0], *finer)
        if float(one) != limit and (float(one) < limit) == (value < limit)
    )
    return f"{text[: written.start()]}{told}{text[written.end() :]}"


def scientific(value: Number) -> str:
    """Two digits and a power of ten.

    >>> scientific(0.0021), scientific(0.0), scientific(None)
    ('2.1e-3', '0', '-')
    """
    written = special(value)
    if written is not None or value is None:
        return written or "-"
    if value == 0.0:
        return "0"
    digits, power = f"{value:.1e}".split("e")
    return f"{digits}e{int(power)}"


def signed(value: Number) -> str:
    """A cosine: two digits behind the point, sign always there.

    >>> signed(0.021), signed(-0.4), signed(None)
    ('+0.02', '-0.40', '-')
    """
    return special(value) or f"{value:+.2f}"


def factor(value: Number) -> str:
    """A ratio of sizes, to be read as "times".

    >>> factor(47.0), factor(None), factor(float("nan"))
    ('x47.0', '-', 'NaN')
    """
    return special(value) or f"x{number(value)}"


def percent(value: Number) -> str:
    """A share in percent.

    >>> percent(0.069), percent(1.0), percent(0.00004), percent(None)
    ('6.9 %', '100 %', '4.0e-3 %', '-')
    """
    written = special(value)
    if written is not None or value is None:
        return written or "-"
    shown = 100 * value
    return f"{number(shown) if abs(shown) < 0.995 else f'{shown:.2g}'} %".replace("1e+02", "100")


def shorten(text: str, width: int, *, unicode: bool = True) -> str:
    """`text` in at most `width` characters, cut in its middle: both ends of a path matter.

    >>> shorten("backbone.layer4.blocks.7", 15, unicode=False)
    'backbo..locks.7'
    """
    if len(text) <= width:
        return text
    mark = "\u2026" if unicode else ".."
    if width <= len(mark) + 1:
        return text[:width]
    kept = width - len(mark)
    head = kept // 2
    return text[:head] + mark + text[len(text) - (kept - head) :]


def common_start(names: Sequence[str]) -> str:
    """The module path that all names share, less its last part, which says what they are.

    >>> common_start(["net.encoder.layers.0", "net.encoder.layers.1"]), common_start(["blocks.0"])
    ('net.encoder.', '')
    """
    paths = [name.split(".")[:-2] for name in names]
    shared = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "".join(f"{part}." for part in shared)


def listed(items: Sequence[str], most: int, *, more: str = "more") -> str:
    """The first `most` items, and how many were left out.

    >>> listed(["a", "b", "c", "d"], 2), listed(["a", "b"], 2)
    ('a, b and 2 more', 'a, b')
    """
    left = len(items) - most
    shown = ", ".join(items[:most])
    return shown if left <= 0 else f"{shown} and {left} {more}"


def log_range(values: Sequence[Number]) -> tuple[float, float]:
    """The decades that hold the positive finite values, four at most: ends of a logarithmic axis.

    >>> log_range([0.02, 0.4, 34.0, None, 0.0])
    (0.01, 100.0)
    """
    sizes = [v for v in values if v is not None and v > 0 and math.isfinite(v)]
    if not sizes:
        return (0.1, 1.0)
    high = math.ceil(math.log10(max(sizes)) - 1e-9)
    low = max(math.floor(math.log10(min(sizes)) + 1e-9), high - DECADES)
    return (10.0 ** min(low, high - 1), 10.0**high)


def bar(value: Number, ends: tuple[float, float], width: int, *, unicode: bool = True) -> str:
    """`value` as a bar along the logarithmic axis `ends`; empty where there is nothing to draw.

    >>> bar(1.0, (0.01, 100.0), 8, unicode=False), bar(0.0, (0.01, 100.0), 8)
    ('####', '')
    """
    if value is None or math.isnan(value) or value <= 0:
        return ""
    low, high = math.log(ends[0]), math.log(ends[1])
    at = 1.0 if math.isinf(value) else (math.log(value) - low) / (high - low)
    eighths = round(min(max(at, 0.0), 1.0) * width * 8)
    if not unicode:
        return "#" * round(eighths / 8)
    whole, rest = divmod(eighths, 8)
    return BLOCKS[-1] * whole + (BLOCKS[rest - 1] if rest else "")


def sparkline(values: Sequence[Number], *, unicode: bool = True) -> str:
    """Values over time, each as one character, on a logarithmic scale of their own.

    Less than a doubling fills half the height only, so that noise does not look like a trend. A
    missing value is a space, NaN is "?", zero the lowest and infinity the highest level.

    >>> sparkline([0.1, 0.4, 1.6, None, float("nan"), 6.4], unicode=False)
    '_:+ ?#'
    >>> sparkline([1.0, 1.01, 1.0], unicode=False)
    '---'
    """
    levels = LEVELS if unicode else PLAIN_LEVELS
    top = len(levels) - 1
    logs = [math.log(v) for v in values if v is not None and v > 0 and math.isfinite(v)]
    lowest = min(logs, default=0.0)
    spread = max(logs, default=0.0) - lowest
    span = max(spread, 2 * math.log(2))
    start = int(top * (1 - spread / span) / 2)

    def level(value: Number) -> str:
        if value is None:
            return " "
        if math.isnan(value):
            return "?"
        if value <= 0 or math.isinf(value):
            return levels[0] if value <= 0 else levels[top]
        return levels[start + round(top * (math.log(value) - lowest) / span)]

    return "".join(level(value) for value in values)
