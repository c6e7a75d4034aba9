"""What engines leave of a GPU for the cache: named, versioned data (``sim/data/launch/memory.yaml``)."""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import Field

from sim.errors import InputError
from sim.launch.tables import read_table
from sim.noun import Noun
from sim.units import Bytes


class BySize(Noun):
    """A default that large GPUs have in another size."""

    small: int
    large: int


class Policy(Noun):
    """One engine's rule in one version."""

    engine: str
    version: str
    source: str
    rule: Literal["utilisation", "static", "free"]
    """``utilisation``: capacity x fraction minus everything else. ``static``: free memory after loading minus
    (1 - fraction) of that before. ``free``: fraction of what is left after a step of the largest size."""
    fraction: float | None
    graphs: Literal["inside", "outside"]
    """Whether captured graphs come out of the fraction or of what is beside it."""
    profile: Literal["batched_tokens", "max_length", "none"]
    """Tokens of the step that measures activations before the cache is sized."""
    batched_tokens: BySize | None = None
    chunked_from: int | None = None
    """With ``max_length``: beyond this length prompts are cut into chunks of ``chunk`` tokens."""
    chunk: int = 512
    sequences: BySize
    large: Bytes
    """GPUs from this capacity on take the large defaults."""
    spread: float = Field(gt=0, lt=1)
    """Half width of the range around the predicted tokens, as a fraction."""


class ChunkByMemory(Noun):
    """SGLang's defaults below a capacity."""

    below: float
    """GiB."""
    chunk: int
    batch: int
    batch_tp4: int
    """From a tensor parallel size of 4 on."""


class StaticReserve(Noun):
    """SGLang's reserve, from which the default of its fraction follows. Figures in MiB but for the floor."""

    source: str
    base: float
    per_token: float
    least_tokens: int
    per_8_ranks: float
    graph_per_sequence: float
    graph_per_sequence_attention_dp: float
    prefill_graphs_latent: float
    floor: Bytes
    floor_from: Bytes
    deepep: float
    by_memory: tuple[ChunkByMemory, ...]


class Shared(Noun):
    """What a rank holds beside weights and cache; sizes in bytes."""

    driver: Bytes
    """What nvidia-smi counts and CUDA does not."""
    driver_source: str
    context: Bytes
    """Libraries and their workspaces."""
    communicators: Bytes
    """With more than one rank."""
    graphs: Bytes
    sampler_bytes: int
    """Per logit of the profiling step."""
    workspace_tokens: int
    index_gather_lengths: int
    fit: str


class Policies(Noun):
    """All policies."""

    policies: tuple[Policy, ...]
    sglang: StaticReserve
    shared: Shared


@cache
def policies() -> Policies:
    """Every policy that ships."""
    return Policies.model_validate(read_table("memory"))


def load_policy(engine: str, version: str | None = None) -> Policy:
    """The policy of an engine, of its newest version unless said.

    Raises
    ------
    InputError
        If there is none of that version; lists them.
    """
    found = [p for p in policies().policies if p.engine == engine]
    for policy in found:
        if policy.version == version:
            return policy
    if version is not None or not found:
        listed = ", ".join(p.version for p in found) or "none"
        raise InputError(f"no memory policy of {engine} {version or ''} is known; versions: {listed}")
    return found[-1]
