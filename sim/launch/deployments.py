"""Read deployment files: a Dynamo graph, a list of configurations in the form of InferenceX, options of one engine."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.documents import Kind, read_file
from sim.errors import InputError, Problem
from sim.explain import read, show
from sim.launch.command import parse
from sim.launch.gather import Gathered, from_mapping
from sim.launch.settings import EngineKey, Settings

_KIND = Kind("launch file", "tensor-parallel-size, or services of a deployment")
_FORMATS = {"fp4": "nvfp4", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "fp8": "fp8", "int4": "int4_g32"}
MOST = 500
"""Instances of one file."""


def parse_file(path: Path, engine: EngineKey | None = None) -> list[Settings]:
    """Read every instance that a deployment file starts, each with its role.

    Parameters
    ----------
    engine
        Whose options the file holds, where it does not say so itself.

    Raises
    ------
    InputError
        With every problem, with ``file:line:col`` where the file is YAML.
    """
    document = read_file(path, _KIND)
    data = document.data
    if document.problems:
        raise InputError(document.problems)
    try:
        if str(data.get("kind", "")).startswith("DynamoGraphDeployment"):
            found = list(_dynamo(data))
        elif any(isinstance(v, dict) and "framework" in v for v in data.values()):
            found = list(_inferencex(data))
        else:
            found = [_options(data, engine)]
    except InputError as error:
        raise InputError([document.place(p) for p in error.problems]) from None
    if not found or len(found) > MOST:
        raise InputError(Problem(f"starts {len(found)} instances of engines; from 1 to {MOST} can be read"))
    return found


def _options(data: dict[str, Any], engine: EngineKey | None) -> Settings:
    """Options of one engine: vLLM writes its keys with dashes, TensorRT-LLM with underscores."""
    if engine is None:
        engine = "vllm" if any("-" in str(key) for key in data) else "trtllm"
    gathered = Gathered(engine)
    from_mapping(gathered, data)
    return gathered.settings()


def _dynamo(data: dict[str, Any]) -> Iterator[Settings]:
    """One instance for each service whose container starts an engine."""
    spec = data.get("spec")
    services = spec.get("services") if isinstance(spec, dict) else None
    if not isinstance(services, dict):
        raise InputError(Problem("a Dynamo deployment has services under spec", "spec"))
    for name, service in services.items():
        container = service
        for key in ("extraPodSpec", "mainContainer"):
            container = container.get(key, {}) if isinstance(container, dict) else {}
        said = [container.get(key, []) for key in ("command", "args")] if isinstance(container, dict) else []
        words = [str(word) for part in said for word in (part if isinstance(part, list) else [part])]
        if words[:2] in (["/bin/sh", "-c"], ["bash", "-c"], ["sh", "-c"], ["/bin/bash", "-c"]):
            words = shlex.split(words[2]) if len(words) > 2 else []
        if not words:
            continue
        try:
            yield parse(shlex.join(words)).model_copy(update={"role": name})
        except InputError as error:
            key = f"spec.services.{name}"
            raise InputError(
                [p._replace(message=f"{p.key} {p.message}".strip(), key=key) for p in error.problems]
            ) from None


def _inferencex(data: dict[str, Any]) -> Iterator[Settings]:
    """One instance for each point of a search space, or for each of its roles."""
    for name, entry in data.items():
        if not isinstance(entry, dict):
            continue
        framework = str(entry.get("framework", ""))
        engine = next(
            (e for e, word in (("vllm", "vllm"), ("sglang", "sglang"), ("trtllm", "trt")) if word in framework), ""
        )
        if not engine:
            raise InputError(
                Problem(f"framework {show(framework)} is not an engine that is known", f"{name}.framework")
            )
        scenarios = entry.get("scenarios")
        every = list(scenarios.values()) if isinstance(scenarios, dict) else []
        for points in (case for cases in every if isinstance(cases, list) for case in cases if isinstance(case, dict)):
            space = points.get("search-space")
            for point in space if isinstance(space, list) else []:
                if not isinstance(point, dict):
                    raise InputError(Problem(f"a point must be keys such as tp, not {show(point)}", str(name)))
                roles = {role: point[role] for role in ("prefill", "decode") if isinstance(point.get(role), dict)}
                for role, degrees in (roles or {"": point}).items():
                    yield _point(engine, entry, degrees, role, str(name))


def _point(engine: str, entry: dict[str, Any], point: dict[str, Any], role: str, name: str) -> Settings:
    tp, ep, attention_dp = point.get("tp", 1), point.get("ep", 1), bool(point.get("dp-attn", False))
    fields: dict[str, Any] = {
        "tp": tp,
        "pp": point.get("pp", 1),
        "dcp": point.get("dcp-size", 1),
        "pcp": point.get("pcp-size", 1),
    }
    if engine == "vllm":
        fields |= {"expert_parallel": ep not in (1, None)} | ({"tp": 1, "dp": tp} if attention_dp else {})
    else:
        fields |= {"ep": ep, "attention_dp": attention_dp} | ({"dp": tp} if attention_dp and engine == "sglang" else {})
    fmt = _FORMATS.get(str(entry.get("precision")))
    model = entry.get("model")
    suffix = {"nvfp4": "-NVFP4", "fp8": "-FP8"}.get(fmt or "", "")
    model = f"{model}{suffix}" if isinstance(model, str) and suffix.lower() not in model.lower() else model
    try:
        return read(Settings, {"engine": engine, "model": model, "role": role, **fields})
    except InputError as error:
        raise InputError([p._replace(message=f"{p.key} {p.message}", key=name) for p in error.problems]) from None
