"""The page as a parser sees it: what stands in it, and what can never run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import stat
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rsm_fast import Memory, sample
from rsm_fast.cli import main
from rsm_fast.errors import EmbedderMismatchError, InvalidInputError
from rsm_fast.inspect import examine, render, write_report
from rsm_fast.inspect.terms import characteristic_terms

HOSTILE = "</script><script>document.title='pwned'</script><img src=x onerror=alert(1)> & \"' $data"
QUESTIONS = ["Where does the user live now?", "When do the adrenaline pens expire?"]


class Page(HTMLParser):
    """Elements with their attributes and the text inside them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "img", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        wanted = {key.rstrip("_"): value for key, value in attributes.items()}
        return [
            found
            for name, found in self.elements
            if name == tag and wanted.items() <= found.items()
        ]

    def inside(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.inside("script")[0])
        return found


@pytest.fixture(scope="module")
def memory() -> Iterator[Memory]:
    with Memory(embedder="hashing") as memory:
        memory.add_many(sample.turns())
        memory.add(HOSTILE, role="<i>r", session="</title><b>s", timestamp="2026-12-01")
        memory.add("What is <b>this</b> & that?", timestamp="2026-12-02")
        yield memory


@pytest.fixture(scope="module")
def html(memory: Memory) -> str:
    return render(examine(memory, queries=[*QUESTIONS, HOSTILE], budget=300))


def test_the_page_is_whole_and_names_what_it_shows(memory: Memory, html: str) -> None:
    page = Page(html)
    assert page.open == [], "every element is closed"
    stats = memory.stats()
    values = page.inside("dd")
    assert f"{stats.turns:,}" in values and f"{stats.atoms:,}" in values
    assert [page.inside("h2")[i] for i in (0, 1, 2, 3)] == [
        "Map of atoms",
        "Timeline of writes",
        "Atoms",
        "Packs",
    ]
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    for _, found in page.elements:
        for key in ("aria-labelledby", "aria-controls", "aria-describedby", "for"):
            assert found.get(key) is None or found[key] in ids
        if (found.get("href") or "").startswith("#"):
            assert (found["href"] or "")[1:] in ids


def test_nothing_that_is_stored_becomes_markup(html: str) -> None:
    page = Page(html)
    assert len(page.all("script")) == 2 and len(page.all("style")) == 1
    assert not page.all("img") and not page.all("iframe") and not page.all("link")
    for tag, found in page.elements:
        assert not any(key.startswith("on") or key in ("src", "style") for key in found), tag
        assert "javascript:" not in str(found)
    assert HOSTILE in page.inside("p"), "it is shown as it was stored"
    assert any(point["text"] == HOSTILE for point in page.data["points"])


