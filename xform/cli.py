"""The command line: run a script with layers around it, explain what they do, look at stored programs."""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from xform.core.errors import XformError
from xform.plugins import layer, listing
from xform.programs.compare import diff
from xform.programs.program import Program
from xform.programs.storage import load_program
from xform.programs.svg import to_html

__all__ = ["main", "parse_layer"]

_RUN = """examples:
  python -m xform run script.py --with profile
  python -m xform run script.py --with device:cupy:0
  python -m xform run script.py --epochs 3 --with nan_guard --with 'profile:save=trace.json'
  python -m xform explain script.py --with grad

Layers are entered in the order given, so that the last stands on top. All that is not --with goes to the script; what
follows -- does so as it is."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; what a script raises passes through."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = make_parser()
    options = parser.parse_args(with_first(given) if given[:1] in (["run"], ["explain"]) else given)
    if options.command == "list":
        return show()
    try:
        if options.command == "program":
            status = look_at(options)
            sys.stdout.flush()
            return status
        explain = [layer("explain", show=print)] if options.command == "explain" else []
        layers = explain + [layer(name, *args, **keywords) for name, args, keywords in map(parse_layer, options.layers)]
    except BrokenPipeError:  # `| head` has seen enough; what is still in the buffer must not fail at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (XformError, ValueError, OSError, ImportError) as error:
        parser.error(str(error))
    return run_script(options.script, options.args, layers)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands."""
    parser = argparse.ArgumentParser(prog="python -m xform", description=__doc__, allow_abbrev=False)
    version = sys.modules["xform"].__version__  # nothing imports from the package itself, which exports all
    parser.add_argument("--version", action="version", version=f"xform {version}")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, summary in (
        ("run", "run a script with layers around it"),
        ("explain", "run a script and print what each layer makes of each operation"),
    ):
        command = commands.add_parser(
            name, help=summary, epilog=_RUN, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        command.add_argument(
            "--with",
            dest="layers",
            action="append",
            default=[],
            metavar="NAME[:VALUE,...,KEY=VALUE,...]",
            help="a layer by name, with its arguments; may be repeated",
        )
        command.add_argument("script", help="the script")
        command.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    commands.add_parser("list", help="list layers, backends, engines and operators of plugins, with where each is from")
    add_program_commands(commands.add_parser("program", help="look at a program that Program.save wrote"))
    return parser


def add_program_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands that look at stored programs."""
    commands = parser.add_subparsers(dest="look", required=True)
    for name, summary in (
        ("show", "print a program, with scopes and lines"),
        ("source", "print its NumPy source"),
        ("draw", "draw it"),
        ("diff", "print where two programs differ; then the status is 1"),
    ):
        command = commands.add_parser(name, help=summary)
        command.add_argument("files", nargs=2 if name == "diff" else 1, metavar="FILE", help="the file of a program")
        command.add_argument(
            "--import",
            dest="modules",
            action="append",
            default=[],
            metavar="MODULE",
            help="a module that defines operators of the program; a file never imports one",
        )
        if name == "draw":
            command.add_argument("--as", dest="form", choices=tuple(DRAWINGS), help="default: by OUT, or dot")
            command.add_argument("-o", "--out", type=Path, help="the file to write (default: standard output)")


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


def parse_layer(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Take apart `name:value,key=value`, as in a call; values are Python literals where they parse, else text.

    Raises `ValueError` for a value without a key behind one that has a key.

    >>> parse_layer("profile:save=trace.json,depth=2,shape=(1,2)")
    ('profile', [], {'save': 'trace.json', 'depth': 2, 'shape': (1, 2)})
    >>> parse_layer("device:cupy:0")
    ('device', ['cupy:0'], {})
    """
    name, _, rest = text.partition(":")
    given: list[Any] = []
    options: dict[str, Any] = {}
    for part in split_options(rest):
        key, equals, value = part.partition("=")
        if equals and key.strip().isidentifier():
            options[key.strip()] = literal_or_text(value)
        elif options:
            msg = f"--with {text}: {part!r} stands behind an option; write {name}:value,key=value"
            raise ValueError(msg)
        else:
            given.append(literal_or_text(part))
    return name, given, options


def literal_or_text(text: str) -> Any:
    """Return the Python literal that a text is, or the text."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text


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
    text = report()
    return text and f"{type(each).__name__}\n{text}"


# ------------------------------------------------------------------ stored programs


def look_at(options: argparse.Namespace) -> int:
    """Print or draw a stored program, or where two of them differ."""
    for module in options.modules:
        importlib.import_module(module)
    programs = list(map(load_program, options.files))
    if options.look == "diff":
        found = diff(*programs)
        print(found)
        return int(bool(found))
    if options.look == "draw":
        draw(programs[0], options.form, options.out)
    else:
        print(programs[0].text(lines=True) if options.look == "show" else programs[0].source())
    return 0


DRAWINGS: dict[str, Callable[[Program], str]] = {
    "dot": Program.to_dot, "mermaid": Program.to_mermaid, "svg": Program.to_svg, "html": to_html,
}  # fmt: skip
_SUFFIXES = {".dot": "dot", ".gv": "dot", ".svg": "svg", ".html": "html", ".mmd": "mermaid"}


def draw(program: Program, form: str | None, out: Path | None) -> None:
    """Draw a program, into a file or on standard output; raises `ValueError` for a suffix that names no drawing."""
    form = form or ("dot" if out is None else _SUFFIXES.get(out.suffix.lower()))
    if form is None:
        raise ValueError(f"{out} is none of {', '.join(_SUFFIXES)}; name the form with --as {'|'.join(DRAWINGS)}")
    text = DRAWINGS[form](program)
    if out is None:
        print(text)
    else:
        out.write_text(f"{text}\n", encoding="utf-8")


def show() -> int:
    """Print what can be had by name; the operators of xform itself are the names in `xform.ops`."""
    rows = [("kind", "name", "from"), *listing()]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for kind, name, source in rows:
        print(f"{kind:<{widths[0]}}  {name:<{widths[1]}}  {source}")
    return 0
