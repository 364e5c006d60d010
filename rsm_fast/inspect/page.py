"""The page: findings as HTML. Every stored text goes through `escape` or JSON, with no exception.

A content security policy names the hashes of the one style sheet and the one script: a browser
runs nothing else and opens no connection, whatever is stored.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt

from rsm_fast._version import __version__
from rsm_fast.inspect.findings import AtomSummary, Findings, Member
from rsm_fast.types import MemoryStats, OmittedChunk, Pack, PackedChunk

__all__ = ["render"]

_COLOURS = 8
_GIANT = 0.5
_ATOMS_AT_ONCE = 12
_CHUNKS_AT_ONCE = 15

Colours = Mapping[int, int]


def render(findings: Findings) -> str:
    """The whole page as text."""
    stats = findings.stats
    name = Path(stats.path).name if stats.path else "a memory in RAM"
    style, script = _part("page.css"), _part("page.js")
    colours = {atom.number: index for index, atom in enumerate(findings.atoms[:_COLOURS])}
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = (
        _map(findings, colours),
        _timeline(findings, colours),
        _atoms(findings, colours),
        _packs(findings, colours),
        _settings(stats),
    )
    return Template(_part("page.html")).substitute(
        policy=policy,
        title=f"Inside {escape(name)}",
        subtitle=f"Namespace <b>{escape(stats.namespace)}</b>, {escape(_when(findings.made))} UTC",
        style=style,
        script=script,
        warnings="".join(
            f'<p class="warning" role="note">{escape(warning)}</p>' for warning in stats.warnings
        ),
        figures=_figures(stats),
        parts="\n".join(parts),
        version=escape(__version__),
        data=_json(_data(findings, colours)),
    )


def _part(name: str) -> str:
    return files("rsm_fast.inspect").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(value: object) -> str:
    """JSON that no HTML parser can leave early, whatever the strings hold."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(findings: Findings, colours: Colours) -> dict[str, Any]:
    """What the script needs: points, their two layouts, which points each pack holds."""
    index = {member.id: place for place, member in enumerate(findings.map.members)}
    return {
        "points": [
            {
                "id": member.id,
                "atom": member.atom,
                "colour": -1 if member.atom is None else colours.get(member.atom, -1),
                "text": member.text,
                "role": member.role,
                "session": member.session,
                "when": _when(member.timestamp),
            }
            for member in findings.map.members
        ],
        "pca": _rounded(findings.map.pca),
        "tsne": _rounded(findings.map.tsne),
        "packs": [
            {"packed": [index[chunk.id] for chunk in pack.chunks if chunk.id in index]}
            for pack in findings.packs
        ],
    }


def _rounded(places: npt.NDArray[np.float64]) -> list[list[float]]:
    """Coordinates scaled to -1 to 1, with as many digits as a screen can show."""
    largest = float(np.abs(places).max(initial=0.0)) or 1.0
    rounded: list[list[float]] = np.round(places / largest, 4).tolist()
    return rounded


# -- small parts ------------------------------------------------------------------------------


def _figures(stats: MemoryStats) -> str:
    values = {
        "turns": f"{stats.turns:,}",
        "chunks": f"{stats.chunks:,}",
        "atoms": f"{stats.atoms:,}",
        "largest atom": f"{100 * stats.largest_atom_share:.0f} %",
        "waiting": f"{stats.pending_chunks:,}",
        "tau": "not yet known" if stats.tau is None else f"{stats.tau:.3f}",
        "in RAM, derived": _bytes(stats.bytes),
        "on disk": _bytes(stats.file_bytes),
    }
    return "".join(
        f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>"
        for key, value in values.items()
    )


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _colour(atom: int | None, colours: Colours) -> str:
    index = None if atom is None else colours.get(atom)
    return "other" if index is None else f"c{index}"


def _atom_name(atom: int | None) -> str:
    return "no atom" if atom is None else f"atom {atom}"


def _strip(parts: Iterable[tuple[float, str, str]], whole: float) -> str:
    """A bar made of parts: size, colour class and what a pointer resting on it reads."""
    drawn, start = [], 0.0
    for size, colour, label in parts:
        width = 100 * size / whole if whole else 0.0
        drawn.append(
            f'<rect class="{colour}" x="{start:.3f}" width="{width:.3f}" height="1">'
            f"<title>{escape(label)}</title></rect>"
        )
        start += width
    return (
        '<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="1"/>{"".join(drawn)}</svg>'
    )


