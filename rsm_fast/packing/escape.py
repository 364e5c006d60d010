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
_BREAK = "[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]"
_UNPRINTABLE = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ud800-\udfff]+"
)
_REPLACED = str.maketrans("()\\", "[]/")
_LOOKS_LIKE_FIELD = re.compile(r"(?i)^(step|item) (?=-?[0-9]+(?: |$))")


@lru_cache(maxsize=4096)
def clean_label(text: str) -> str:
    """A role or name as it may stand in a frame line: short, printable, on one line.

    White space, control and invisible format characters become one space, round brackets
    square ones, a backslash a slash, and ``step 7`` in front ``step_7``, so that a label
    can't be taken for another field of its line. An empty label is ``?``.
    """
    label = _UNPRINTABLE.sub(" ", text[: 20 * LONGEST_LABEL]).strip()[:LONGEST_LABEL].rstrip()
    label = label.translate(_REPLACED)
    return _LOOKS_LIKE_FIELD.sub(r"\1_", label) or "?"


class Escaper:
    """Escapes and unescapes the stored lines that look like frame lines.

    Parameters
    ----------
    forms : sequence of (str, str)
        For each kind of frame line a regular expression from the line's start, and a text
        that every match contains: a stored text without it needs no closer look.
    """

    def __init__(self, forms: Sequence[tuple[str, str]]) -> None:
        self._forms = tuple(forms)
        self._hints = tuple(hint for _, hint in forms)
        self._compiled: dict[int, re.Pattern[str]] = {}
        frame = "|".join(f"(?:{pattern})" for pattern, _ in forms)
        self._escaped = re.compile(f"({_BREAK})\\\\(?=\\\\*(?:{frame}))")

    def escape(self, text: str) -> str:
        """Put a backslash before each look-alike line of ``text``."""
        found = self._closer_look(text)
        if found is None:
            return text
        return found.sub(r"\g<0>\\", "\n" + text)[1:]

    def unescape(self, text: str) -> str:
        """Undo `escape`."""
        return self._escaped.sub(r"\1", "\n" + text)[1:] if ESCAPE in text else text

    def count(self, text: str) -> int:
        """How many backslashes `escape` adds."""
        found = self._closer_look(text)
        return 0 if found is None else len(found.findall("\n" + text))

    def _closer_look(self, text: str) -> re.Pattern[str] | None:
        """What finds the look-alikes; None where there can be none (a quick test)."""
        mask = 0
        bit = 1
        for hint in self._hints:
            if hint in text:
                mask |= bit
            bit <<= 1
        if not mask:
            return None
        found = self._compiled.get(mask)
        if found is None:
            # Starts with a character class, so the engine skips quickly to line starts.
            frame = "|".join(
                f"(?:{pattern})" for at, (pattern, _) in enumerate(self._forms) if mask >> at & 1
            )
            found = self._compiled[mask] = re.compile(f"{_BREAK}(?=\\\\*(?:{frame}))")
        return found
