"""Rings over GPUs that are linked directly: which orders use the links well, as a collective library searches
them.
 On a switch any order is as good. On a cube mesh the rank order crosses pairs that have no link; its double
links form one ring through all 8 GPUs and its single links another, and both together use every link there
is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_MOST_RANKS = 16  # the search is exponential in the worst case; boards without switches are small


def best_rings(width: Mapping[tuple[int, int], float], ranks: Sequence[int]) -> list[tuple[list[int], float]]:
    """Take ring after ring through all ``ranks``, the widest first, until the links that are left form none.

    Parameters
    ----------
    width
        How many links join two ranks directly, by ``(from, to)``, the same in both directions.

    Returns
    -------
    list of (order, part)
        Each ring and the part of the data that goes around it, in proportion to its narrowest place. Empty if
        there is none.
    """
    if not 3 <= len(ranks) <= _MOST_RANKS:
        return []
    left = dict(width)
    found: list[tuple[list[int], float]] = []
    while True:
        for narrowest in sorted(set(left.values()), reverse=True):
            if order := _ring_over({link for link, w in left.items() if w >= narrowest}, ranks):
                break
        else:
            break
        found.append((order, narrowest))
        for a, b in zip(order, [*order[1:], order[0]], strict=True):
            for link in ((a, b), (b, a)):
                left[link] -= narrowest
                if left[link] <= 1e-9 * width[link]:
                    del left[link]
    total = sum(w for _, w in found)
    return [(order, w / total) for order, w in found]


def _ring_over(links: set[tuple[int, int]], ranks: Sequence[int]) -> list[int] | None:
    """Return the first ring (in rank order) through all ranks that uses only ``links``, if there is one."""
    stack = [[ranks[0]]]
    while stack:
        path = stack.pop()
        if len(path) == len(ranks):
            if (path[-1], path[0]) in links:
                return path
            continue
        stack.extend([*path, r] for r in reversed(ranks) if r not in path and (path[-1], r) in links)
    return None
