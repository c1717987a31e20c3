"""What the demo talks about: public names of the standard library with their documentation.

Only routines and classes count, each once (under the first module of `MODULES` that offers it).
Left out is what could differ between two runs of one Python version: signatures that show addresses
or unordered sets, hooks that other programs replace, modules that not every build has.
"""

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from types import ModuleType

MODULES = (
    "builtins",
    "abc",
    "argparse",
    "array",
    "ast",
    "asyncio.queues",
    "asyncio.locks",
    "asyncio.tasks",
    "base64",
    "bisect",
    "calendar",
    "cmath",
    "codecs",
    "collections",
    "configparser",
    "contextlib",
    "copy",
    "csv",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "dis",
    "email.message",
    "email.utils",
    "enum",
    "filecmp",
    "fileinput",
    "fnmatch",
    "fractions",
    "functools",
    "glob",
    "graphlib",
    "gzip",
    "hashlib",
    "heapq",
    "hmac",
    "html",
    "html.parser",
    "http.cookies",
    "inspect",
    "io",
    "ipaddress",
    "itertools",
    "json",
    "json.encoder",
    "linecache",
    "logging",
    "logging.handlers",
    "math",
    "mimetypes",
    "numbers",
    "operator",
    "optparse",
    "os.path",
    "pathlib",
    "pickle",
    "pickletools",
    "pprint",
    "queue",
    "random",
    "re",
    "sched",
    "secrets",
    "shelve",
    "shlex",
    "shutil",
    "socketserver",
    "statistics",
    "string",
    "struct",
    "tempfile",
    "textwrap",
    "threading",
    "timeit",
    "tokenize",
    "traceback",
    "types",
    "typing",
    "unicodedata",
    "unittest",
    "unittest.mock",
    "urllib.parse",
    "urllib.request",
    "urllib.robotparser",
    "uuid",
    "warnings",
    "wave",
    "weakref",
    "xml.dom.minidom",
    "xml.etree.ElementTree",
    "xml.sax.saxutils",
    "zipfile",
    "zlib",
)
"""Searched in this order; built-in names come first, so that no alias of one is taken for it."""

_MADE_TO_BE_REPLACED = frozenset(
    {"threading.excepthook", "warnings.showwarning", "warnings.formatwarning"}
)
_SHORTEST_DOCUMENTATION = 40
_STRIPS_DOCSTRINGS = 2
_UNSTABLE_TEXT = re.compile(r"<|\{[^}]| at 0x")
_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "positional-only",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional or keyword",
    inspect.Parameter.VAR_POSITIONAL: "variable positional",
    inspect.Parameter.KEYWORD_ONLY: "keyword-only",
    inspect.Parameter.VAR_KEYWORD: "variable keyword",
}


class DemoError(RuntimeError):
    """The demo content cannot be made on this machine or with these settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One parameter of a topic's signature.

    Attributes:
        name: As in the signature, without stars.
        kind: How it may be passed, in words.
        default: Source text of the default; None where the argument must be given.
    """

    name: str
    kind: str
    default: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One documented name.

    Attributes:
        name: Dotted name as a reader would write it, for example `json.dumps`.
        module: The module it was found in.
        kind: `function`, `method` or `class`.
        call: `name(...)` with its arguments; None where no stable signature is known.
        arguments: In order, without `self` and `cls`; empty where `call` is None.
        paragraphs: The documentation cut at empty lines; at least one.
    """

    name: str
    module: str
    kind: str
    call: str | None
    arguments: tuple[Argument, ...]
    paragraphs: tuple[str, ...]

    @property
    def summary(self) -> str:
        """The first paragraph on one line."""
        return " ".join(self.paragraphs[0].split())

    @property
    def documentation(self) -> str:
        """All paragraphs, with the empty lines between them."""
        return "\n\n".join(self.paragraphs)


def collect_topics() -> tuple[Topic, ...]:
    """Collect every topic of `MODULES` as this process sees the standard library.

    Other packages patch it (torch replaces `inspect.getfile`), so `reading` calls this in a fresh
    one.

    Returns:
        Topics in the order of `MODULES`, then of their names; no two share a name.

    Raises:
        DemoError: This interpreter drops docstrings or was built without them.
    """
    if sys.flags.optimize >= _STRIPS_DOCSTRINGS:
        raise DemoError(
            "The demo text is made from docstrings; this interpreter runs with "
            f"sys.flags.optimize = {sys.flags.optimize} (-OO or PYTHONOPTIMIZE=2), which removes "
            "them. Run it without -OO."
        )
    seen: set[int] = set()
    topics: dict[str, Topic] = {}
    for module_name in MODULES:
        for name, value in _public_values(importlib.import_module(module_name)):
            if id(value) in seen:
                continue
            seen.add(id(value))
            topic = _topic(module_name, name, value)
            if topic is not None:
                topics.setdefault(topic.name, topic)
    if not any(topic.module == "math" for topic in topics.values()):
        raise DemoError(
            "The demo text is made from docstrings; math has none here, so this Python "
            f"({sys.version.split()[0]}, {sys.executable}) was built without them. "
            "Use a Python built with docstrings."
        )
    return tuple(topics.values())


def _public_values(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Yield the public routines and classes of a module and the methods of those classes."""
    own = {module.__name__, f"_{module.__name__}"}
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) in own
    ]
    for name in sorted(set(names)):
        value = getattr(module, name, None)
        if inspect.isclass(value):
            yield name, value
            members = sorted(vars(value).items())
            yield from (
                (f"{name}.{member}", item)
                for member, item in members
                if inspect.isroutine(item) and not member.startswith("_")
            )
        elif inspect.isroutine(value):
            yield name, value


def _topic(module_name: str, name: str, value: object) -> Topic | None:
    full_name = name if module_name == "builtins" else f"{module_name}.{name}"
    documentation = inspect.getdoc(value) if getattr(value, "__doc__", None) else None
    if not documentation or len(documentation) < _SHORTEST_DOCUMENTATION:
        return None
    if " at 0x" in documentation or full_name in _MADE_TO_BE_REPLACED:
        return None
    paragraphs = tuple(
        text.rstrip() for text in re.split(r"\n[ \t]*\n+", documentation.strip()) if text.strip()
    )
    routine = "method" if "." in name else "function"
    call, arguments = _signature(full_name, value)
    return Topic(
        name=full_name,
        module=module_name,
        kind="class" if inspect.isclass(value) else routine,
        call=call,
        arguments=arguments,
        paragraphs=paragraphs,
    )


def _signature(full_name: str, value: object) -> tuple[str | None, tuple[Argument, ...]]:
    if not callable(value):
        return None, ()
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):
        return None, ()
    if _UNSTABLE_TEXT.search(str(signature)):
        return None, ()
    kept = [p for p in signature.parameters.values() if p.name not in {"self", "cls"}]
    arguments = tuple(
        Argument(
            name=parameter.name,
            kind=_KINDS[parameter.kind],
            default=None if parameter.default is parameter.empty else repr(parameter.default),
        )
        for parameter in kept
    )
    return f"{full_name}{signature.replace(parameters=kept)}", arguments


def main() -> int:
    """Write all topics to standard output as JSON; returns the exit status."""
    try:
        topics = collect_topics()
    except DemoError as error:
        sys.stderr.write(str(error))
        return 1
    sys.stdout.write(json.dumps([asdict(topic) for topic in topics]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
