"""The catalogue: published parameter totals, cache sizes, and what a wrong name or file says."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.catalog.models import load_model, model_names
from sim.catalog.strategies import load_strategy
from sim.errors import ModelError
from sim.formats import FORMATS
from sim.huggingface.config import read_config
from sim.lane import Lane
from sim.placement import Placement
from sim.workload import Precision, Workload

CONFIGS = Path(__file__).parent / "data" / "configs"

# Totals that the publishers' weight files add up to, without multi-token-prediction layers, vision parts and
# quantisation scales. 8x22B: 140,630,071,296 is the instruct version, whose vocabulary has 768 entries more.
PUBLISHED = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mixtral-8x7b-v0.1": 46_702_792_704,
    "mixtral-8x22b-v0.1": 140_630_071_296 - 2 * 768 * 6144,
    "mistral-large-instruct-2407": 122_610_069_504,
    "qwen2.5-7b-instruct": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-coder-480b-a35b-instruct": 480_154_875_392,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "gemma-3-27b-it": 27_009_346_304,
    "deepseek-v3": 671_026_419_200,
    "deepseek-r1": 671_026_419_200,
    "qwen3-14b": 14_768_307_200,
    "qwen3-next-80b-a3b": 79_674_391_296,
    # BF16 weights without the MTP part, and 512 routing biases in 32 bit for each of 40 layers
    "nemotron-3-super-120b-a12b": 123_611_012_096 - 2_942_324_736 + 40 * 512,
}
# With a multi-token-prediction layer: a MoE layer, a 2h x h projection, three norms, two vocabulary tables.
PUBLISHED_WITH_MTP = {
    "deepseek-v3": 684_489_845_504,
    "deepseek-r1": 684_489_845_504,
    "glm-4.5": 358_337_776_896 + 14_400,  # router biases are in 32 bit
    "glm-4.5-air": 110_468_824_832,
}
# With the vision encoder, which is the same in both.
PUBLISHED_WITH_VISION = {
    "llama-4-scout-17b-16e-instruct": 108_641_793_536,
    "llama-4-maverick-17b-128e-instruct": 401_583_781_376,
}
LLAMA_4_VISION = 871_932_416
# The size in the name or on the model card, in billions.
MARKETING = {
    "gemma-4-26b-a4b": 25.2,
    "glm-5": 744,
    "kimi-k2-instruct": 1026,
    "kimi-k2.5": 1026,
    "mimo-v2-flash": 309,
    "nemotron-3-nano-30b-a3b": 31.6,
    "nemotron-h-56b-base-8k": 56.3,
    "deepseek-v3.2": 672,
    "glm-5.1": 744,
    "glm-5.2": 743,
    "kimi-k3": 2777,
    "qwen3.5-27b": 27,
    "qwen3.5-35b-a3b": 35,
    "qwen3.5-122b-a10b": 122,
    "qwen3.5-397b-a17b": 397,
    "minimax-m2": 229,
    "minimax-m2.5": 229,
    "minimax-m2.7": 229,
    "step-3.7-flash": 196,
}
# 2 bytes x layers x cached heads x (K + V). One geometry for all layers would give 245,760 for Gemma-4, whose
# five global layers have 2 heads of 512 instead of 8 of 256 (one projection for K and V, but both are cached:
# only K is rotated). MiMo-V2 has 9 layers of 4 heads and 39 of 8.
KV_BYTES_PER_TOKEN = {
    "deepseek-r1": 70_272,
    "deepseek-v3": 70_272,
    "gemma-3-27b-it": 507_904,
    "gemma-4-26b-a4b": 2 * (25 * 2 * 8 * 256 + 5 * 2 * 2 * 512),
    "glm-4.5": 376_832,
    "glm-4.5-air": 188_416,
    "deepseek-v3.2": 78_324,
    "glm-5.1": 100_152,
    "glm-5.2": 78 * 2 * 576 + 21 * 132,  # 57 layers use the tokens that a layer before them picked
    "kimi-k3": 27_648,
    "nemotron-3-super-120b-a12b": 8_192,
    "nemotron-h-56b-base-8k": 40_960,
    "qwen3-next-80b-a3b": 24_576,
    "qwen3.5-122b-a10b": 24_576,
    "qwen3.5-27b": 65_536,
    "qwen3.5-35b-a3b": 20_480,
    "glm-5": 78 * (2 * 576 + 132),  # 128 fp8 elements and a 32-bit scale are the index key of a token
    "gpt-oss-120b": 73_728,
    "gpt-oss-20b": 49_152,
    "helix-figure-1": 2 * 8 * 2 * 128,
    "kimi-k2-instruct": 70_272,
    "kimi-k2.5": 70_272,
    "llama-3.1-405b": 516_096,
    "llama-3.1-70b": 327_680,
    "llama-3.1-8b": 131_072,
    "llama-3.3-70b": 327_680,
    "llama-4-maverick-17b-128e-instruct": 196_608,
    "llama-4-scout-17b-16e-instruct": 196_608,
    "mimo-v2-flash": 2 * (9 * 4 + 39 * 8) * (192 + 128),
    "minimax-m2": 253_952,
    "minimax-m2.5": 253_952,
    "minimax-m2.7": 253_952,
    "minimax-m3": 122_880,
    "mistral-large-instruct-2407": 360_448,
    "nemotron-3-nano-30b-a3b": 6_144,
    "mixtral-8x22b-v0.1": 229_376,
    "mixtral-8x7b-v0.1": 131_072,
    "qwen2.5-72b": 327_680,
    "qwen2.5-7b-instruct": 57_344,
    "qwen3-0.6b": 114_688,
    "qwen3-14b": 163_840,
    "qwen3-235b-a22b": 192_512,
    "qwen3-30b-a3b": 98_304,
    "qwen3-32b": 262_144,
    "qwen3-8b": 147_456,
    "qwen3-coder-480b-a35b-instruct": 253_952,
    "qwen3.5-397b-a17b": 30_720,
    "step-3.7-flash": 184_320,
}


def kv_bytes(model):
    return sum(
        count * (2 * layer.attention.cached_heads * layer.attention.cache_elements + layer.attention.index_bytes)
        for count, layer in model.runs
        if layer.attention
    )


@pytest.mark.parametrize(("name", "total"), PUBLISHED.items())
def test_parameters_equal_the_published_total(name, total):
    assert load_model(name).parameters == total


@pytest.mark.parametrize(("name", "total"), PUBLISHED_WITH_MTP.items())
def test_parameters_equal_the_published_total_less_the_prediction_layer(name, total):
    model = load_model(name)
    _, last = model.runs[-1]
    layer = sum(t.elements for t in last.tensors(model.hidden))
    around = model.hidden * (2 * model.hidden + 3 + 2 * model.vocab)
    assert model.parameters + layer + around == total


@pytest.mark.parametrize(("name", "total"), PUBLISHED_WITH_VISION.items())
def test_parameters_equal_the_published_total_less_the_vision_encoder(name, total):
    assert load_model(name).parameters + LLAMA_4_VISION == total


@pytest.mark.parametrize(("name", "billions"), MARKETING.items())
def test_parameters_are_within_one_percent_of_the_announced_size(name, billions):
    assert load_model(name).parameters == pytest.approx(billions * 1e9, rel=0.01)


@pytest.mark.parametrize(("name", "expected"), KV_BYTES_PER_TOKEN.items())
def test_cache_bytes_per_token_in_bf16(name, expected):
    assert kv_bytes(load_model(name)) == expected


def test_every_model_has_its_total_and_its_cache_checked():
    unpublished = {"helix-figure-1", "minimax-m3"}
    published = PUBLISHED | PUBLISHED_WITH_MTP | PUBLISHED_WITH_VISION | MARKETING
    assert set(model_names()) == set(published) | unpublished
    assert set(model_names()) == set(KV_BYTES_PER_TOKEN)


@pytest.mark.parametrize("name", model_names())
def test_every_model_carries_its_name_its_source_and_a_known_format(name):
    model = load_model(name)
    assert model.name == name
    assert model.source.startswith("https://")
    assert model.quantisation is None or model.quantisation in FORMATS


# The catalogue and the published config of the same model must agree in every layer.
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("llama-3.1-70b", "Llama-3.1-70B"),
        ("llama-3.1-405b", "Llama-3.1-405B"),
        ("qwen3-32b", "Qwen3-32B"),
        ("qwen3-235b-a22b", "Qwen3-235B-A22B-mislabelled"),
        ("qwen3-235b-a22b", "Qwen3-VL-235B"),
        ("qwen2.5-7b-instruct", "Qwen2.5-VL-7B"),
        ("mixtral-8x7b-v0.1", "Mixtral-8x7B"),
        ("deepseek-r1", "DeepSeek-R1"),
        ("kimi-k2-instruct", "Kimi-K2-Instruct"),
        ("llama-4-scout-17b-16e-instruct", "Llama-4-Scout"),
        ("llama-4-maverick-17b-128e-instruct", "Llama-4-Maverick"),
        ("gemma-4-26b-a4b", "Gemma-4-26B-A4B"),
    ],
)
def test_catalogue_and_published_config_agree_layer_by_layer(name, file):
    config = json.loads((CONFIGS / f"{file}.json").read_text())
    read, shipped = read_config(config, name), load_model(name)
    assert read.runs == shipped.runs
    assert (read.hidden, read.vocab, read.tied_embeddings) == (
        shipped.hidden,
        shipped.vocab,
        shipped.tied_embeddings,
    )


def test_the_sparse_layers_of_minimax_m3_are_said_to_be_counted_dense():
    assert any("counted dense" in note for note in load_model("minimax-m3").not_modelled)


def test_gpt_oss_keeps_attention_in_16_bit():
    assert load_model("gpt-oss-120b").unquantised == ("attention",)


OPENED = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from sim.catalog.models import load_model
load_model("qwen3-8b")
print(*[path for path in opened if path.endswith(".yaml")])
"""


