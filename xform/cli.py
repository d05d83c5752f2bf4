"""The command line: run a script with layers around it, list what there is."""

from __future__ import annotations

import argparse
import ast
import runpy
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from xform.core.errors import OperandTypeError, PluginError
from xform.plugins import layer, listing

__all__ = ["main", "parse_layer"]

_RUN = """examples:
  python -m xform run script.py --with profile
  python -m xform run script.py --with profile:save=trace.json
  python -m xform run script.py --epochs 3 --with nan_guard --with 'profile:save=trace.json'

Layers are entered in the order given, so that the last stands on top. All that is not --with goes to the script; what
follows -- does so as it is."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; what a script raises passes through."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = make_parser()
    options = parser.parse_args(with_first(given) if given[:1] == ["run"] else given)
    if options.command == "list":
        return show()
    try:
        layers = [layer(name, **keywords) for name, keywords in map(parse_layer, options.layers)]
    except (PluginError, OperandTypeError, ValueError) as error:
        parser.error(str(error))
    return run_script(options.script, options.args, layers)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of both commands."""
    parser = argparse.ArgumentParser(prog="python -m xform", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="run a script with layers around it",
        epilog=_RUN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    run.add_argument(
        "--with",
        dest="layers",
        action="append",
        default=[],
        metavar="NAME[:KEY=VALUE,...]",
        help="a layer by name, with its options; may be repeated",
    )
    run.add_argument("script", help="the script")
    run.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    commands.add_parser("list", help="list layers, operators and backends, with the distribution of each")
    return parser


def with_first(argv: Sequence[str]) -> list[str]:
    """Return the arguments with every `--with` moved before the script, so that all else stays the script's.

    >>> with_first(["run", "s.py", "-v", "--with", "profile", "--", "--with"])
    ['run', '--with', 'profile', 's.py', '-v', '--', '--with']
    """
    ours, at = [argv[0]], 1
    rest: list[str] = []
    while at < len(argv):
        word = argv[at]
        if word == "--":
            rest += argv[at:]
            break
        if argv[at:] == ["--with"]:
            return [*ours, word]  # argparse says what is missing
        taken = 2 if word == "--with" else 1
        (ours if word.partition("=")[0] == "--with" else rest).extend(argv[at : at + taken])
        at += taken
    return ours + rest


def parse_layer(text: str) -> tuple[str, dict[str, Any]]:
    """Take apart `name:key=value,key=value`; values are Python literals where they parse, else text.

    Raises `ValueError` for an option without a value.

    >>> parse_layer("profile:save=trace.json,depth=2,shape=(1,2)")
    ('profile', {'save': 'trace.json', 'depth': 2, 'shape': (1, 2)})
    """
    name, _, rest = text.partition(":")
    options = {}
    for part in split_options(rest):
        key, equals, value = part.partition("=")
        if not equals or not key.strip().isidentifier():
            msg = f"--with {text}: {part!r} is no option; write {name}:key=value,key=value"
            raise ValueError(msg)
        try:
            options[key.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            options[key.strip()] = value
    return name, options


def split_options(text: str) -> list[str]:
    """Split at the commas that stand in no bracket and no quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        else:
            depth += (sign in "([{") - (sign in ")]}")
            if sign == "," and depth == 0:
                parts.append("")
                continue
        parts[-1] += sign
    return [part for part in parts if part.strip()]


def run_script(script: str, args: Sequence[str], layers: Sequence[Any]) -> int:
    """Run a script as `python script.py` would, inside the layers; its exceptions and exit status pass through.

    At the end, also after an exception, the layers that have a report print it.
    """
    path = Path(script)
    if not path.exists():
        print(f"python -m xform: there is no script {script!r}", file=sys.stderr)
        return 2
    rest = list(args)
    if "--" in rest:
        rest.remove("--")
    argv, paths = sys.argv, list(sys.path)
    sys.argv = [script, *rest]
    sys.path[0] = str(path.resolve().parent)
    try:
        with ExitStack() as entered:
            for each in layers:
                entered.enter_context(each)
            runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, paths
        for each in layers:
            if text := report_of(each):
                print(text)
    return 0


def report_of(each: Any) -> str:
    """Return what a layer reports when the script has ended: nothing where it saved a file, or raises what it finds."""
    report = getattr(each, "report", None)
    if not callable(report) or getattr(each, "save_to", None) is not None or getattr(each, "mode", None) == "raise":
        return ""
    return f"{type(each).__name__}\n{report()}"


def show() -> int:
    """Print all that can be had by name."""
    rows = [("kind", "name", "from"), *listing()]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for kind, name, source in rows:
        print(f"{kind:<{widths[0]}}  {name:<{widths[1]}}  {source}")
    return 0
