"""Proof by execution: run a layout with real numbers and count what it really holds and sends.

``prove`` runs one layout; ``proof`` is the whole procedure, ``instance`` what is scaled down, ``compute`` and
``communicate`` the executable forms of the operations, ``reference`` the unsharded step, ``account`` the bytes.
"""

from sim.prove.proof import prove
from sim.prove.result import Proof

__all__ = ["Proof", "prove"]
