"""What publishers call models and GPUs, and what the catalogue calls them (``sim/data/truth/names.yaml``)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ruamel.yaml import YAML

from sim.errors import InputError
from sim.noun import Noun
from sim.tensors import Part

SHIPPED = Path(__file__).parent.parent / "data" / "truth"


class Names(Noun):
    """Entries of the catalogue by published name."""

    models: dict[str, str]
    unquantised: dict[str, tuple[Part, ...]]
    """Parts that a published checkpoint leaves in 16 bit."""
    caches: dict[str, tuple[tuple[int, ...], ...]]
    """(layers, KV heads, head dimension, window or nothing) of models of which only the cache is known."""
    draft_heads: dict[str, str]
    """Models with a multi-token-prediction head, and what has the same shape."""
    machines: dict[str, tuple[str, str]]
    """GPU and topology."""

    def model(self, published: str) -> str:
        """Catalogue name of a model. Raises ``InputError`` if nothing in the catalogue has its shape."""
        if published not in self.models:
            raise InputError(f"the catalogue has no model of the shape of {published!r}")
        return self.models[published]

    def drafts(self, published: str) -> str:
        """Shape of a model that can draft its own tokens; empty for one that cannot."""
        return self.draft_heads.get(self.models.get(published, ""), "")

    def machine(self, published: str) -> tuple[str, str]:
        """GPU and topology. Raises ``InputError`` if the catalogue does not have the GPU."""
        if published not in self.machines:
            raise InputError(f"the catalogue does not have the GPU {published!r}")
        return self.machines[published]


@cache
def names() -> Names:
    """The shipped names."""
    return Names.model_validate(YAML(typ="safe", pure=True).load(SHIPPED / "names.yaml"))
