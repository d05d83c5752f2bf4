"""Loops and branches that every layer enters: `while_loop`, `scan`, `cond`, and `LoopBuilder` to write loops out."""

from xform.loops.branches import cond, switch
from xform.loops.builder import LoopBuilder
from xform.loops.functions import fori_loop, map, scan, while_loop

__all__ = ["LoopBuilder", "cond", "fori_loop", "map", "scan", "switch", "while_loop"]
