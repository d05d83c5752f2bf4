"""The main job: a classifier of handwritten digits, trained through a stack of transformations.

    python examples/digits.py [folder for the trace file]

Every operation of the training step passes through `grad` and named scopes; the step is traced once and replayed, and a
profile shows where the time goes, forward and backward apart. Takes a few seconds; reaches 97% on held-out digits.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

# The matrices are small: several BLAS threads would wait for each other, and on a busy machine take 10 times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from sklearn.datasets import load_digits

import xform as xf
import xform.numpy as xnp

rng = np.random.default_rng(0)
EPOCHS, BATCH, RATE, DECAY = 40, 64, 0.08, 1e-4


def data():
    """Return training and test images (values in 0..1) and labels, shuffled; one fifth is held out."""
    digits = load_digits()
    order = rng.permutation(len(digits.target))
    images, labels = (digits.data[order] / 16.0).astype(np.float32), digits.target[order]
    cut = len(labels) // 5
    return (images[cut:], labels[cut:]), (images[:cut], labels[:cut])


def layer(inputs, outputs):
    scale = np.sqrt(2.0 / inputs)
    weight = (rng.normal(size=(inputs, outputs)) * scale).astype(np.float32)
    return {"weight": weight, "bias": np.zeros(outputs, np.float32)}


def logits(parameters, images):
    hidden = images
    for number, each in enumerate(parameters):
        with xf.named_scope(f"layer{number}"):
            hidden = hidden @ each["weight"] + each["bias"]
            if number < len(parameters) - 1:
                hidden = xnp.maximum(hidden, 0.0)
    return hidden


def loss(parameters, images, targets):
    scores = logits(parameters, images)
    with xf.named_scope("cross_entropy"):
        likelihood = xnp.sum(scores * targets, axis=1) - xnp.logsumexp(scores, axis=1)
        return -xnp.mean(likelihood) + DECAY * sum(xnp.sum(each["weight"] ** 2) for each in parameters)


def update(velocity, gradient):
    velocity *= 0.9
    velocity -= RATE * gradient
    return velocity


def accuracy(parameters, images, labels):
    return float(np.mean(np.argmax(logits(parameters, images), axis=1) == labels))


def main():
    """Train, report, profile one step, save its trace."""
    (images, labels), test = data()
    targets = np.eye(10, dtype=np.float32)[labels]
    parameters = [layer(64, 128), layer(128, 64), layer(64, 10)]
    velocity = xf.tree.map(np.zeros_like, parameters)
    step = xf.trace(xf.value_and_grad(loss))  # recorded at the first batch, replayed afterwards

    start = time.perf_counter()
    for epoch in range(EPOCHS):
        total, order = 0.0, rng.permutation(len(labels))
        for first in range(0, len(order) - BATCH + 1, BATCH):
            batch = order[first : first + BATCH]
            value, gradient = step(parameters, images[batch], targets[batch])
            velocity = xf.tree.map(update, velocity, gradient)
            parameters = xf.tree.map(np.add, parameters, velocity)
            total += float(value)
        if epoch % 5 == 4:
            mean = total / (len(order) // BATCH)
            print(f"epoch {epoch + 1:3d}  loss {mean:.4f}  test accuracy {accuracy(parameters, *test):.4f}", flush=True)
    seconds = time.perf_counter() - start
    print(f"\ntrained in {seconds:.1f} s; test accuracy {accuracy(parameters, *test):.4f}\n")

    batch = slice(0, BATCH)
    with xf.Profile() as profile:
        xf.value_and_grad(loss)(parameters, images[batch], targets[batch])
    print("one step, operation by operation:")
    print(profile.table(limit=12))
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="xform-"))
    folder.mkdir(parents=True, exist_ok=True)
    profile.save(folder / "digits-trace.json")
    print(f"\ntrace of that step (open it in Perfetto): {folder / 'digits-trace.json'}")
    program = step.program(parameters, images[batch], targets[batch])
    print(f"the traced step is a program of {len(program.equations)} equations; its first lines:")
    print("\n".join(program.text().splitlines()[:6]))


if __name__ == "__main__":
    main()
