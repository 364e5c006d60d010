"""Fetching models, against a local server that speaks the hub's protocol."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedding.hub_server import Hub

from rsm_fast.embedding import as_embedder, commands, hub
from rsm_fast.embedding.models import MODELS
from rsm_fast.errors import MissingDependencyError, ModelFileError, NotFoundError

pytest.importorskip("huggingface_hub", reason="needs pip install 'rsm-fast[hub]'")

NAME = "bge-small-en-v1.5"
REPOSITORY = MODELS[NAME].repository
assert REPOSITORY is not None
FETCH = f"""
    import json
    from rsm_fast.embedding import commands
    from rsm_fast.errors import RSMError
    try:
        pin = commands.fetch({NAME!r}, progress=print)
    except RSMError as error:
        print(type(error).__name__, error)
        raise SystemExit(1)
    print(pin.folder)
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    monkeypatch.setenv("RSM_FAST_MODELS", str(folder))
    return folder


@pytest.fixture
def server(tiny_bge: Path) -> Iterator[Hub]:
    """The tiny model under a real model's name, and a file that nobody needs."""
    names = ["onnx/model.onnx", "tokenizer.json", "config.json", "1_Pooling/config.json"]
    files = {name: (tiny_bge / name).read_bytes() for name in names}
    files["pytorch_model.bin"] = b"x" * 1000
    with Hub(REPOSITORY, files) as running:
        yield running