def _text(text: str) -> str:
    return f'<p class="text">{escape(text)}</p>'


def _listed(items: Sequence[str], at_once: int) -> str:
    """A list whose end, if it is long, waits behind a line to click on."""
    if not items:
        return "<p>Nothing.</p>"
    head, tail = items[:at_once], items[at_once:]
    rest = (
        f"<details><summary>{len(tail):,} more</summary><ol>{''.join(tail)}</ol></details>"
        if tail
        else ""
    )
    return f"<ol>{''.join(head)}</ol>{rest}"


def _when(timestamp: str) -> str:
    """An ISO timestamp to the minute."""
    offset = timestamp[19:].lstrip(".0123456789")
    return f"{timestamp[:10]} {timestamp[11:16]}" + ("" if offset == "Z" else f" {offset}")


# -- sections ---------------------------------------------------------------------------------


def _map(findings: Findings, colours: Colours) -> str:
    plane = findings.map
    if not plane.members:
        return (
            '<section id="map"><h2>Map of atoms</h2><p>There is nothing to draw: no chunk has a '
            "vector yet.</p></section>"
        )
    shown = (
        f"All {plane.total:,} chunks"
        if len(plane.members) == plane.total
        else f"A sample of {len(plane.members):,} of {plane.total:,} chunks"
    )
    legend = "".join(
        f'<button type="button" class="dot c{index}" data-atom="{atom.number}" '
        f'aria-pressed="false">{escape(_short(atom))}</button>'
        for index, atom in enumerate(findings.atoms[:_COLOURS])
    )
    return f"""<section id="map" aria-labelledby="map-title">
<h2 id="map-title">Map of atoms</h2>
<p class="quiet">{shown}, coloured by atom; near means alike. t-SNE keeps neighbours together, its
distances between groups mean little; PCA keeps the large picture and shows {plane.variance:.0%} of
the variance. Rings mark what stands in the pack chosen below.</p>
<div class="controls" role="group" aria-label="Layout of the map">
<button type="button" data-layout="tsne" aria-pressed="true">t-SNE</button>
<button type="button" data-layout="pca" aria-pressed="false">PCA</button></div>
<div class="plane"><canvas id="plane" tabindex="0" role="application" aria-label="Map of chunks.
Arrow keys move from chunk to chunk, Enter picks out the chunk's atom, Escape lets go. The list of
atoms below says the same in words." aria-describedby="point"></canvas>
<div><div id="point" aria-live="polite"><p class="meta" id="point-meta">Point at a chunk, or reach
the map with Tab and use the arrow keys.</p><p class="text" id="point-text"></p></div>
<div class="legend" role="group" aria-label="Largest atoms">{legend}<span class="dot other">all
others</span></div></div></div>
</section>"""


def _short(atom: AtomSummary) -> str:
    words = " ".join(atom.terms[:2])
    return f"{atom.number}: {words}" if words else f"atom {atom.number}"


def _timeline(findings: Findings, colours: Colours) -> str:
    line = findings.timeline
    if line is None:
        return ""
    totals = line.counts.sum(axis=0)
    highest = int(totals.max())
    width = 1000 / len(line.starts)
    bars = []
    for place, start in enumerate(line.starts):
        label = f"{start}: {totals[place]:,} chunks"
        top, rects = 100.0, ""
        for row, count in enumerate(line.counts[:, place].tolist()):
            if count:
                height = 100 * count / highest
                top -= height
                atom = line.atoms[row] if row < len(line.atoms) else None
                rects += (
                    f'<rect class="{_colour(atom, colours)}" x="{place * width:.2f}" '
                    f'y="{top:.2f}" width="{0.86 * width:.2f}" height="{height:.2f}"/>'
                )
        bars.append(f"<g><title>{escape(label)}</title>{rects}</g>")
    rows = "".join(
        f"<tr><th scope='row'>{escape(start)}</th><td>{total:,}</td></tr>"
        for start, total in zip(line.starts, totals.tolist(), strict=True)
        if total
    )
    return f"""<section id="time" aria-labelledby="time-title">
<h2 id="time-title">Timeline of writes</h2>
<p class="quiet">Chunks by their own time, a bar a {escape(line.step)}, at most {highest:,};
colours as on the map.</p>
<svg class="chart" viewBox="0 0 1000 100" preserveAspectRatio="none" role="img"
aria-label="Chunks over time, from {escape(line.starts[0])} to {escape(line.starts[-1])}; the table
below holds the numbers">{"".join(bars)}</svg>
<div class="axis quiet"><span>{escape(line.starts[0])}</span><span>{escape(line.starts[-1])}</span>
</div>
<details><summary>As a table</summary><div class="scroll"><table><thead><tr><th scope="col">from
</th><th scope="col">chunks</th></tr></thead><tbody>{rows}</tbody></table></div></details>
</section>"""


