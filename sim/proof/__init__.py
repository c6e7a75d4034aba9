"""Proof by execution: run a layout with real numbers and count what it really holds and sends.

``prove`` runs one layout; ``run`` is the whole procedure, ``instance`` what is scaled down, ``compute`` and
``communicate`` the executable forms of the operations, ``reference`` the unsharded step, ``account`` the bytes.
"""

from sim.proof.result import Proof
from sim.proof.run import prove

__all__ = ["Proof", "prove"]
