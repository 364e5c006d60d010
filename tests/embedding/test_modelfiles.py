"""Hashes of model files: paid once, never trusted after a change."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from rsm_fast import modelfiles
from rsm_fast.errors import ModelFileError
from rsm_fast.modelfiles import KnownFile, check_file, file_sha256, packaged_file, write_atomically


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    monkeypatch.setenv("RSM_FAST_MODELS", str(folder))
    return folder


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that were really read."""
    read = []
    original = modelfiles.hash_file

    def counted(path: Path) -> str:
        read.append(Path(path))
        return original(path)

    monkeypatch.setattr(modelfiles, "hash_file", counted)
    return read


def test_a_hash_is_paid_once(models: Path, tmp_path: Path, hashed: list[Path]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"weights")
    expected = hashlib.sha256(b"weights").hexdigest()
    assert [file_sha256(path) for _ in range(3)] == [expected] * 3
    assert hashed == [path]


def test_a_change_is_seen(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"weights")
    before = file_sha256(path)
    path.write_bytes(b"weightz")
    os.utime(path, ns=(1, 1))
    assert file_sha256(path) != before


@pytest.mark.parametrize("stamp", [b"", b"[]", b"{", b'{"sha256": "short"}'])
def test_a_damaged_stamp_is_ignored(models: Path, tmp_path: Path, stamp: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"weights")
    expected = file_sha256(path)
    (written,) = (models / "stamps").iterdir()
    written.write_bytes(stamp)
    assert file_sha256(path) == expected


def test_without_a_place_for_stamps(tmp_path: Path, monkeypatch, hashed: list[Path]) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RSM_FAST_MODELS", str(tmp_path / "file"))
    path = tmp_path / "model.onnx"
    path.write_bytes(b"weights")
    assert file_sha256(path) == file_sha256(path)
    assert len(hashed) == 2


def test_the_default_folder(monkeypatch) -> None:
    monkeypatch.delenv("RSM_FAST_MODELS")
    assert modelfiles.models_folder().parts[-2:] == ("rsm-fast", "models")


def test_check_file(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"weights")
    sha256 = hashlib.sha256(b"weights").hexdigest()
    assert check_file(path, size=7, sha256=sha256) == sha256
    with pytest.raises(ModelFileError, match=r"expected 8 bytes, got 7 bytes; run: mend"):
        check_file(path, size=8, mend="run: mend")
    with pytest.raises(ModelFileError, match=f"with sha256 {'0' * 64}, got sha256 {sha256}"):
        check_file(path, sha256="0" * 64)
    with pytest.raises(ModelFileError, match="cannot read the file"):
        check_file(tmp_path / "absent", size=1)
    with pytest.raises(ModelFileError, match="expected a model file"):
        file_sha256(tmp_path / "absent")


def test_packages_are_located_not_imported(tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "made_up_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "file.bin").write_bytes(b"x")
    monkeypatch.syspath_prepend(str(tmp_path))
    known = KnownFile("made_up_package", "file.bin", 1, "", "pip install it")
    assert packaged_file(known) == package / "file.bin"
    assert packaged_file(KnownFile("made_up_package", "none", 1, "", "")) is None
    assert packaged_file(KnownFile("no_such_package_at_all", "x", 1, "", "")) is None


def test_writes_are_whole_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    with pytest.raises(TypeError):
        write_atomically(path, None)  # type: ignore[arg-type]
    assert path.read_bytes() == b"new"
    assert [item.name for item in path.parent.iterdir()] == ["file"]
