"""Fixtures of all tests. xform is imported inside them: pytest loads this file before typeguard's import hook is on."""

from __future__ import annotations

import os

import pytest

# A failing test of xform shows xform's frames; the tests of hiding switch it on again.
os.environ.setdefault("XFORM_FULL_TRACEBACK", "1")


@pytest.fixture(autouse=True)
def _stack_is_empty_afterwards():
    """Every test leaves the stack as it found it: empty. A test that does not harms no other."""
    from xform.core.stack import BOTTOM, cursor, stack

    assert cursor.get() is BOTTOM
    yield
    left = stack()
    if cursor.get() is not BOTTOM:
        cursor.set(BOTTOM)
        pytest.fail(f"the test left layers on the stack: {left}")