def test_only_the_file_asked_for_is_opened():
    done = subprocess.run([sys.executable, "-c", OPENED], capture_output=True, text=True, check=True)
    assert [Path(path).name for path in done.stdout.split()] == ["qwen3-8b.yaml"]


@pytest.mark.parametrize("name", ["LLAMA-3.1-8B", "Llama-3.1-8b"])
def test_names_do_not_depend_on_case(name):
    assert load_model(name).name == "llama-3.1-8b"


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("llama-3.1-8", "llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-r1"),
        ("qwen3-235b", "qwen3-235b-a22b"),
    ],
)
def test_an_unknown_name_suggests_the_nearest_and_how_to_import(wrong, hint):
    with pytest.raises(ModelError, match=hint) as caught:
        load_model(wrong)
    assert "config.json" in str(caught.value)


def test_a_name_like_no_other_still_says_how_to_import():
    with pytest.raises(ModelError, match=r"not in the catalogue; a path to a Hugging Face config\.json"):
        load_model("zzzzzzzz")


@pytest.mark.parametrize("name", ["", ".", "..", "../models/qwen3-8b", "a\0b", "x" * 5000])
def test_odd_names_are_model_errors(name, tmp_path):
    with pytest.raises(ModelError):
        load_model(name, base=tmp_path)