def test_the_policy_allows_the_two_inline_parts_and_nothing_else(html: str) -> None:
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', html)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    page = Page(html)
    for kind, text in (("style", page.inside("style")[0]), ("script", page.inside("script")[1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"
    assert not re.findall(r"https?://|url\(|@import|fetch\(|XMLHttp|innerHTML", html)


def test_map_holds_every_chunk_with_its_atom(memory: Memory, html: str) -> None:
    data = Page(html).data
    assert len(data["points"]) == memory.stats().chunks
    assert len(data["pca"]) == len(data["tsne"]) == len(data["points"])
    assert np.abs(np.array(data["tsne"])).max() == 1.0
    atoms = {point["atom"] for point in data["points"]}
    assert len(atoms) == memory.stats().atoms


def test_a_sample_keeps_what_the_packs_name(memory: Memory) -> None:
    findings = examine(memory, queries=QUESTIONS[:1], budget=300, members=20)
    shown = {member.id for member in findings.map.members}
    named = {chunk.id for chunk in findings.packs[0].chunks}
    assert named <= shown and 20 <= len(shown) < findings.map.total
    assert "A sample of" in render(findings)


def test_packs_say_what_went_in_what_was_left_out_and_why(memory: Memory, html: str) -> None:
    page = Page(html)
    assert len(page.all("article")) == 3
    assert [found.get("hidden", "no") for found in page.all("article")] == ["no", None, None]
    pack = memory.pack(QUESTIONS[0], budget=300, explain=True)
    read = " ".join(text for _, text in page.texts)
    assert f"{pack.tokens:,} of 300 tokens" in read
    for chunk in (*pack.chunks, *pack.omitted[:5]):
        assert chunk.id in page.inside("code") and chunk.reason in page.inside("p")
    assert pack.text in page.inside("pre")
    (first, *_) = page.data["packs"]
    assert len(first["packed"]) == len(pack.chunks)


def test_atoms_are_listed_by_size_with_words_and_newest_members(memory: Memory) -> None:
    findings = examine(memory, queries=[])
    sizes = [atom.size for atom in findings.atoms]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(atom.share for atom in findings.atoms) == pytest.approx(1.0)
    assert all(atom.terms for atom in findings.atoms if atom.size > 1)
    for atom in findings.atoms:
        assert len(atom.newest) == min(atom.size, 3)
        assert all(member.atom == atom.number for member in atom.newest)
        assert atom.first <= atom.last
    assert findings.timeline is not None
    assert findings.timeline.counts.sum() == findings.stats.chunks


def test_without_questions_the_newest_that_are_stored_are_asked(memory: Memory) -> None:
    queries = [pack.query for pack in examine(memory, budget=100).packs]
    assert queries[0] == "What is <b>this</b> & that?" and 2 <= len(queries) <= 6


def test_a_giant_atom_is_named() -> None:
    with Memory(embedder="hashing", tau=-1.0) as memory:
        memory.add_many([f"note {number} about topic {number % 7}" for number in range(60)])
        page = Page(render(examine(memory, queries=[])))
    assert any("giant atom" in text for text in page.inside("p"))
    assert "Giant atom" in page.inside("b")


def test_an_empty_memory_has_a_page() -> None:
    with Memory(embedder="hashing") as memory:
        page = Page(render(examine(memory)))
    assert page.open == [] and not page.all("canvas") and page.data["points"] == []


def test_before_calibration_chunks_stand_without_atoms() -> None:
    with Memory(embedder="hashing") as memory:
        memory.add_many(["a cat", "a dog", "a bird", "a fish"])
        findings = examine(memory, queries=["cat"])
    page = Page(render(findings))
    assert findings.atoms == () and len(page.data["points"]) == 4
    assert {point["atom"] for point in page.data["points"]} == {None}


@pytest.mark.parametrize(
    "timestamps",
    [("0001-01-01", "9999-12-31"), ("2026-05-03", "2026-05-03"), ("1969-12-28", "1970-01-02")],
)
def test_any_stretch_of_time_has_a_timeline(timestamps: tuple[str, str]) -> None:
    with Memory(embedder="hashing") as memory:
        for timestamp in timestamps:
            memory.add(f"note of {timestamp}", timestamp=timestamp)
        line = examine(memory, queries=[]).timeline
    assert line is not None and line.counts.sum() == 2
    assert 1 <= len(line.starts) <= 110 and line.starts[0][:10] == timestamps[0]


def test_an_embedder_that_is_gone_leaves_all_but_the_packs(tmp_path: Path) -> None:
    store = tmp_path / "own.rsm"

    def embed(texts: list[str]) -> np.ndarray:
        return np.random.default_rng(len(texts)).normal(size=(len(texts), 16))

    with Memory.open(store, embedder=embed) as memory:
        memory.add("When does the tram leave?")
    with Memory.open(store) as memory:
        findings = examine(memory)
        assert findings.packs == () and "embedder" in findings.note
        assert findings.note in Page(render(findings)).inside("p")
        with pytest.raises(EmbedderMismatchError):
            examine(memory, queries=["tram"])


def test_a_read_only_store_of_int8_vectors_with_an_open_chunk(tmp_path: Path) -> None:
    store = tmp_path / "paper.rsm"
    with Memory.open(store, embedder="hashing", preset="paper", dtype="int8") as memory:
        memory.add_many(sample.turns()[:63])
        before = store.read_bytes()
        with Memory.open(store, read_only=True, preset="paper") as reader:
            findings = examine(reader, queries=["cat"], budget=200)
            assert findings.stats.chunks > findings.map.total > 0
            assert len(findings.map.members) == findings.map.total
            assert Page(render(findings)).open == []
        assert store.read_bytes() == before, "looking changes nothing"


def test_bad_arguments_are_refused(memory: Memory, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="members"):
        examine(memory, members=0)
    with pytest.raises(InvalidInputError, match="query"):
        write_report(memory, tmp_path / "page.html", queries=[" "])
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_replaced_whole_and_is_its_owners_alone(memory: Memory, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_report(memory, page, queries=[])
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    page.chmod(0o644)
    write_report(memory, page, queries=[])
    assert stat.S_IMODE(page.stat().st_mode) == 0o644
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(OSError):
        write_report(memory, tmp_path / "no" / "page.html", queries=[])


def test_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, page = str(tmp_path / "agent.rsm"), tmp_path / "page.html"
    with Memory.open(store, embedder="hashing", namespace="n") as memory:
        memory.add_many(sample.turns()[:60])
    words = ["inspect", store, "-o", str(page), "-n", "n", "-q", "Biscuit?", "-q", "flat", "-b"]
    assert main([*words, "200"]) == 0
    assert "2 questions" in capsys.readouterr().out
    found = Page(page.read_text(encoding="utf-8"))
    assert found.inside("h1") == ["Inside agent.rsm"]
    assert main([*words, "200", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["queries"] == ["Biscuit?", "flat"] and told["bytes"] == page.stat().st_size
    assert main(["inspect", str(tmp_path / "none.rsm"), "-o", str(page)]) == 1


def test_terms_are_those_that_stand_out() -> None:
    frequency = {"cat": 2, "flat": 50, "rent": 3}
    terms = characteristic_terms(
        ["The cat's rent, the flat", "Cats and rents; a flat"],
        lambda term: frequency.get(term, 0),
        100,
        count=2,
    )
    assert terms == ("cats", "rent") or terms == ("cat's", "rent")
