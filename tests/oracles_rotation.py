"""The slow, obvious twin of what learns the heads' directions."""

from __future__ import annotations

import numpy as np


def principal_share(sample, k):
    """Twin of `rotation.principal_span_`: the largest share that k directions can hold."""
    exact = sample.astype(np.float64)
    values = np.linalg.eigvalsh(exact.T @ exact)
    return values[-k:].sum() / values.sum()
