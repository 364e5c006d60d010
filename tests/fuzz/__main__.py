"""Fuzz what reads foreign bytes, guided by coverage: ``make fuzz``, or one target by

    python tests/fuzz TARGET [-max_total_time=60] [libFuzzer's other options] [CORPUS...]

Each target takes bytes and may raise the project's own errors only. What breaks one is left as
``crash-...`` in the folder where it ran; give that file as an argument to see it again. Seeds
are the committed fixtures, and what a run finds worth keeping goes to ``.fuzz/TARGET``.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["rsm_fast"]):
    from rsm_fast import Memory, sample
    from rsm_fast.cli import readers
    from rsm_fast.embedding.hashing import HashingEmbedder
    from rsm_fast.errors import InvalidInputError, RSMError
    from rsm_fast.packing import unfold
    from rsm_fast.store import Store, snapshots, transfer
    from rsm_fast.store.filters import compile_where

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "store" / "fixtures"
SECONDS = 60

_scratch = Path(tempfile.mkdtemp(prefix="rsm-fuzz-"))
_TOKEN = bytes(16)
_DTYPES = [
    "<f4",
    "<f2",
    "<i8",
    "|u1",
    "|b1",
    ">f8",
    "<c8",
    "|O",
    "<U4",
    "|V8",
    "<M8[s]",
    "f4,i4",
    "",
]


def conversations(data: bytes) -> None:
    """The readers of ``rsm-fast ingest``, each on the same bytes; ids are stable."""
    for format in readers.FORMATS:

        def read(format: readers.Format = format) -> list[readers.Record | readers.Malformed]:
            stream = io.BytesIO(data)
            return list(readers.read_turns("talk.jsonl", format=format, stream=stream))

        with contextlib.suppress(InvalidInputError):
            found = read()
            assert found == read()
            for item in found:
                str(item)
                assert isinstance(item, readers.Malformed) or item.turn.text.strip()


def imports(data: bytes) -> None:
    """An import: refused, or what it gives can be exported, and imported again as the same."""
    with Store.open(None) as first, Store.open(None) as second:
        try:
            for section in transfer.read_sections(io.BytesIO(data)):
                first.restore(section)
        except RSMError:
            return
        lines = b"".join(first.export())
        for section in transfer.read_sections(io.BytesIO(lines)):
            second.restore(section)
        assert b"".join(second.export()) == lines


def sidecars(data: bytes) -> None:
    """A snapshot whose checksums fit, with any arrays in its header: passed over, or numbers."""
    provider = atheris.FuzzedDataProvider(data)
    body = provider.ConsumeBytes(provider.ConsumeIntInRange(0, 300))
    entries = []
    for _ in range(provider.ConsumeIntInRange(0, 4)):
        dtype = provider.PickValueInList(_DTYPES) or provider.ConsumeUnicode(6)
        bound = provider.PickValueInList([4, 64, 2**31, 2**63 - 1])
        shape = provider.ConsumeIntListInRange(provider.ConsumeIntInRange(0, 4), -1, bound)
        offset = 64 * provider.ConsumeIntInRange(-1, 6) + (provider.ConsumeProbability() > 0.9)
        length = provider.ConsumeIntInRange(0, 300)
        crc = zlib.crc32(body[max(0, offset) :][:length])
        entries.append(
            {"name": provider.ConsumeUnicode(3), "dtype": dtype, "shape": shape, "offset": offset,
             "crc": crc}
        )  # fmt: skip
    fields = {"token": _TOKEN.hex(), "bytes": len(body), "arrays": entries}
    header = provider.ConsumeBytes(200) or json.dumps(fields).encode()
    path = _scratch / "1.snap"
    lengths = len(header).to_bytes(4, "little") + zlib.crc32(header).to_bytes(4, "little")
    start = b"RSMSNAP1" + lengths + header
    path.write_bytes(start + b"\0" * (-len(start) % 64) + body)
    for array in (snapshots.read_snapshot(path, _TOKEN) or {}).values():
        assert array.dtype.kind in "biuf"
        array.sum()


def stores(data: bytes) -> None:
    """A store file with some bytes changed: an error that says so, or it can be read."""
    provider = atheris.FuzzedDataProvider(data)
    whole = bytearray((FIXTURES / "version_2.rsm").read_bytes())
    for _ in range(provider.ConsumeIntInRange(1, 8)):
        place = provider.ConsumeIntInRange(0, len(whole) - 1)
        patch = provider.ConsumeBytes(provider.ConsumeIntInRange(1, 16))
        whole[place : place + len(patch)] = patch
    path = _scratch / "damaged.rsm"
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    path.write_bytes(whole)
    with contextlib.suppress(RSMError), Store.open(path, timeout=0.1) as store:
        store.check()
        with store.read() as reader:
            for record in reader.namespaces():
                reader.columns(record.id, int(record.settings.get("dim", 8)))
        b"".join(store.export())


def filters(data: bytes) -> None:
    """A ``where`` from JSON: refused, or SQL that runs."""
    try:
        where = json.loads(data)
    except (ValueError, RecursionError):
        return
    with Store.open(None) as store:
        with store.write() as writer:
            ns = writer.create_namespace("a", {}).id
        with contextlib.suppress(InvalidInputError), store.read() as reader:
            compile_where(where)
            assert reader.matching_turns(ns, where=where) == []


def packs(data: bytes) -> None:
    """A pack's text, or what pretends to be one, read back."""
    with contextlib.suppress(InvalidInputError):
        unfold(data.decode("utf-8", "replace"))


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (conversations, imports, sidecars, stores, filters, packs)
}


