"""Keeping stored text and the frame of a pack apart.

A template's frame is made of a few kinds of lines. A stored line that looks like one of them
gets one backslash in front, and so does a stored line that has backslashes before such a
look-alike; taking one backslash off undoes it, exactly. No other stored text is touched.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

__all__ = ["ESCAPE", "LONGEST_LABEL", "Escaper", "clean_label"]

ESCAPE = "\\"
LONGEST_LABEL = 60

# All that str.splitlines() breaks at: a reader may take any of them for the end of a line.
_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_LINE_START = f"(?:\\A|(?<=[{_BREAKS}]))"
_UNPRINTABLE = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202f\u2060-\u2069\ufeff]+"
)
_REPLACED = str.maketrans("()\\", "[]/")
_LOOKS_LIKE_FIELD = re.compile(r"(?i)^(step|item) (?=[0-9]+(?: |$))")


@lru_cache(maxsize=4096)
def clean_label(text: str) -> str:
    """A role or name as it may stand in a frame line: short, printable, on one line.

    White space, control and invisible format characters become one space, round brackets
    square ones, a backslash a slash, and ``step 7`` in front ``step_7``, so that a label
    can't be taken for another field of its line. An empty label is ``?``.
    """
    label = _UNPRINTABLE.sub(" ", text).strip()[:LONGEST_LABEL].rstrip()
    label = label.translate(_REPLACED)
    return _LOOKS_LIKE_FIELD.sub(r"\1_", label) or "?"


class Escaper:
    """Escapes and unescapes the stored lines that look like frame lines.

    Parameters
    ----------
    patterns : sequence of str
        Regular expressions of the frame lines, from the start of the line.
    hints : sequence of str
        Lower-case texts of which every match of the patterns contains at least one; a text
        without any of them needs no closer look.
    """

    def __init__(self, patterns: Sequence[str], hints: Sequence[str]) -> None:
        frame = "|".join(f"(?:{pattern})" for pattern in patterns)
        self._hints = tuple(hints)
        self._found = re.compile(f"(?i){_LINE_START}(?=\\\\*(?:{frame}))")
        self._escaped = re.compile(f"(?i){_LINE_START}\\\\(?=\\\\*(?:{frame}))")

    def escape(self, text: str) -> str:
        """Put a backslash before each look-alike line of ``text``."""
        if not self.suspicious(text):
            return text
        return self._found.sub(r"\\", text)

    def unescape(self, text: str) -> str:
        """Undo `escape`."""
        return self._escaped.sub("", text) if ESCAPE in text else text

    def count(self, text: str) -> int:
        """How many backslashes `escape` would add."""
        return len(self._found.findall(text)) if self.suspicious(text) else 0

    def suspicious(self, text: str) -> bool:
        """Whether ``text`` may hold a look-alike at all (a quick test)."""
        lowered = text.lower()
        return any(hint in lowered for hint in self._hints)
