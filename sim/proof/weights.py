"""Random weights, whole and cut: the same seed gives the same model to the ranks and to the reference."""

from __future__ import annotations

import math
import zlib
from typing import Any, NamedTuple

import numpy as np

from sim.cut import Cut
from sim.model import Attention, Layer, Mixer, Model, TensorShape

Array = np.ndarray[Any, np.dtype[np.float64]]
Ranges = tuple[tuple[int, int], ...]

_FAN_IN = {"q": 1, "k": 1, "v": 1, "o": 2, "uk": 1, "uv": 1}


def _contracted(tensor: TensorShape) -> int:
    """How many numbers a product with this weight sums, which keeps activations near 1."""
    sizes = dict(tensor.dims)
    if tensor.name in ("o", "state_o"):
        return tensor.dims[0][1] * sizes["head_dim"]
    if tensor.name.startswith("experts_"):
        return tensor.dims[1][1]
    if tensor.name in ("uk", "uv"):
        return sizes["latent"]
    return sizes["hidden"] if tensor.name in ("embedding", "lm_head") else tensor.dims[0][1]


class Held(NamedTuple):
    """A rank's slice of a weight and the global indices of each dimension."""

    array: Array
    ranges: Ranges


class Weights:
    """Every weight of a small model as float64 arrays, by (layer number, name); layer -1 is outside the layers."""

    def __init__(self, model: Model, seed: int):
        self.model = model
        self.layers: list[Layer] = [layer for count, layer in model.runs for _ in range(count)]
        self.arrays: dict[tuple[int, str], Array] = {}
        self.shapes: dict[tuple[int, str], TensorShape] = {}
        for number in range(-1, len(self.layers)):
            for tensor in model.tensors(self.layers[number] if number >= 0 else None):
                rng = np.random.default_rng([seed, number + 1, zlib.crc32(tensor.name.encode())])
                array = rng.standard_normal([size for _, size in tensor.dims])
                norm = tensor.name.endswith("norm")
                self.arrays[number, tensor.name] = 1 + 0.1 * array if norm else array / math.sqrt(_contracted(tensor))
                self.shapes[number, tensor.name] = tensor

    def attention(self, number: int) -> Attention | None:
        """The attention of a layer."""
        return self.layers[number].attention if number >= 0 else None

    def mixer(self, number: int) -> Mixer | None:
        """The attention of a layer, with a cache or with a state."""
        return self.layers[number].mixer if number >= 0 else None

    def cut(self, cut: Cut, number: int, name: str, rank: int) -> Held | None:
        """The slice that a rank holds, or None if it holds nothing of this weight."""
        tensor = self.shapes[number, name]
        if any(cut.mesh.coordinate(rank, axis) != at for axis, at in cut.holds(tensor)):
            return None
        ranges = tuple(cut.range(cut.dim(role, size, self.mixer(number)), rank) for role, size in tensor.dims)
        array = self.arrays[number, name]
        for axis, ((role, size), (start, count)) in enumerate(zip(tensor.dims, ranges, strict=True)):
            if role == "experts":
                table = cut.slot_table(size)
                array = np.take(array, table[start : start + count], axis=axis)
            else:
                array = np.take(array, range(start, start + count), axis=axis)
        return Held(array, ranges)
