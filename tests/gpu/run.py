"""Run every test that needs a GPU: `python tests/gpu/run.py [pytest options]`.

On a machine without a GPU or without CuPy it says why, and exits with 2: no test is passed by being skipped.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(options: list[str]) -> int:
    sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]
    import xform_cupy

    cause = xform_cupy.backend.cause()
    if cause is not None:
        print(f"no GPU tests were run: {cause}", file=sys.stderr)
        return 2
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", str(ROOT / "tests"), *options]
    if importlib.util.find_spec("typeguard") is None:  # a bare GPU machine may have pytest alone
        command += ["-o", "addopts=--strict-markers --strict-config"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
