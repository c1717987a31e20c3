"""Documents as one self-contained HTML page: trained text marked, tokens under the pointer.

Each token is one `<i>` element; its number follows from its place, so the page costs about 15 bytes
a token beside the text. Documents are closed until they are opened.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from megapack.conversation.token_text import TokenTexts
from megapack.steps.inspect.pieces import MarkedPiece, head, pieces_of
from megapack.steps.inspect.plain import heading, visible
from megapack.steps.inspect.shown import Group, ShownDocument
from megapack.steps.inspect.teacher import opinion_text
from megapack.steps.page import escape, page

_STYLE = """
details{border:1px solid var(--line);border-radius:6px;margin:.35rem 0}
summary{cursor:pointer;padding:.3rem .7rem;font-size:13px;overflow-wrap:anywhere}
details>div{font:13px/1.7 ui-monospace,Menlo,Consolas,monospace;white-space:pre-wrap;
overflow-wrap:anywhere;padding:.3rem .9rem .7rem;border-top:1px solid var(--line)}
details i{font-style:normal}details i:hover{outline:1px solid var(--tag);background:var(--soft)}
b{font-weight:inherit;background:var(--mark);box-shadow:inset 0 -2px var(--under)}
i.c{color:var(--tag);font-weight:600}u{text-decoration:none}u::before{content:"\\21b5";color:var(--dim)}
#tip{position:fixed;left:0;right:0;bottom:0;padding:.45rem 1.5rem;background:var(--soft);
border-top:1px solid var(--line);min-height:2.6em;
font:13px/1.4 ui-monospace,Menlo,Consolas,monospace}
.bar{display:flex;gap:.6rem;margin:.6rem 0}.bar input{flex:1;max-width:28rem}
"""
_SCRIPT = """
"use strict";
const tip = document.getElementById("tip");
const boxes = [...document.querySelectorAll("details")];
const known = new WeakMap();

function tokens(box) {
  if (!known.has(box)) {
    const elements = [...box.querySelectorAll("i")], places = new Map();
    let first = 0;
    elements.forEach((element, at) => {
      const size = Number(element.dataset.n || 1);
      places.set(element, {at, first, size});
      first += size;
    });
    known.set(box, {elements, places, ids: box.dataset.ids.split(" "),
      told: JSON.parse(box.dataset.teacher || "[]")});
  }
  return known.get(box);
}

function describe(element) {
  const box = element.closest("details"), {elements, places, ids, told} = tokens(box);
  const {at, first, size} = places.get(element), end = first + size;
  const trained = element.closest("b") !== null, next = elements[at + 1];
  const start = box.dataset.start, positions = Number(box.dataset.positions);
  const parts = [
    size > 1 ? `tokens ${first} to ${end - 1}` : `token ${first}`,
    `id ${ids.slice(first, end).join(" ")}`,
    JSON.stringify(element.textContent),
  ];
  if (start !== "") {
    parts.push(first < positions ? `row position ${Number(start) + first}` : "only a label");
  }
  parts.push(trained ? `trained: the label of token ${first - 1}` : "not trained");
  if (ids[end] === undefined) parts.push(box.dataset.cut ? "label not shown" : "no label");
  else if (next && next.closest("b")) parts.push(`label ${ids[end]}, counts`);
  else parts.push(`label ${ids[end]}, masked (-100)`);
  for (let token = first; token < end; token++) {
    if (told[token]) parts.push(`teacher expected ${told[token]}`);
  }
  return parts.join("  |  ");
}

