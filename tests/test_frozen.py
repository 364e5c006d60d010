"""The quick constructor: what it makes is what the class makes."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import pytest

from rsm_fast.frozen import maker
from rsm_fast.types import PackedChunk

VALUES = ("c1", ("t1",), "text", 0.5, 3, None, "2026-05-03T10:00:00Z", "user", 12, 1, "")


def test_what_it_makes_is_equal_and_frozen() -> None:
    made, own = maker(PackedChunk)(*VALUES), PackedChunk(*VALUES)
    assert type(made) is PackedChunk and made == own
    assert hash(made) == hash(own) and repr(made) == repr(own)
    assert pickle.loads(pickle.dumps(made)) == own
    with pytest.raises(FrozenInstanceError):
        made.id = "other"  # type: ignore[misc]


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(TypeError, match="reason"):
        maker(PackedChunk)(*VALUES[:-1])