def test_a_config_a_folder_and_a_yaml_are_found_from_the_base_folder(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text((CONFIGS / "Qwen3-32B.json").read_text())
    text = "name: mine\nhidden: 64\nvocab: 10\npattern:\n- count: 2\n  layer:\n    attention: null\n"
    (tmp_path / "mine.yaml").write_text(text + "    ffn: {kind: dense, width: 8}\n")
    assert load_model("my-model", base=tmp_path).name == "my-model"
    assert load_model("my-model/config.json", base=tmp_path).layers == 64
    assert load_model("mine.yaml", base=tmp_path).layers == 2
    assert load_model(str(tmp_path / "mine.yaml")).name == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", r"m\.yaml:1:8: a value is missing, or a bracket closes what was never opened"),
        ("a: 1\na: 2\n", r"m\.yaml:2:1: a: is written twice; first on line 1"),
        ("- 1\n", r"m\.yaml:1:1: must hold keys such as name, hidden, vocab and pattern, not a list"),
        ("", r"m\.yaml: is empty; a model has keys such as name, hidden, vocab and pattern"),
        ("name: x\nhidden: 0\nvocab: 3\npattern: []\n", r"m\.yaml:2:1: hidden: must be at least 1, not 0"),
        ("name: x\nhidden: 1\nvocab: 3\n", r"m\.yaml:1:1: pattern: is missing; needed: name, hidden, vocab, pattern"),
        (
            "name: x\nheads: 8\n",
            r"m\.yaml:2:1: heads: unknown key 'heads'; did you mean 'head'\? known keys: name, hf_id",
        ),
        ("name: !!python/object:os.system x\n", r"m\.yaml:1:7: name: the tag !!python/object:os\.system is not read"),
    ],
)
def test_a_wrong_yaml_says_where_and_which_rule(text, message, tmp_path):
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(ModelError, match=message):
        load_model("m.yaml", base=tmp_path)