def fetch(
    server: Hub, models: Path, **environment: str
) -> tuple[int, str, subprocess.CompletedProcess[str]]:
    """Fetch in a process of its own: the library reads its environment when imported."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FETCH)],
        capture_output=True,
        text=True,
        timeout=120,
        env={
            "PATH": os.environ["PATH"],
            "RSM_FAST_MODELS": str(models),
            "HF_ENDPOINT": server.url,
            "HF_HOME": str(models.parent / "hf"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1",
            **environment,
        },
    )
    return done.returncode, done.stdout, done


def test_fetch_open_and_fetch_again(server: Hub, models: Path, monkeypatch) -> None:
    code, out, done = fetch(server, models)
    assert code == 0, out + done.stderr
    folder = Path(out.strip().splitlines()[-1])
    assert (folder / "onnx" / "model.onnx").read_bytes() == server.files["onnx/model.onnx"]
    assert not server.downloads("pytorch_model.bin")
    pin = hub.read_pin(NAME)
    assert pin is not None
    assert pin.revision == server.commit
    assert pin.sha256["onnx/model.onnx"] == (
        hashlib.sha256(server.files["onnx/model.onnx"]).hexdigest()
    )
    assert set(pin.sha256) == set(server.files) - {"pytorch_model.bin"}

    # The tiny model is not 384 wide: the table's dimension is held against the file.
    with pytest.raises(ModelFileError, match="expected vectors of 384 numbers"):
        as_embedder(NAME).embed_passages(["a"])

    # Whole already: no request.
    server.requests.clear()
    assert fetch(server, models)[0] == 0
    assert not server.requests
    assert all(check.ok for check in commands.verify(NAME))
    listed = {state.name: state for state in commands.list_models()}
    assert listed[NAME].present
    assert not listed["bge-base-en-v1.5"].present


def test_a_cut_connection_is_resumed(server: Hub, models: Path) -> None:
    # The library writes in blocks of 10 MiB: what it has of a longer file it keeps.
    server.files["onnx/model.onnx_data"] = os.urandom(1 << 20) * 22
    server.cut_after, server.cuts = 12 << 20, 1
    code, out, done = fetch(server, models)
    if code != 0:  # the library gave up: the next run goes on from there
        assert "cannot fetch onnx/model.onnx_data" in out
        code, out, done = fetch(server, models)
    assert code == 0, out + done.stderr
    assert server.cuts == 0
    ranges = server.downloads("onnx/model.onnx_data")
    assert any(sent and sent.startswith("bytes=10485760-") for sent in ranges), ranges
    pin = hub.read_pin(NAME)
    assert pin is not None
    assert not pin.damaged()


def test_wrong_bytes_are_refused_and_mended_without_cleaning(server: Hub, models: Path) -> None:
    server.corrupt = {"onnx/model.onnx"}
    code, out, _ = fetch(server, models)
    assert code == 1
    expected = hashlib.sha256(server.files["onnx/model.onnx"]).hexdigest()
    assert "ModelFileError" in out
    assert f"expected sha256 {expected}" in out
    assert "onnx/model.onnx" in out
    assert hub.read_pin(NAME) is None
    with pytest.raises(ModelFileError, match="rsm-fast model fetch"):
        as_embedder(NAME)
    server.corrupt = set()
    code, out, done = fetch(server, models)
    assert code == 0, out + done.stderr


def test_the_first_fetch_holds(server: Hub, models: Path) -> None:
    assert fetch(server, models)[0] == 0
    shutil.rmtree(models.parent / "hf")
    server.files["tokenizer.json"] += b"\n"  # the same commit, other bytes
    code, out, _ = fetch(server, models)
    assert code == 1
    assert "tokenizer.json: expected sha256" in out


def test_a_damaged_file_is_named_and_fetched_anew(server: Hub, models: Path) -> None:
    _, out, _ = fetch(server, models)
    path = Path(out.strip().splitlines()[-1]) / "onnx" / "model.onnx"
    real = path.resolve()
    real.chmod(0o644)
    real.write_bytes(real.read_bytes()[:1024])
    with pytest.raises(ModelFileError, match=r"model\.onnx: expected the file that was fetched"):
        as_embedder(NAME)
    checks = {Path(check.path).name: check.ok for check in commands.verify(NAME)}
    assert checks == {"model.onnx": False, "tokenizer.json": True, "config.json": True} | checks
    code, out, done = fetch(server, models)
    assert code == 0, out + done.stderr
    assert all(check.ok for check in commands.verify(NAME))


def test_a_missing_file(server: Hub, models: Path) -> None:
    del server.files["tokenizer.json"]
    code, out, _ = fetch(server, models)
    assert code == 1
    assert "got none named tokenizer.json" in out


def test_another_repository(server: Hub, models: Path) -> None:
    server.repository = "someone/else"
    code, out, _ = fetch(server, models)
    assert code == 1
    assert "cannot fetch its list of files" in out
    assert "HF_ENDPOINT" in out


def test_no_network(server: Hub, models: Path) -> None:
    code, out, done = fetch(server, models, HF_ENDPOINT="http://127.0.0.1:9")
    assert code == 1, out + done.stderr
    assert "cannot fetch its list of files" in out
    assert "offline" in out
    code, out, _ = fetch(server, models, HF_HUB_OFFLINE="1")
    assert code == 1
    assert "copy the folder" in out
    assert not server.requests


def test_offline_once_fetched(server: Hub, models: Path) -> None:
    assert fetch(server, models)[0] == 0
    code, out, done = fetch(server, models, HF_HUB_OFFLINE="1")
    assert code == 0, out + done.stderr


def test_a_folder_put_there_by_hand(models: Path, tiny_bge: Path) -> None:
    shutil.copytree(tiny_bge, models / NAME)
    embedder = as_embedder(NAME)
    assert embedder.name == NAME
    assert "Represent this sentence" in embedder.fingerprint
    assert hub.read_pin(NAME) is None
    assert [check.ok for check in commands.verify(NAME)] == [True, True]


def test_an_unreadable_pin(models: Path) -> None:
    path = hub.pin_path(NAME)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"name": NAME}))
    with pytest.raises(ModelFileError, match="delete the file to fetch the model anew"):
        hub.read_pin(NAME)


def test_names_that_cannot_be_fetched(models: Path) -> None:
    with pytest.raises(NotFoundError, match="expected a model name"):
        commands.fetch("nonsense")
    with pytest.raises(NotFoundError, match="comes as a Python package"):
        commands.fetch("minilm")


def test_without_the_library(models: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'rsm-fast\[hub\]'"):
        commands.fetch(NAME)


def test_nothing_is_invented() -> None:
    for info in MODELS.values():
        if info.repository is not None:  # cannot be known offline: open until the first fetch
            assert info.revision is None
            assert not info.sha256