document.addEventListener("mouseover", event => {
  const element = event.target.closest("details i");
  if (element) tip.textContent = describe(element);
});
document.getElementById("open").onclick = () => {
  for (const box of boxes) if (!box.hidden) box.open = true;
};
document.getElementById("close").onclick = () => {
  for (const box of boxes) box.open = false;
};
document.getElementById("find").oninput = event => {
  const wanted = event.target.value.toLowerCase();
  for (const box of boxes) box.hidden = !box.textContent.toLowerCase().includes(wanted);
};
"""
_BAR = (
    '<div class="bar"><input id="find" type="search" placeholder="show documents that contain …" '
    'aria-label="show documents that contain"><button id="open">open all</button>'
    '<button id="close">close all</button></div>'
)
_LEGEND = (
    '<p class="note"><b>Marked text is trained</b>: it is what the labels ask the model to say, '
    "so each marked token is the label of the position before it. "
    '<i class="c">&lt;coloured&gt;</i> is a control token; the same letters without colour were '
    "typed by somebody and are text. Point at a token for its id, position, label and mask.</p>"
)


def page_of(
    groups: Iterable[Group],
    texts: TokenTexts | None,
    *,
    title: str,
    facts: Sequence[str],
    most: int,
) -> Iterator[str]:
    """The page, in pieces.

    Args:
        groups: what to show.
        texts: the tokenizer's texts, None for ids.
        title: of the page.
        facts: lines above the documents, plain text; those that begin with `!` are warnings.
        most: tokens shown of each document.
    """
    return page(title, _body(groups, texts, facts=facts, most=most), style=_STYLE, script=_SCRIPT)


def _body(
    groups: Iterable[Group], texts: TokenTexts | None, *, facts: Sequence[str], most: int
) -> Iterator[str]:
    for fact in facts:
        kind = "warn" if fact.startswith("!") else "fact"
        yield f'<p class="{kind}">{escape(visible(fact.removeprefix("!")))}</p>'
    yield _LEGEND
    yield _BAR
    for group in groups:
        yield f"<h2>{escape(visible(group.title))}</h2>"
        for document in group.documents:
            yield from _document(document, texts, most=most)
    yield '<div id="tip" role="status">Open a document and point at a token.</div>'


def _document(document: ShownDocument, texts: TokenTexts | None, *, most: int) -> Iterator[str]:
    ids = " ".join(map(str, document.tokens[:most].tolist()))
    slot, rest = document.slot, document.tokens.size - most
    start, positions = ("", document.tokens.size) if slot is None else (slot.start, slot.positions)
    more = ' data-cut="yes"' if rest > 0 else ""
    more += _judged(document, texts, most=most)
    yield f'<details data-ids="{ids}" data-start="{start}" data-positions="{positions}"{more}>'
    (span,) = head(document, most=most)
    pieces = pieces_of(document, texts, span=span)
    shown = "".join(
        f"<b>{''.join(map(_piece, run))}</b>" if trained else "".join(map(_piece, run))
        for trained, run in groupby(pieces, key=lambda piece: piece.trained)
    )
    # No line break beside the text: it would be shown.
    yield f"<summary>{escape(heading(document))}</summary><div>{shown}</div>"
    if rest > 0:
        trained = int(document.trained[most:].sum())
        yield (
            f'<p class="note">… {rest:,} more tokens, {trained:,} of them trained, are not shown '
            "(--max-tokens).</p>"
        )
    yield "</details>"


def _judged(document: ShownDocument, texts: TokenTexts | None, *, most: int) -> str:
    """What a teacher says of each token, as an attribute that the page's script reads."""
    if document.teacher is None:
        return ""
    opinions = [
        document.teacher.of(token, identity)
        for token, identity in enumerate(document.tokens[:most].tolist())
    ]
    told = ["" if one is None else visible(opinion_text(one, texts)) for one in opinions]
    return f' data-teacher="{escape(json.dumps(told, ensure_ascii=False))}"'


def _piece(piece: MarkedPiece) -> str:
    named = ' class="c"' if piece.control else ""
    size = f' data-n="{piece.count}"' if piece.count > 1 else ""
    # The sign of a line break is drawn by the style, so that copied text is the text.
    text = escape(visible(piece.text)).replace("\n", "<u></u>\n")
    return f"<i{named}{size}>{text}</i>"
