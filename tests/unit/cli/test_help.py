import os
import subprocess
import sys

import pytest

from megapack.cli import main as cli

COMMANDS = ("audit", "inspect", "pack-multimodal", "plan", "prepare", "refresh", "report", "run")


def helped(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_teaches(capsys, command):
    text = helped(capsys, command)
    sentence = text.split("\n\n")[1]
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert f"examples:\n  megapack {command} " in text
    assert "exit codes:\n  0  done" in text
    assert "  2  the command or the job is wrong" in text


def test_help_lists_the_commands_in_the_order_of_their_use(capsys):
    text = helped(capsys)
    places = [text.index(f"\n    {name} ") for name in ("prepare", "inspect", "report", "audit")]
    assert places == sorted(places)
    assert "megapack prepare --source chats.jsonl --tokenizer DIR" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--rows", "one"], "invalid"),
        (["--seed", "-1"], "expected at least 0, found -1"),
        (["--sample", "0"], "expected at least 1, found 0"),
        (["--rows", "1", "--sample", "3"], "not allowed with"),
    ],
)
def test_command_line_that_is_wrong_exits_with_two(capsys, arguments, told):
    with pytest.raises(SystemExit) as ended:
        cli.main(["inspect", "x", *arguments])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_command_loads_no_drawing_and_no_progress_library():
    code = (
        "import megapack.cli.main, sys; "
        "heavy = {'torch', 'prefect', 'matplotlib', 'rich', 'transformers'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.strip() == "[]"
