"""Read a model from its Hugging Face ``config.json``, as published.

Every problem of a file is reported at once, and a kind of layer that is not modelled is refused by name:
nothing is silently read as something else.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sim.documents import read_content
from sim.errors import InputError, ModelError, Problem
from sim.explain import read, show
from sim.huggingface.attention import attention_layers, mtp_layers
from sim.huggingface.blocks import searched_layers
from sim.huggingface.families import Family, family, refusals
from sim.huggingface.keys import Keys
from sim.huggingface.linear import linear_attention, linear_layers, mixer_pattern
from sim.huggingface.moe import dense_block, experts_block, ffn_layers, has_experts_beside_ffn
from sim.huggingface.quantisation import read_quantisation
from sim.model import MOST_LAYERS, Layer, LayerRun, Model

_NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
_FROM_WRAPPER = ("quantization_config", "tie_word_embeddings", "vocab_size", "architectures", "model_type")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_VOCAB = ("vocab_size", "padded_vocab_size")
_CONTEXT = ("max_position_embeddings", "max_sequence_length", "max_seq_len", "seq_length", "n_positions")
_MOST_BYTES = 2**24
_OTHER_MODALITIES = {"vision_config": "the vision encoder", "audio_config": "the audio encoder"}


def load_config(path: str | Path) -> Model:
    """Read a ``config.json`` from disk; the model is named after the file, or after its folder.

    Raises
    ------
    ModelError
        If the file cannot be read, is not one JSON object, or is not a model that can be simulated.
    """
    path = Path(path)
    config = _parse(path)
    name = path.parent.name if path.stem == "config" and path.parent.name else path.stem
    try:
        model = read_config(config, name)
    except ModelError as error:
        raise ModelError([p._replace(where=str(path)) for p in error.problems]) from None
    return model.model_copy(update={"source": str(path)})


def read_config(config: dict[str, Any], name: str) -> Model:
    """Turn the content of a ``config.json`` into a model called ``name``.

    Raises
    ------
    ModelError
        With every missing or wrong key, or with every kind of layer that is not modelled.
    """
    if not isinstance(config, dict):
        raise ModelError(Problem(f"a model config must be a JSON object, is {show(config)}"))
    problems: list[Problem] = []
    keys, wrappers = _language_part(config, problems)
    refused = list(refusals(keys.values, keys.prefix))
    if refused:
        raise ModelError(_unique(refused))
    model_type = keys.text("model_type")
    kind = family(keys.values.get("architectures"), model_type, keys.values)
    hidden = keys.number("the width of the residual stream", *_HIDDEN)
    layers = keys.number("the number of layers", *_LAYERS, most=MOST_LAYERS)
    blocks = _layers(keys, kind, hidden, layers)
    vocab = keys.optional(*_VOCAB)
    if vocab is None and not kind.vocab:
        keys.missing("the embedding and the LM head", *_VOCAB)
    settings = {
        "tied_embeddings": keys.flag("tie_word_embeddings", default=kind.tied),
        "max_context": keys.optional(*_CONTEXT),
        "quantisation": (quantisation := read_quantisation(keys)).format,
        "unquantised": quantisation.unquantised,
    }
    notes = [*_notes(keys, kind, wrappers), quantisation.note]
    if vocab is None:
        notes.append(f"vocab_size is absent: {kind.vocab}, the default of {show(model_type)}, is used")
    if problems:
        raise ModelError(_unique(problems))
    fields = {
        "name": name,
        "hidden": hidden,
        "vocab": vocab or kind.vocab,
        "pattern": _runs(blocks),
        "not_modelled": tuple(note for note in notes if note),
    }
    return read(Model, fields | settings, ModelError)


def _language_part(config: dict[str, Any], problems: list[Problem]) -> tuple[Keys, list[dict[str, Any]]]:
    """The keys of the language model, and the wrappers around it from the outside in."""
    wrappers: list[dict[str, Any]] = []
    values, prefix = config, ""
    while nested := next((n for n in _NESTED if values.get(n) is not None and n not in prefix), None):
        inner = Keys(values, problems, prefix).table(nested)
        if inner is None:
            break
        refused = list(refusals(values, prefix))
        if refused:
            raise ModelError(_unique(refused))
        wrappers.append(values)
        values = {k: values[k] for k in _FROM_WRAPPER if k in values} | _present(inner)
        prefix += f"{nested}."
    return Keys(values, problems, prefix), wrappers


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _layers(keys: Keys, kind: Family, hidden: int, layers: int) -> list[Layer]:
    """All layers from first to last; empty if anything is wrong (and noted)."""
    if keys.has("block_configs"):
        if not layers:
            return []
        attention, ffn = searched_layers(keys, kind, hidden, layers)
        is_linear = [False] * layers
    elif (pattern := mixer_pattern(keys, layers)) is not None:
        return _single_blocks(keys, kind, hidden, pattern)
    else:
        is_linear = linear_layers(keys, layers)
        attention = attention_layers(keys, kind, hidden, layers)
        ffn = ffn_layers(keys, kind, hidden, layers)
    linear = linear_attention(keys) if any(is_linear) else None
    extra = kind.extra_norms + (3 if kind.extra_norms and has_experts_beside_ffn(keys) else 0)
    if keys.problems:
        return []
    return [
        Layer(attention=None if state else a, linear=linear if state else None, ffn=f, extra_norms=extra)
        for a, f, state in zip(attention, ffn, is_linear, strict=True)
    ]


def _single_blocks(keys: Keys, kind: Family, hidden: int, pattern: Sequence[str]) -> list[Layer]:
    """Layers with one block each: attention, linear attention, experts or a dense feed-forward block."""
    has = set(pattern)
    attention = attention_layers(keys, kind, hidden, 1) if "attention" in has else []
    linear = linear_attention(keys) if "linear" in has else None
    experts = experts_block(keys, kind) if "moe" in has else None
    dense = dense_block(keys, kind, hidden) if "mlp" in has else None
    if keys.problems:
        return []
    fields: dict[str, dict[str, Any]] = {
        "attention": {"attention": attention[0] if attention else None},
        "linear": {"linear": linear},
        "moe": {"ffn": experts},
        "mlp": {"ffn": dense},
    }
    made = {block: Layer(**fields[block]) for block in dict.fromkeys(pattern)}
    return [made[block] for block in pattern]


def _runs(layers: list[Layer]) -> tuple[LayerRun, ...]:
    return tuple(LayerRun(count=len(list(run)), layer=layer) for layer, run in itertools.groupby(layers))


def _notes(keys: Keys, kind: Family, wrappers: list[dict[str, Any]]) -> list[str]:
    """Sentences about what is left out or assumed."""
    notes = []
    for key, words in _OTHER_MODALITIES.items():
        if any(wrapper.get(key) is not None for wrapper in (*wrappers, keys.values)):
            notes.append(f"{words} ({key}) is left out")
    key, count = mtp_layers(keys)
    if count:
        notes.append(f"the multi-token-prediction layers ({key}: {count}) are left out")
    if keys.has("attn_res_block_size"):
        notes.append("attention over the outputs of earlier blocks (attn_res_block_size) is left out")
    if not kind.known:
        called = show(keys.values["model_type"]) if keys.has("model_type") else "that is not stated"
        notes.append(f"model type {called} is not known: read like Llama, with a gate and without biases")
    return notes


def _unique(problems: Iterable[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))


def _parse(path: Path) -> dict[str, Any]:
    """The JSON object in a file; ``ModelError`` for anything else."""
    where = str(path)
    try:
        raw = read_content(path, "config.json", _MOST_BYTES)
    except InputError as error:
        raise ModelError(error.problems) from None
    if raw.startswith(b"\xef\xbb\xbf"):
        raise ModelError(Problem("starts with a byte-order mark; save it as UTF-8 without one", where=where))
    if not raw.strip():
        raise ModelError(Problem("is empty; a config.json holds one JSON object", where=where))
    repeated: list[str] = []
    try:
        config = json.loads(raw.decode(), object_pairs_hook=lambda pairs: _object(pairs, repeated))
    except json.JSONDecodeError as error:
        place = f"{where}:{error.lineno}:{error.colno}"
        raise ModelError(Problem(f"is not JSON: {error.msg}", where=place)) from None
    except UnicodeDecodeError as error:
        raise ModelError(Problem(f"is not UTF-8 text: byte {error.start} is invalid", where=where)) from None
    except (ValueError, RecursionError):
        message = "holds a number too long, or objects nested too deep, to be a config.json"
        raise ModelError(Problem(message, where=where)) from None
    if repeated:
        raise ModelError([Problem("stands twice in one object", key=k, where=where) for k in dict.fromkeys(repeated)])
    if not isinstance(config, dict):
        raise ModelError(Problem(f"must hold one JSON object, holds {show(config)}", where=where))
    return config


def _object(pairs: list[tuple[str, Any]], repeated: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            repeated.append(key)
        values[key] = value
    return values
