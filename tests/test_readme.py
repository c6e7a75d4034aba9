"""The README's own code runs, and what it says of errors is what happens."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from sim import compare, load, parse_scenario, simulate
from sim.catalog.topologies import parse_topology
from sim.cut import Cut
from sim.errors import ProgramError
from sim.lower import lower
from sim.render.table import render
from sim.testing import SAMPLE_MODELS

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def readme(tmp_path_factory):
    """The README's Python as one module, with what it prints."""
    path = tmp_path_factory.mktemp("readme") / "readme_code.py"
    path.write_text("\n".join(BLOCKS), "utf-8")
    spec = importlib.util.spec_from_file_location("readme_code", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["readme_code"] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules["readme_code"]


def test_its_study_prices_layouts_and_points(readme):
    assert len(BLOCKS) == 5
    assert readme.report.tag == "tp8-dcp2"
    assert readme.report.kv.duplication == 1.0
    assert list(readme.points.batch) == [1, 8, 64]
    assert list(readme.points.seconds) == sorted(readme.points.seconds)
    assert readme.exchange.message == 8e6
    assert 0 < readme.exchange.seconds < 1e-3


def test_its_strategy_forgetting_the_exchange_fails_as_it_says(readme):
    from sim import mixers

    class Forgets(readme.SharedTokens):
        kind = "forgets"

        def attention(self, b, x):
            return mixers.output(b, mixers.attend(b, mixers.query(b, x)))

    with pytest.raises(ProgramError) as error:
        lower(SAMPLE_MODELS["gqa"], Forgets(ranks=4), "decode")
    quoted = re.search(r"type-check: \*(.*?)\*", README, re.DOTALL).group(1)
    assert str(error.value) == " ".join(quoted.split())


def test_its_strategy_holds_every_token_once(readme):
    cut = readme.SharedTokens(ranks=4).cut(SAMPLE_MODELS["gqa"])
    assert isinstance(cut, Cut)
    assert [cut.ownership.held(10, 4, r) for r in range(4)] == [3, 3, 2, 2]


def test_its_picture_is_what_the_command_prints():
    shown = re.search(r"```text\n(.*?)```", README, re.DOTALL).group(1).splitlines()
    printed = render(compare(load("qwen3_235b_8xh200")), 120).splitlines()
    assert len(shown) > 15
    assert [line for line in shown if line not in printed] == []


def test_its_two_commands_are_the_ones_that_ci_runs():
    assert len(re.findall(r"^python3 -m venv ", README, re.MULTILINE)) == 2


def test_its_yaml_of_machines_is_read_and_runs():
    yaml = YAML(typ="safe", pure=True)
    base, conditions, cluster = (yaml.load(block) for block in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL))
    scenario = parse_scenario(base | conditions)
    assert scenario.conditions.engine == "sglang"
    assert "tree" in simulate(scenario, scenario.layouts[1]).collectives["ffn.all_reduce"]
    assert parse_topology(cluster["topology"]).gpu_count == 128
