"""``python -m bench quality``: run systems over data, write tables and pictures."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.datasets import READERS, DataError, read_dataset
from bench.notes.peer import NOTES
from bench.quality.answers import answer_all, prompts_of, summary
from bench.quality.pictures import draw_all
from bench.quality.report import write_report
from bench.quality.results import Results
from bench.quality.run import BUDGETS, Plan, run
from bench.quality.suite import CROSSED, GROUPS, SYSTEMS
from bench.quality.tables import fill_document, render_all
from bench.quality.vectors import CachedEmbedder, default_cache
from rsm_fast.embedding import as_embedder
from rsm_fast.embedding.static import static_folder
from rsm_fast.llm import AnswerCache, ChatEndpoint
from rsm_fast.tokens import as_token_counter

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]
_DATA = os.environ.get("RSM_FAST_DATA", str(ROOT.parent / "shared" / "data"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit code."""
    chosen = _parser().parse_args(arguments)
    try:
        return int(chosen.run(chosen))
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench quality", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    running = commands.add_parser(
        "run", help="run systems (a stopped run continues), then write the report"
    )
    _add_data(running)
    running.add_argument(
        "--group", action="append", choices=list(GROUPS), help="systems to run; default: all"
    )
    running.add_argument("--system", action="append", choices=list(SYSTEMS), metavar="NAME")
    running.add_argument("--budget", action="append", type=int, help=f"default: {BUDGETS}")
    running.add_argument("--questions", type=int, help="only so many of each stream")
    running.add_argument("--workers", type=int, default=2)
    running.add_argument(
        "--any-source",
        action="store_true",
        help="keep finished results although the source has changed since",
    )
    _add_embedder(running)
    running.add_argument(
        "--second",
        metavar="NAME",
        help="run the main systems with this embedder too; default: minilm-static where "
        "`rsm-fast model distill minilm` made it, '' for none",
    )
    _add_report(running)
    running.set_defaults(run=_run)

    answering = commands.add_parser(
        "answer", help="have a language model answer from packs, and another judge"
    )
    _add_data(answering)
    _add_embedder(answering)
    answering.add_argument("--base-url", required=True, help="of an OpenAI-compatible endpoint")
    answering.add_argument("--model", required=True)
    answering.add_argument("--judge-model", help="judges the answers; default: no judge")
    answering.add_argument("--judge-url", help="default: the same endpoint")
    answering.add_argument(
        "--key-variable", default="OPENAI_API_KEY", help="environment variable with the key"
    )
    answering.add_argument("--system", action="append", choices=list(SYSTEMS), metavar="NAME")
    answering.add_argument("--budget", type=int, default=2600)
    answering.add_argument("--questions", type=int, help="only so many of each stream")
    answering.add_argument("--concurrency", type=int, default=4)
    answering.add_argument("--timeout", type=float, default=120.0, help="seconds")
    answering.add_argument(
        "--price", type=float, nargs=2, metavar=("IN", "OUT"), help="per million tokens"
    )
    answering.add_argument("--out", type=Path, default=ROOT / "build" / "quality")
    answering.set_defaults(run=_answer)

    reporting = commands.add_parser("report", help="write tables and pictures of a finished run")
    _add_report(reporting)
    reporting.set_defaults(run=_report)

    listing = commands.add_parser("systems", help="list the systems")
    listing.set_defaults(run=_systems)

    checking = commands.add_parser("check", help="read the data and name malformed records")
    _add_data(checking)
    checking.set_defaults(run=_check)
    return parser


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=Path, default=Path(_DATA), help="folder with realmem/, locomo/ and ama/"
    )
    for kind in READERS:
        parser.add_argument(
            f"--{kind}", type=Path, metavar="PATH", help=f"{kind} file or folder, instead of --data"
        )


def _add_embedder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--embedder", default="", help="a name or a folder; default: the packaged model"
    )
    parser.add_argument("--cache", type=Path, default=default_cache(), help="vectors")


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "quality", help="results")
    parser.add_argument(
        "--docs",
        type=Path,
        nargs="+",
        default=[],
        help="documents whose tables are written between markers",
    )
    parser.add_argument("--pictures", type=Path, help="folder; default: OUT/pictures")


def _data(chosen: argparse.Namespace) -> tuple[tuple[str, Path], ...]:
    """Data sets that were named, else those that stand in the data folder."""
    named = tuple((kind, getattr(chosen, kind)) for kind in READERS if getattr(chosen, kind))
    if named:
        return named
    found = tuple((kind, chosen.data / kind) for kind in READERS if (chosen.data / kind).exists())
    if not found:
        raise DataError(
            f"{chosen.data}: expected a folder with {', '.join(READERS)}; name it with --data, "
            "or one data set with --realmem, --locomo, --ama or --jsonl"
        )
    return found