def seeds(name: str) -> list[bytes]:
    """What a target's corpus begins with."""
    if name == "conversations":
        return [
            b'{"text": "Hello", "timestamp": "2026-05-03T10:00:00+02:00", "metadata": {"a": 1}}\n',
            b'[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]',
            b'{"messages": [{"role": "assistant", "content": "Yes", "tool_calls": []}]}',
            b"[2026-01-12 19:04] Anna: Hello\nBen: Hi\nAnna: How are you?\n",
        ]
    if name == "imports":
        lines = (FIXTURES / "version_2.jsonl").read_bytes().splitlines(keepends=True)
        return [b"".join(lines[:count]) for count in (1, 4, len(lines))]
    if name == "filters":
        return [b'{"role": ["user"], "timestamp": {"gte": "2026-01-01"}, "n": {"lt": 2.5}}']
    if name == "packs":
        memory = Memory(embedder=HashingEmbedder())
        memory.add_many(sample.turns()[:12])
        return [
            memory.pack("cat", budget=300, layout=layout).text.encode()
            for layout in ("flat", "sessions")
        ]
    return [bytes(range(64))]


def every_target(options: list[str]) -> int:
    """Run each target in a process of its own; the number of those that broke."""
    timed = any(option.startswith("-max_total_time") for option in options)
    broken = []
    for name in TARGETS:
        print(f"==> {name}", flush=True)
        limit = [] if timed else [f"-max_total_time={SECONDS}"]
        done = subprocess.run([sys.executable, __file__, name, *limit, *options], check=False)
        broken += [name] * (done.returncode != 0)
    print(f"==> broken: {', '.join(broken) or 'none'}")
    return len(broken)


def main() -> None:
    """Run from the command line."""
    name, *options = sys.argv[1:] or [""]
    if name not in TARGETS:
        sys.exit(every_target(sys.argv[1:]))
    corpus = ROOT / ".fuzz" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(name)):
        (corpus / f"seed-{number}").write_bytes(seed)
    warnings.simplefilter("ignore")
    given = [option for option in options if not option.startswith("-")]
    atheris.Setup([sys.argv[0], *options, *([] if given else [str(corpus)])], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
