"""Writes the files of engines (``sim/data/engines``)."""

from __future__ import annotations

from typing import Any

from sim.engines import ANY, FOLDER

SOURCE = (
    "least squares of log(predicted / measured) over the screened runs of sim/data/truth/end_to_end.csv "
    "(aiconfigurator-core 0.12.0, Apache-2.0)"
)
HEAD = {
    ANY: """\
# What engines make of kernels and collectives, written by bench/engines.py: factors, fractions, seconds. What each
# constant means stands in sim/kernels/constants.py, sim/kernels/routing.py and sim/serving.py. residual, ttft: rows,
# measured over predicted of models left out at the 10th and 90th percentile, mean absolute errors in the fit and out.
# reserved and the memory of recurrence and index are not fitted.
""",
    "trtllm": """\
# What sets TensorRT-LLM apart, written by bench/engines.py. reserved is not fitted: its scheduler's default is
# GUARANTEED_NO_EVICT (TensorRT-LLM documentation, capacity scheduler policy).
""",
    "vllm": "# What sets vLLM apart, written by bench/engines.py.\n",
    "sglang": "# What sets SGLang apart, written by bench/engines.py.\n",
}


def write(raw: dict[str, dict[str, Any]]) -> None:
    """Write all files."""
    for name, data in raw.items():
        data["source"] = SOURCE
        if name == ANY:
            data["kernels"]["source"] = SOURCE
        lines = [f"{key}: {_flow(value)}" if key != "kernels" else _block(key, value) for key, value in data.items()]
        (FOLDER / f"{name}.yaml").write_text(HEAD[name] + "\n".join(lines) + "\n")


def _block(key: str, value: dict[str, Any]) -> str:
    return "\n".join([f"{key}:", *(f"  {name}: {_flow(part)}" for name, part in value.items())])


def _flow(value: Any) -> str:
    """YAML on one line, numbers so that every YAML reader takes them for numbers."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, float):
        text = f"{value:.3g}"
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    return str(value)
