"""Any text as XML 1.0 character data, and back."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["decode", "encode"]

_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#13;"}
_CHARACTERS: Final = {entity: character for character, entity in _ENTITIES.items()}
# What XML 1.0 cannot hold at all, not even as a numeric reference, becomes an element.
_SPECIAL: Final = re.compile(
    '[&<>"\r\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]'
)
_ENCODED: Final = re.compile(r'<char code="(?P<code>[0-9a-f]+)"/>|&(?:amp|lt|gt|quot|#13);')


def encode(text: str) -> str:
    """Escape a text for an element or a double-quoted attribute of XML 1.0.

    Characters that XML cannot hold are written as ``<char code="0"/>`` with their code point
    in hexadecimal digits. (In an attribute there are none: labels are printable.)
    """
    return _SPECIAL.sub(_encoded, text) if _SPECIAL.search(text) else text


def decode(text: str) -> str:
    """Undo `encode`."""
    return _ENCODED.sub(_decoded, text) if "&" in text or "<" in text else text


def _encoded(match: re.Match[str]) -> str:
    character = match[0]
    return _ENTITIES.get(character) or f'<char code="{ord(character):x}"/>'


def _decoded(match: re.Match[str]) -> str:
    code = match["code"]
    return _CHARACTERS[match[0]] if code is None else chr(int(code, 16))