def _atoms(findings: Findings, colours: Colours) -> str:
    if not findings.atoms:
        listed = (
            "<p>There are no atoms yet: the gate's threshold is calibrated on the first 50 "
            "different chunks. Until then every chunk stands alone.</p>"
        )
    else:
        listed = _listed([_atom(atom, colours) for atom in findings.atoms], _ATOMS_AT_ONCE)
    more = findings.stats.atoms - len(findings.atoms)
    rest = f'<p class="quiet">and {more:,} smaller atoms</p>' if more > 0 else ""
    return f"""<section id="atoms" aria-labelledby="atoms-title">
<h2 id="atoms-title">Atoms</h2>
<p class="quiet">By size, with the words that stand in an atom far more often than elsewhere, and
its newest members. Atoms are numbered as they arose.</p>
{listed}{rest}
</section>"""


def _atom(atom: AtomSummary, colours: Colours) -> str:
    giant = atom.share > _GIANT
    colour = _colour(atom.number, colours)
    members = "".join(
        f'<li><p class="meta">{_member_meta(member)}</p>{_text(member.text)}</li>'
        for member in atom.newest
    )
    chunks = "1 chunk" if atom.size == 1 else f"{atom.size:,} chunks"
    return f"""<li class="atom {colour}{" giant" if giant else ""}"><div>
<button type="button" class="dot {colour}" data-atom="{atom.number}" data-jump="1"
aria-pressed="false" aria-label="Show atom {atom.number} on the map">Atom {atom.number}</button>
<p>{chunks}, {atom.share:.1%}</p>
{_strip([(atom.share, colour, f"{atom.share:.1%}")], 1.0)}
<p class="meta">{escape(_span(atom))}</p>{"<p><b>Giant atom</b></p>" if giant else ""}</div>
<div><p class="terms">{escape(", ".join(atom.terms)) or "no words of its own"}</p>
<ul class="newest">{members}</ul></div></li>"""


def _span(atom: AtomSummary) -> str:
    first, last = atom.first[:10], atom.last[:10]
    return first if first == last else f"{first} to {last}"


def _member_meta(member: Member) -> str:
    parts = (member.role, _when(member.timestamp), member.session or "")
    return f"<code>{escape(member.id)}</code> · " + escape(" · ".join(p for p in parts if p))


# -- packs ------------------------------------------------------------------------------------


def _packs(findings: Findings, colours: Colours) -> str:
    head = '<section id="packs" aria-labelledby="packs-title"><h2 id="packs-title">Packs</h2>'
    if not findings.packs:
        note = findings.note or "No question was asked, and none stands in the memory."
        return f"{head}<p>{escape(note)}</p></section>"
    buttons = "".join(
        f'<li><button type="button" data-query="{index}" aria-pressed="{str(index == 0).lower()}">'
        f"{escape(pack.query)}</button></li>"
        for index, pack in enumerate(findings.packs)
    )
    shown = "".join(
        _pack(pack, index, findings.omitted_texts, colours)
        for index, pack in enumerate(findings.packs)
    )
    return f"""{head}
<p class="quiet">What a prompt holds for a question, and why. The page cannot ask anew: these
questions were asked when it was written.</p>
<label for="query">Find a question</label>
<input type="search" id="query" autocomplete="off" aria-controls="queries">
<ul class="queries" id="queries">{buttons}</ul>
<p id="no-query" role="status" hidden>Not among the questions asked. Add it with
<code>rsm-fast inspect STORE -o FILE --query "..."</code>.</p>
{shown}
</section>"""


