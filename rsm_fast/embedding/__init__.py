"""From text to unit vectors.

`as_embedder` accepts what a user may give; `OnnxEmbedder` runs BERT-type models without
torch; `HashingEmbedder` needs no model. Importing this package loads NumPy and nothing
heavier: onnxruntime and tokenizers come in when a model is first used.
"""

from rsm_fast.embedding.hashing import HashingEmbedder
from rsm_fast.embedding.protocol import (
    CallableEmbedder,
    Embedder,
    EmbedFunction,
    Vectors,
    checked_vectors,
    clean_texts,
)
from rsm_fast.embedding.resolve import EmbedderLike, as_embedder

__all__ = [
    "CallableEmbedder",
    "EmbedFunction",
    "Embedder",
    "EmbedderLike",
    "HashingEmbedder",
    "Vectors",
    "as_embedder",
    "checked_vectors",
    "clean_texts",
]
