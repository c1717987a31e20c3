"""One self-contained HTML page: nothing is fetched, and nothing in the data can act.

All text goes through `escape`. The page's own script is the only one its content policy allows,
by digest, so that even markup that got in by a mistake could not run or load anything.
"""

import base64
import hashlib
import html
from collections.abc import Iterable, Iterator, Sequence

_STYLE = """
:root{color-scheme:light dark;--fg:#1c2330;--bg:#fff;--soft:#f3f5f8;--line:#d6dbe3;--dim:#667085;
--mark:#c9f2d3;--under:#17803d;--tag:#1d5fa8}
@media(prefers-color-scheme:dark){:root{--fg:#e3e7ee;--bg:#14181f;--soft:#1d232d;--line:#39424f;
--dim:#98a2b3;--mark:#14472a;--under:#5fd38a;--tag:#7db7f5}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);margin:0 auto;
max-width:70rem;padding:1rem 1.5rem 5rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
p.note{color:var(--dim);max-width:60rem}p.warn{border-left:4px solid #d97706;padding-left:.7rem}
table{border-collapse:collapse;margin:.5rem 0}th,td{text-align:left;padding:.2rem .9rem .2rem 0;
border-bottom:1px solid var(--line);vertical-align:top}td.n{text-align:right;
font-variant-numeric:tabular-nums}
code,pre{font:13px/1.5 ui-monospace,Menlo,Consolas,monospace}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--soft);padding:.6rem .8rem;
border-radius:6px;margin:.4rem 0}
td.bars{width:24rem}td.bars span{display:inline-block;height:.8rem;min-width:1px;
background:#3b78c3;border-radius:2px}
figure{margin:1rem 0;display:inline-block;max-width:100%}figure svg{max-width:100%;height:auto}
"""


def escape(text: object) -> str:
    """Text as it may stand in HTML, also inside attributes."""
    return html.escape(str(text), quote=True)


def page(title: str, body: Iterable[str], *, style: str = "", script: str = "") -> Iterator[str]:
    """The lines of a page.

    Args:
        title: plain text.
        body: HTML, escaped by who made it.
        style: further CSS.
        script: JavaScript; the only one that may run.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    policy += f"form-action 'none'; script-src 'sha256-{digest}'"
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
    yield f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>"
    yield f"<h1>{escape(title)}</h1>"
    yield from body
    if script:
        yield f"<script>{script}</script>"
    yield "</body>\n</html>"


def table(head: Sequence[str], records: Iterable[Sequence[object]]) -> Iterator[str]:
    """A table; whole numbers stand right-aligned, with separators."""
    yield "<table><tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>"
    for record in records:
        yield "<tr>" + "".join(map(_cell, record)) + "</tr>"
    yield "</table>"


def bars(records: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Counts as horizontal bars, the longest for the largest; nothing when there are none."""
    most = max((count for _, count in records), default=0)
    if not most:
        return
    yield "<table>"
    for name, count in records:
        yield (
            f'<tr><td>{escape(name)}</td><td class="n">{count:,}</td><td class="bars">'
            f'<span style="width:{100 * count / most:.1f}%"></span></td></tr>'
        )
    yield "</table>"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td class="n">{value:,}</td>'
    return f"<td>{escape(value)}</td>"
