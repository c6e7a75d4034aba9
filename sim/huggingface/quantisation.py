"""The format a checkpoint ships its linear weights in, read from ``quantization_config``."""

from __future__ import annotations

from typing import Any, NamedTuple

from sim.explain import show
from sim.huggingface.keys import Keys, is_whole
from sim.model import Part

_INTEGER = {4: "int4", 8: "int8"}
_NAMED = {
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "mxfp8": "mxfp8",
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "int8": "int8",
}
_UNQUANTISED: dict[Part, tuple[str, ...]] = {
    "attention": ("attn", "attention"),
    "shared_experts": ("shared_expert",),
    "dense_ffn": ("mlp\\.(gate|up",),
}


class Quantisation(NamedTuple):
    """The format (``None``: 16 bit), the parts it leaves out, and a sentence if it could not be read."""

    format: str | None = None
    unquantised: tuple[Part, ...] = ()
    note: str = ""


def read_quantisation(keys: Keys) -> Quantisation:
    """Read ``quantization_config``; what is no object is a problem (noted), an unknown method a note."""
    config = keys.table("quantization_config")
    if config is None:
        return Quantisation()
    found = _format(config)
    if found is None:
        method = show(config.get("quant_algo") or config.get("quant_method"))
        return Quantisation(note=f"the checkpoint's quantisation {method} is not known; weights count as 16 bit")
    return Quantisation(found, _left_out(config))


def _format(config: dict[str, Any]) -> str | None:
    method = _word(config, "quant_method")
    algorithm = _word(config, "quant_algo")
    if method in ("gptq", "awq", "auto-round", "gptq_marlin", "awq_marlin", "auto_round"):
        return _integer(config.get("bits", config.get("w_bit", 4)))
    if method == "bitsandbytes":
        return "int4" if config.get("load_in_4bit") is True else "int8"
    if algorithm == "mixed_precision":
        return None
    if algorithm.startswith(("nvfp4", "w4a16_nvfp4")):
        return "nvfp4"
    if algorithm.startswith("fp8"):
        return "fp8_block" if "block" in algorithm or config.get("weight_block_size") else "fp8"
    if algorithm.startswith(("w4a16", "w4a8")):
        return "int4"
    if method == "fp8" and config.get("weight_block_size"):
        return "fp8_block"
    return _NAMED.get(algorithm) or _NAMED.get(method) or _of_groups(config)


def _of_groups(config: dict[str, Any]) -> str | None:
    """compressed-tensors: the first group speaks for all linear layers."""
    groups = config.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    if not isinstance(group, dict):
        return None
    packing = _word(group, "format") or _word(config, "format")
    for name in ("mxfp4", "nvfp4", "mxfp8"):
        if packing.startswith(name):
            return name
    weights = group.get("weights")
    if not isinstance(weights, dict):
        return None
    if _word(weights, "type") == "int":
        return _integer(weights.get("num_bits"))
    return _float_format(weights)


def _float_format(weights: dict[str, Any]) -> str | None:
    bits, group_size = weights.get("num_bits"), weights.get("group_size")
    if bits == 4:
        return {16: "nvfp4", 32: "mxfp4"}.get(group_size) if isinstance(group_size, int) else None
    if bits == 8:
        return {"block": "fp8_block", "group": "fp8_group"}.get(_word(weights, "strategy"), "fp8")
    return None


def _integer(bits: Any) -> str | None:
    return _INTEGER.get(bits) if is_whole(bits, 1) else None


def _word(values: dict[str, Any], key: str) -> str:
    value = values.get(key)
    return value.lower() if isinstance(value, str) else ""


def _left_out(config: dict[str, Any]) -> tuple[Part, ...]:
    """Parts whose linear weights stay in 16 bit, by the names that the checkpoint lists."""
    for key in ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules"):
        names = config.get(key)
        if isinstance(names, list):
            text = "\n".join(name for name in names if isinstance(name, str))
            return tuple(part for part, words in _UNQUANTISED.items() if any(word in text for word in words))
    return ()
