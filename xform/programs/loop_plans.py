"""Which carries of a loop are kept for its gradient, and which rounds are run again between them.

1. Kept are the carries at the start of some rounds, the marks. Backward, rounds from a mark to the next are run again;
   what room is left holds carries between them.
2. "log": the number of places grows with the logarithm of that of the rounds. Where that is known, the marks and all
   further places follow the binomial schedule, in which no round runs more often than it must. What is scheduled are
   blocks of rounds, so that the few rounds of a block are met by one loop.
3. Where it is not known, marks are equally far apart; when there are too many, every second one goes.

Source: A. Griewank and A. Walther, Algorithm 799: Revolve, ACM TOMS 26 (2000); P. Stumm and A. Walther, New algorithms
for optimal online checkpointing, SIAM J. Sci. Comput. 32 (2010).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs

__all__ = ["Plan", "rewound"]

#: marks of a loop whose number of rounds is not known, and all places: a few dozen
MOST_MARKS, PLACES = 16, 26


@attrs.frozen
class Plan:
    """What is kept: a mark every `every` rounds, or as `kind` says: "sqrt" or "log".

    With `swap` marks move to the host, so many at a time.
    """

    every: int = 1
    kind: str | None = None
    swap: int | None = None

    @property
    def keeps_all(self) -> bool:
        """Whether every carry is kept."""
        return self.kind is None and self.every == 1

    def spacing(self, rounds: int) -> int:
        """Return how far apart the marks are, where the number of rounds was not known beforehand."""
        if self.kind is None:
            return self.every
        apart = 1
        while -(-rounds // apart) > self.most(apart):
            apart *= 2
        return apart

    def most(self, apart: int) -> int:
        """Return how many marks there may be, so far apart, before every second one goes."""
        return MOST_MARKS if self.kind == "log" else 2 * apart

    def marks(self, rounds: int, *, known: bool) -> list[int]:
        """Return the rounds at whose start carries are kept, in order; `known` is whether their number was beforehand.

        >>> Plan(3).marks(8, known=True), Plan(kind="log").marks(1000, known=True)
        ([0, 3, 6], [0, 55, 175, 400, 580, 720, 825, 900, 950, 980])
        """
        if self.kind == "log" and known:
            block = self.block(rounds)
            return [block * at for at in first_marks(-(-rounds // block), self.places(rounds, known=True))]
        if self.kind == "sqrt" and known:
            return list(range(0, rounds, max(1, math.isqrt(max(rounds - 1, 0)) + 1)))
        return list(range(0, rounds, self.spacing(rounds)))

    def places(self, rounds: int, *, known: bool) -> int:
        """Return how many carries are held at most, while rounds are run again."""
        if self.kind == "log":
            return max(4, math.ceil(math.log2(max(rounds, 2)))) if known else PLACES
        marks = self.marks(rounds, known=known)
        apart = marks[1] - marks[0] if len(marks) > 1 else rounds
        return len(marks) + max(apart, 1) - 1

    def block(self, rounds: int) -> int:
        """Return how many rounds are met at a time, though no places are left.

        >>> Plan(kind="log").block(100_000), Plan(kind="sqrt").block(100_000)
        (9, 1)
        """
        return math.ceil(0.5 * math.log2(max(rounds, 2))) if self.kind == "log" else 1


def first_marks(rounds: int, places: int) -> list[int]:
    """Return the carries that the binomial schedule keeps on its first way to the end.

    >>> first_marks(10, 3)
    [0, 4, 7]
    """
    found: list[int] = []
    at = 0
    while at < rounds and len(found) < places:
        found.append(at)
        free = places - len(found)
        if not free or rounds - at < 2:
            break
        at += split(rounds - at, free + 1)
    return found


def split(rounds: int, places: int) -> int:
    """Return after how many of these rounds the next carry is kept, so that the fewest rounds are run again.

    `places` counts that of the start.
    """
    repeats = 1
    while math.comb(places + repeats, places) < rounds:
        repeats += 1
    before = math.comb(places + repeats - 2, places) if repeats > 1 else 0
    behind = math.comb(places - 1 + repeats, places - 1)
    return max(1, before, rounds - behind)


def rewound(marks: list[int], rounds: int, places: int, block: int = 1) -> Iterator[tuple[str, int, int]]:
    """Yield what is done to meet all rounds from the last to the first.

    1. ("load", n, at): the carries are those of mark `n`, at the start of round `at`.
    2. ("go", start, stop): rounds are run again.
    3. ("keep", at, _) and ("take", at, _): the carries at the start of a round are kept, and are those that were kept.
    4. ("drop", at, _): they are not needed any more.
    5. ("meet", start, stop): these rounds are met, with the carries at the start of the first; all carries between fit
       into the places that are left, or it is one block.

    >>> " ".join(f"{what} {at}" for what, at, _ in rewound([0], 4, 2))
    'load 0 go 0 keep 1 go 1 meet 3 take 1 go 1 meet 2 take 1 meet 1 drop 1 load 0 meet 0'
    """
    end = rounds
    for number in range(len(marks) - 1, -1, -1):
        start = marks[number]
        held: list[int] = []
        here = -1  # where the carries are
        while end > start:
            at = held[-1] if held else start
            if here != at:
                yield ("take", at, 0) if held else ("load", number, at)
            left, free = end - at, places - (number + 1) - len(held)
            here = -1
            if left < free + 1 + block:
                yield "meet", at, end
                end = at
                if held:
                    yield "drop", held.pop(), 0
                continue
            blocks = -(-left // block)
            if free < 1:
                last = at + (blocks - 1) * block
                yield "go", at, last
                yield "meet", last, end
                end = last
                continue
            here = at + block * split(blocks, free + 1)
            yield "go", at, here
            yield "keep", here, 0
            held.append(here)