def _pack(pack: Pack, index: int, texts: Mapping[str, str], colours: Colours) -> str:
    stats = pack.stats
    tokens: dict[int | None, int] = defaultdict(int)
    chunks: dict[int | None, int] = defaultdict(int)
    for chunk in pack.chunks:
        tokens[chunk.atom] += chunk.tokens
        chunks[chunk.atom] += 1
    order = sorted(tokens, key=lambda atom: (-tokens[atom], -1 if atom is None else atom))
    parts = [
        (tokens[atom], _colour(atom, colours), f"{_atom_name(atom)}: {tokens[atom]:,} tokens")
        for atom in order
    ]
    rows = "".join(
        f"<tr><th scope='row' class='dot {_colour(atom, colours)}'>{_atom_name(atom)}</th>"
        f"<td>{chunks[atom]:,}</td><td>{tokens[atom]:,}</td></tr>"
        for atom in order
    )
    untried = stats.eligible - stats.considered
    never = (
        f"<p class='quiet'>{untried:,} more chunks rank behind these and were not tried.</p>"
        if untried > 0
        else ""
    )
    inside = _listed([_packed(chunk, colours) for chunk in pack.chunks], len(pack.chunks))
    outside = _listed(
        [_left_out(chunk, texts, colours) for chunk in pack.omitted],
        max(_CHUNKS_AT_ONCE, len(pack.chunks)),
    )
    return f"""<article class="pack" data-pack="{index}"{"" if index == 0 else " hidden"}>
<h3>{escape(pack.query)}</h3>
<p>{pack.tokens:,} of {pack.budget:,} tokens; {stats.admitted:,} of {stats.eligible:,} chunks.</p>
{_strip([(pack.tokens, "c0", f"{pack.tokens:,} tokens")], max(pack.budget, 1))}
<p class="meta">counted by {escape(stats.counter)} · preset {escape(stats.preset)} · layout
{escape(stats.layout)} · folding saved {stats.folded_tokens:,} tokens ·
{stats.total_us / 1000:.1f} ms, of which embedding {stats.embed_us / 1000:.1f}, scoring
{stats.score_us / 1000:.1f}, packing {stats.pack_us / 1000:.1f}</p>
<h3>Tokens by atom</h3>
{_strip(parts, sum(tokens.values()))}
<div class="scroll"><table><thead><tr><th scope="col">atom</th><th scope="col">chunks</th>
<th scope="col">tokens</th></tr></thead><tbody>{rows}</tbody></table></div>
<p class="quiet">Tokens of each chunk's own text; headers and folding make the difference to the
pack's total.</p>
<div class="columns"><div><h3>What went in ({len(pack.chunks):,}, in the order of the text)</h3>
{inside}</div>
<div><h3>What was left out ({len(pack.omitted):,} tried, best first)</h3>
{outside}{never}</div></div>
<details><summary>The text of the pack</summary><pre>{escape(pack.text)}</pre></details>
</article>"""


def _packed(chunk: PackedChunk, colours: Colours) -> str:
    meta = " · ".join(p for p in (chunk.role, _when(chunk.timestamp), chunk.session) if p)
    return (
        f'<li class="chunk">{_chunk_meta("in", chunk.id, chunk.atom, colours)} {escape(meta)}</p>'
        f'{_text(chunk.text)}<p class="why">{escape(chunk.reason)}</p></li>'
    )


def _left_out(chunk: OmittedChunk, texts: Mapping[str, str], colours: Colours) -> str:
    return (
        f'<li class="chunk">{_chunk_meta("out", chunk.id, chunk.atom, colours)} '
        f"{chunk.tokens:,} tokens, score {chunk.score:.3g}</p>"
        f"{_text(texts.get(chunk.id, '(no longer stored)'))}"
        f'<p class="why">{escape(chunk.reason)}</p></li>'
    )


def _chunk_meta(sign: str, chunk_id: str, atom: int | None, colours: Colours) -> str:
    return (
        f'<p class="meta"><span class="sign">{sign}</span><code>{escape(chunk_id)}</code> · '
        f'<span class="dot {_colour(atom, colours)}">{_atom_name(atom)}</span> ·'
    )


def _settings(stats: MemoryStats) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(str(key))}</th>'
        f'<td class="text">{escape(str(value))}</td></tr>'
        for key, value in {**stats.settings, "path": stats.path or "in RAM"}.items()
    )
    return f"""<section id="settings" aria-labelledby="settings-title">
<h2 id="settings-title">Settings</h2>
<details><summary>What the namespace runs with</summary><div class="scroll"><table><tbody>{rows}
</tbody></table></div></details>
</section>"""