@pytest.mark.parametrize("name", ["gone.yaml", "gone.json", "gone/config.json", "folder.yaml"])
def test_a_path_that_leads_nowhere_is_named(name, tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ModelError, match=name):
        load_model(name, base=tmp_path)


def test_bytes_that_are_no_text_are_a_model_error(tmp_path):
    (tmp_path / "m.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match=r"m\.yaml:1:1: is not UTF-8 text \(byte 0xff\)"):
        load_model("m.yaml", base=tmp_path)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_is_a_model_or_a_model_error(text, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(ModelError):
        load_model(str(path))


@settings(max_examples=100, deadline=None)
@given(name=st.text(max_size=40))
def test_any_name_is_a_model_or_a_model_error(name):
    with contextlib.suppress(ModelError):
        load_model(name, base=CONFIGS)


LAYOUTS = [
    *[("tp", {"tp": tp}) for tp in (1, 2, 4, 8, 16)],
    *[("attention_dp", {"dp": 2, "tp": tp}) for tp in (1, 4)],
    *[("dcp", {"tp": 8, "dcp": dcp}) for dcp in (2, 8)],
    ("kvp", {"kvp": 2, "tp": 4}),
    ("helix", {"tpa": 2, "kvp": 4}),
    ("wide_ep", {"dp": 8, "ep": 8}),
]


@pytest.mark.parametrize("name", model_names())
def test_every_model_is_placed_by_every_strategy_or_refused_with_a_reason(name):
    model = load_model(name)
    placed = 0
    for kind, degrees in LAYOUTS:
        strategy = load_strategy(kind)(**degrees)
        if refused := strategy.check(model):
            assert all(problem.message for problem in refused)
            continue
        placement = Placement(model, strategy, Precision())
        work = Workload(batch=8, context=1000)
        lanes = [Lane(r, placement.cut, work.sequences, Precision()) for r in range(placement.cut.mesh.size)]
        held = sum(placement.kv_bytes(0, lane) for lane in lanes)
        assert held >= placement.unique_kv_bytes(work.sequences) > 0
        weights = sum(sum(placement.weights(0, lane.rank).values()) for lane in lanes)
        assert weights >= placement.unique_weight_bytes
        placed += 1
    assert placed >= 3
