"""Opening the store of a command."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rsm_fast.errors import NotFoundError

if TYPE_CHECKING:
    from rsm_fast import Memory

__all__ = ["DEFAULT_NAMESPACE", "open_memory", "require_store"]

DEFAULT_NAMESPACE = "default"


def require_store(path: str) -> None:
    """Refuse a store that is not there: commands that read never make one.

    Raises
    ------
    NotFoundError
        If there is no file of that name.
    """
    if not Path(path).is_file():
        raise NotFoundError(f"{path}: no store there; make one with `rsm-fast ingest {path} FILE`")


def open_memory(
    arguments: Namespace, *, create: bool = False, read_only: bool = False, **options: Any
) -> Memory:
    """Open the namespace that a command names; options that are None are left out.

    A file that may not be written is opened for reading: that is enough for half the commands.
    """
    from rsm_fast import Memory

    if not create:
        require_store(arguments.store)
        read_only = read_only or not os.access(arguments.store, os.W_OK)
    return Memory.open(
        arguments.store,
        read_only=read_only,
        namespace=getattr(arguments, "namespace", None) or DEFAULT_NAMESPACE,
        embedder=getattr(arguments, "embedder", None),
        **{key: value for key, value in options.items() if value is not None},
    )
