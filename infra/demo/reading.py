"""Read the topics in a fresh, isolated interpreter.

Costs about half a second. In exchange the demo is the same whatever the calling process has
imported: no installed package, start-up file or environment variable reaches the child, so
docstrings are there even where the caller runs with -OO.
"""

import json
import subprocess
import sys

from infra.demo import topics
from infra.demo.topics import Argument, DemoError, Topic


def read_topics() -> tuple[Topic, ...]:
    """Read every topic of the standard library.

    Returns:
        Topics in the order of `topics.MODULES`; no two share a name.

    Raises:
        DemoError: The child failed, for example because this Python was built without docstrings.
    """
    command = [sys.executable, "-I", "-S", topics.__file__]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        raise DemoError(
            f"Expected the topics from {' '.join(command)}; found exit status {done.returncode}: "
            f"{done.stderr.strip()}"
        )
    return tuple(
        Topic(
            name=row["name"],
            module=row["module"],
            kind=row["kind"],
            call=row["call"],
            arguments=tuple(Argument(**argument) for argument in row["arguments"]),
            paragraphs=tuple(row["paragraphs"]),
        )
        for row in json.loads(done.stdout)
    )