def _run(chosen: argparse.Namespace) -> int:
    names = [*(chosen.system or ())]
    for group in chosen.group or ([] if names else GROUPS):
        names += GROUPS[group]
    plan = Plan(
        data=_data(chosen),
        systems=tuple(dict.fromkeys(names)),
        cache=chosen.cache,
        out=chosen.out,
        budgets=tuple(chosen.budget or BUDGETS),
        embedder=chosen.embedder,
        questions=chosen.questions,
        any_source=chosen.any_source,
    )
    _check(chosen)
    run(plan, workers=chosen.workers)
    second = _second(chosen)
    if second:
        main_systems = tuple(name for name in CROSSED if name in plan.systems)
        run(replace(plan, systems=main_systems, embedder=second), workers=chosen.workers)
    return _report(chosen)


def _second(chosen: argparse.Namespace) -> str:
    """The embedder that the main systems are run with as well; empty for none."""
    if chosen.second is not None or chosen.embedder:
        return chosen.second or ""
    if static_folder("minilm").exists():
        return "minilm-static"
    print("no second embedder: `rsm-fast model distill minilm` makes one", file=sys.stderr)
    return ""


def _report(chosen: argparse.Namespace) -> int:
    results = Results.load(chosen.out)
    if not results.rows:
        raise DataError(f"{chosen.out}: no results there; `run` makes them")
    tables = render_all(results)
    try:
        pictures = draw_all(results, chosen.pictures or chosen.out / "pictures")
    except ModuleNotFoundError:
        print("no pictures: pip install 'rsm-fast[plot]'", file=sys.stderr)
        pictures = []
    page = chosen.out / "report.html"
    write_report(page, tables, pictures)
    print(tables["main"])
    print(f"\nreport: {page}")
    for document in chosen.docs:
        placed = fill_document(document, tables)
        print(f"tables in {document}: {', '.join(placed) or 'no place for any'}")
    return 0


def _answer(chosen: argparse.Namespace) -> int:

    def endpoint(url: str, name: str) -> ChatEndpoint:
        return ChatEndpoint(
            url,
            name,
            api_key=os.environ.get(chosen.key_variable),
            timeout=chosen.timeout,
            concurrency=chosen.concurrency,
            max_tokens=256,
            cache=AnswerCache(chosen.out / "answers.sqlite"),
        )

    chosen.out.mkdir(parents=True, exist_ok=True)
    model = endpoint(chosen.base_url, chosen.model)
    judge = None
    if chosen.judge_model:
        judge = endpoint(chosen.judge_url or chosen.base_url, chosen.judge_model)
    embedder = CachedEmbedder(as_embedder(chosen.embedder or None), chosen.cache)
    failures = 0
    for kind, path in _data(chosen):
        dataset = read_dataset(kind, path)
        for system in chosen.system or ["hybrid"]:
            prompts = prompts_of(
                dataset,
                system,
                chosen.budget,
                embedder,
                as_token_counter(None),
                questions=chosen.questions,
            )
            name = f"{kind}-{system.replace('/', '+')}-{chosen.model.replace('/', '+')}.jsonl"
            rows, failed = answer_all(
                prompts, chosen.out / "answers" / name, model, judge, concurrency=chosen.concurrency
            )
            failures += failed
            print(f"{kind} {system}: {len(rows)} answered, {failed} failed; {_means(rows)}")
            for category in sorted({row["category"] for row in rows} - {""}):
                among = [row for row in rows if row["category"] == category]
                print(f"  {category} ({len(among)}): {_means(among)}")
    for role, asked in (("answers", model), ("judgements", judge)):
        if asked is not None:
            usage = asked.usage
            cost = ""
            if chosen.price:
                prompt_price, completion_price = chosen.price
                paid = usage.cost(prompt_price=prompt_price, completion_price=completion_price)
                cost = f", cost {paid:.4f}"
            print(
                f"{role}: {usage.calls} calls, {usage.cached} cached, {usage.prompt_tokens:,} "
                f"prompt and {usage.completion_tokens:,} completion tokens{cost}"
            )
            asked.close()
    return 1 if failures else 0


def _means(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"{key} {value:.1f}" for key, value in summary(rows).items())


def _systems(chosen: argparse.Namespace) -> int:
    for group, systems in GROUPS.items():
        print(f"{group}: {', '.join(systems)}")
    print(f"notes (in no group; those not called standin need an endpoint): {', '.join(NOTES)}")
    return 0


def _check(chosen: argparse.Namespace) -> int:
    for kind, path in _data(chosen):
        dataset = read_dataset(kind, path)
        questions = sum(len(stream.questions) for stream in dataset.streams)
        turns = sum(len(stream.turns) for stream in dataset.streams)
        print(
            f"{kind} ({path}): {len(dataset.streams)} streams, {turns:,} turns, "
            f"{questions:,} questions, {len(dataset.problems)} malformed records"
        )
        for problem in dataset.problems:
            print(f"  {problem}", file=sys.stderr)
    return 0
