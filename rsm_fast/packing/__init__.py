"""From ranked chunks to prompt text: admission, layout, folding, templates."""

from rsm_fast.packing.admission import fill
from rsm_fast.packing.forms import Form, Frame
from rsm_fast.packing.ledger import Ledger
from rsm_fast.packing.offers import Offers, PriceTable, Source
from rsm_fast.packing.pieces import Filled, Omitted, PackedPiece, Piece, Span
from rsm_fast.packing.templates import TEMPLATES, Template, TemplateLike, get_template
from rsm_fast.packing.unfold import UnfoldedChunk, UnfoldedTurn, unfold

__all__ = [
    "TEMPLATES",
    "Filled",
    "Form",
    "Frame",
    "Ledger",
    "Offers",
    "Omitted",
    "PackedPiece",
    "Piece",
    "PriceTable",
    "Source",
    "Span",
    "Template",
    "TemplateLike",
    "UnfoldedChunk",
    "UnfoldedTurn",
    "fill",
    "get_template",
    "unfold",
]
