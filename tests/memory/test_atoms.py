"""Tau, calibration and the atoms of a memory."""

from __future__ import annotations

import pytest
from memory_cases import Opener, sentences

from rsm_fast import Memory
from rsm_fast.errors import (
    CalibrationError,
    RSMError,
)


def test_chunks_wait_until_tau_is_known(memory_of: Opener) -> None:
    memory = memory_of()
    turns = sentences(60)
    memory.add_many(turns[:49])
    stats = memory.stats()
    assert stats.tau is None and stats.pending_chunks == 49 and stats.atoms == 0
    memory.add(turns[49])
    stats = memory.stats()
    assert stats.tau is not None and stats.pending_chunks == 0 and stats.atoms > 0
    assert stats.settings["tau_source"] == "calibrated"
    tau = stats.tau
    memory.add_many(turns[50:])
    assert memory.stats().tau == tau  # frozen


def test_a_given_tau_gates_from_the_first_chunk(memory_of: Opener) -> None:
    memory = memory_of(tau=0.9)
    memory.add_many(["one thing", "one thing", "another matter"])
    stats = memory.stats()
    assert (stats.tau, stats.atoms, stats.pending_chunks) == (0.9, 2, 0)
    with pytest.raises(CalibrationError):
        memory.calibrate()


def test_calibrate_and_recalibrate(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add_many(sentences(20))
    tau = memory.calibrate([turn.text for turn in sentences(50)])
    assert memory.stats().tau == tau and memory.stats().pending_chunks == 0
    with pytest.raises(CalibrationError, match="recalibrate"):
        memory.calibrate()
    memory.add_many(turn.text + " again" for turn in sentences(50))
    assert -1 <= memory.recalibrate() <= 1
    assert memory.stats().pending_chunks == 0
    with pytest.raises(RSMError):
        Memory(embedder="hashing").calibrate(["one"])


def test_a_giant_atom_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    memory = Memory(embedder="hashing", tau=-1.0)
    with caplog.at_level("WARNING", logger="rsm_fast"):
        memory.add_many(sentences(120))
        memory.add("one more")
    assert memory.stats().largest_atom_share == 1.0
    assert any("giant atom" in warning for warning in memory.stats().warnings)
    assert sum("one atom holds" in record.message for record in caplog.records) == 1
