"""Profile a script: with a layer inside it, and from outside with `python -m xform run`, without touching it.

    python examples/profile_a_script.py

Both write a trace file that Perfetto (ui.perfetto.dev) and chrome://tracing open.
"""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

import xform as xf

SCRIPT = '''"""A fit by gradient descent; it knows nothing of profiles."""
import numpy as np
import xform as xf

rng = np.random.default_rng(0)
x, slope = rng.normal(size=200), 0.0

def loss(slope):
    with xf.named_scope("model"):
        guess = np.tanh(slope * x)
    return np.mean((guess - np.tanh(2.0 * x)) ** 2)

for _ in range(100):
    slope = slope - 2.0 * xf.grad(loss)(slope)
print(f"slope {slope:.3f}")
'''

folder = Path(tempfile.mkdtemp(prefix="xform-"))

print("1. a layer in your own code")


def gram(x):
    """Return what every pair of rows has in common, centred."""
    with xf.named_scope("centre"):
        x = x - np.mean(x, axis=0)
    with xf.named_scope("products"):
        return np.sum(np.abs(x @ x.T))


data = np.random.default_rng(0).normal(size=(300, 50))
with xf.Profile(save=folder / "layer.json") as profile:  # below grad: it sees the backward, too
    xf.grad(gram)(data)
print(profile.table(limit=4))
print("\nby scope:")
print(profile.table(by="scope", limit=4))
print("calls of Matmul:", profile.calls("Matmul"), " in the backward:", profile.calls("Matmul", phase="backward"))

print("\n2. a script as it is, from the command line")
script, trace = folder / "fit.py", folder / "fit.json"
script.write_text(SCRIPT)
command = [sys.executable, "-m", "xform", "run", str(script), "--with", f"profile:save={trace}", "--with", "nan_guard"]
print("$ python -m xform run fit.py --with profile:save=fit.json --with nan_guard")
done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)  # noqa: S603
print(done.stdout, end="")

events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
slowest = max(events, key=lambda event: event["dur"])
tanh = [event for event in events if event["name"] == "Tanh"]
print(f"the trace has {len(events)} events; Tanh ran {len(tanh)} times, in scope {tanh[0]['args']['scope']!r}")
print(f"the longest event: {slowest['name']} ({slowest['dur'] / 1e3:.2f} ms)")

print("\n3. raw arrays compute past the stack, and the layer says so")
try:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with xf.Profile():
            np.sin(data)  # NumPy alone: nobody tracks it; write xf.array(data), or decorate the function
except UserWarning as warning:
    print("UserWarning:", warning)
