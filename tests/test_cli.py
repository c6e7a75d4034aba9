"""The command line as a user meets it: output, exit codes, files, and what happens when it is cut short."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sim.run
from sim import __version__
from sim.catalog.models import load_model
from sim.catalog.scenarios import scenario_names
from sim.cli.app import execute
from sim.errors import FloorError

SHIPPED = "qwen3_235b_8xh200"
TAGS = ["tp8", "dp8-ep8"]
SMALL = """\
name: two layouts
model: qwen3-235b-a22b
gpu: h200-sxm
workload: {batch: 8, context: 4k}
layouts:
  - {strategy: tp, tp: 8}
  - {strategy: attention_dp, dp: 8, ep: 8}
"""
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A small scenario in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SMALL)
    return tmp_path


def shardwise(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "sim", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


def test_compare_prints_the_table(small, capsys):
    assert execute(["compare", "s.yaml"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("two layouts\nqwen3-235b-a22b · h200-sxm on hgx-8 · decode of 8 × context 4k")
    assert [line.split()[0] for line in out.splitlines() if line.startswith(tuple(TAGS))] == TAGS
    assert "Not modelled" in out


def test_compare_json_keeps_the_promised_keys(small, capsys):
    assert execute(["compare", "s.yaml", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {"scenario", "version", "layouts", "not_modelled"} <= report.keys()
    layout = report["layouts"][0]
    assert {
        "tag",
        "strategy",
        "gpus",
        "feasible",
        "reasons",
        "tokens_per_s_per_user",
        "output_tokens_per_s_per_gpu",
        "ranks",
    } <= layout.keys()
    kv = {"duplication", "unique_bytes", "held_bytes", "bytes_per_token_per_rank", "heads_per_rank"}
    assert kv <= layout["kv"].keys()
    assert {"duplication", "bytes_per_rank"} <= layout["weights"].keys()
    memory = ["capacity", "weights", "kv", "activations", "communication", "reserve", "total"]
    assert {*(f"{part}_bytes" for part in memory), "max_batch", "max_context"} <= layout["memory"].keys()
    step = {"seconds", "floor_seconds", "breakdown", "causes", "exposed_communication_seconds", "bottleneck"}
    assert step <= layout["step"].keys()


def test_compare_csv_has_one_row_per_layout(small, capsys):
    assert execute(["compare", "s.yaml", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["tag"] for row in rows] == TAGS
    assert float(rows[0]["kv.duplication"]) == 2.0
    assert float(rows[0]["step.seconds"]) > float(rows[0]["step.floor_seconds"])


def test_the_same_scenario_gives_the_same_bytes_at_both_granularities(small, capsys):
    outputs = []
    for granularity in ("folded", "folded", "ranks"):
        assert execute(["compare", "s.yaml", "--json", "--granularity", granularity]) == 0
        outputs.append(json.loads(capsys.readouterr().out))
    assert outputs[0] == outputs[1]
    seconds = [[layout["step"]["seconds"] for layout in output["layouts"]] for output in outputs]
    assert seconds[2] == pytest.approx(seconds[0], rel=1e-9)
    assert outputs[2]["resolved"]["granularity"] == "ranks"


def test_run_shows_one_layout(small, capsys):
    assert execute(["run", "s.yaml", "--layout", "dp8-ep8"]) == 0
    out = capsys.readouterr().out
    assert "dp8-ep8: attention_dp on 8 GPUs" in out
    for title in ("Memory of the fullest rank", "Time of one step", "Ranks, equal ones", "Constants and their"):
        assert title in out
    assert "tp8:" not in out


def test_run_with_an_unknown_tag_lists_the_tags(small, capsys):
    assert execute(["run", "s.yaml", "--layout", "tp9"]) == 2
    assert capsys.readouterr().err == "no layout has the tag 'tp9'; choose one of tp8, dp8-ep8\n"


def test_out_writes_four_files_that_reproduce_the_answer(small, capsys):
    assert execute(["compare", "s.yaml", "--json", "--out", "results/a"]) == 0
    printed = capsys.readouterr()
    folder = small / "results" / "a"
    assert sorted(os.listdir(folder)) == ["report.csv", "report.json", "scenario.yaml", "version.txt"]
    assert (folder / "report.json").read_text() == printed.out
    assert (folder / "version.txt").read_text() == f"shardwise {__version__}\n"
    assert printed.err.startswith(f"wrote {Path('results/a/report.json')}, ")
    assert execute(["compare", "results/a/scenario.yaml", "--json"]) == 0
    assert capsys.readouterr().out == printed.out


def test_out_leaves_nothing_behind_when_it_fails(small, capsys):
    (small / "results" / "version.txt").mkdir(parents=True)
    assert execute(["compare", "s.yaml", "--out", "results"]) == 2
    assert capsys.readouterr().err == "results: cannot be written: version.txt is a folder\n"
    assert os.listdir(small / "results") == ["version.txt"]


def test_a_wrong_scenario_writes_nothing(small, capsys):
    (small / "s.yaml").write_text(SMALL + "x: 1\n")
    assert execute(["compare", "s.yaml", "--out", "results"]) == 2
    assert capsys.readouterr().out == ""
    assert not (small / "results").exists()


def test_check_reports_good_and_bad_files_together(small, capsys):
    (small / "bad.yaml").write_text("a: [\n")
    assert execute(["check", "s.yaml", "bad.yaml", "gone.yaml"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "s.yaml: ok, 2 layouts: tp8, dp8-ep8\n"
    assert [line.partition(": ")[0] for line in printed.err.splitlines()] == ["bad.yaml:2:1", "gone.yaml"]


def test_shipped_scenarios_are_known_by_their_bare_names(capsys):
    assert execute(["check", *scenario_names()]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(scenario_names())


def test_an_unknown_bare_name_lists_what_ships(capsys):
    assert execute(["compare", "qwen3_235b"]) == 2
    assert capsys.readouterr().err == (
        f"qwen3_235b: is neither a file nor a shipped scenario; did you mean '{SHIPPED}'? "
        f"shipped: {', '.join(scenario_names())}\n"
    )


@pytest.mark.parametrize("what", ["models", "gpus", "topologies", "strategies", "scenarios"])
def test_lists_fit_the_terminal_and_come_as_json_too(what, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert execute(["list", what]) == 0
    table = capsys.readouterr().out
    assert max(map(len, table.splitlines())) <= 120
    assert execute(["list", what, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    first = {"topologies": "kind", "strategies": "kind"}.get(what, "name")
    assert rows
    assert all(row[first] in table for row in rows)


def test_list_models_shows_what_decides_a_layout(capsys):
    assert execute(["list", "models", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["qwen3-235b-a22b"] == {
        "name": "qwen3-235b-a22b",
        "billion_parameters": 235.1,
        "layers": 94,
        "attention": "GQA",
        "query_heads": 64,
        "kv_heads": "4",
        "experts": "8 of 128",
        "hidden": 4096,
        "max_context": 40960,
        "weights": "bf16",
    }


def test_import_model_writes_a_file_that_a_scenario_can_name(small, capsys):
    (small / "config.json").write_text(json.dumps(CONFIG))
    assert execute(["import-model", "config.json", "--name", "tiny", "-o", "tiny.yaml"]) == 0
    assert capsys.readouterr().err == "wrote tiny.yaml\n"
    model = load_model("tiny.yaml")
    assert (model.name, model.layers, model.hidden, model.vocab) == ("tiny", 3, 64, 100)
    assert execute(["import-model", "config.json", "-o", "tiny.yaml"]) == 2
    assert capsys.readouterr().err == "tiny.yaml: exists already; choose another name or add --force\n"
    assert execute(["import-model", ".", "--force", "-o", "tiny.yaml"]) == 0
    capsys.readouterr()
    assert execute(["import-model", "config.json", "--name", "tiny"]) == 0
    assert capsys.readouterr().out.startswith("name: tiny\nhidden: 64\n")


def test_import_model_names_the_field_that_is_missing(small, capsys):
    (small / "config.json").write_text(json.dumps({k: v for k, v in CONFIG.items() if k != "hidden_size"}))
    assert execute(["import-model", "config.json", "-o", "tiny.yaml"]) == 2
    assert "hidden_size" in capsys.readouterr().err
    assert not (small / "tiny.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare"], "Missing argument 'FILE'"),
        (["copmare", "x"], "No such command 'copmare'"),
        (["compare", "x", "--jsn"], "No such option: --jsn"),
        (["list", "foo"], "'foo' is not one of 'models', 'gpus', 'topologies', 'strategies', 'scenarios'"),
        (["compare", "x", "--json", "--csv"], "--json and --csv exclude each other"),
    ],
)
def test_wrong_arguments_exit_with_2_and_say_why(arguments, message, capsys):
    assert execute(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Value error" not in error


def test_version_and_help(capsys):
    assert execute(["--version"]) == 0
    assert capsys.readouterr().out == f"shardwise {__version__}\n"
    assert execute(["--help"]) == 0
    assert "  shardwise compare qwen3_235b_8xh200\n" in capsys.readouterr().out
    for command in ("compare", "run", "check", "list", "import-model"):
        assert execute([command, "--help"]) == 0
        assert f"Example: shardwise {command} " in capsys.readouterr().out


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom sim.cli.app import execute\nexecute(['--help'])\n"
        "print(sorted({'numpy', 'networkx', 'simpy', 'ruamel.yaml'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


def test_interrupting_exits_with_130_and_one_line(small, monkeypatch, capsys):
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sim.run, "compare", interrupted)
    assert execute(["compare", "s.yaml"]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_a_bug_is_called_a_bug(small, monkeypatch, capsys):
    def impossible(_: object) -> None:
        raise FloorError("tp8: 1 ms is below its floor of 2 ms")

    monkeypatch.setattr(sim.run, "compare", impossible)
    assert execute(["compare", "s.yaml"]) == 1
    assert capsys.readouterr().err.startswith("a bug in the simulator or in a strategy: tp8: 1 ms is below")


def test_a_broken_pipe_is_quiet():
    command = f"{sys.executable} -W error -m sim compare {SHIPPED} --json | head -c 1"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("{", "")


def test_off_a_terminal_there_is_no_colour_and_columns_is_respected():
    environment = {**os.environ, "COLUMNS": "80", "FORCE_COLOR": "1"}
    run = shardwise("compare", SHIPPED, env=environment)
    assert run.returncode == 0
    assert run.stderr == ""
    assert "\x1b[" not in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 80


def test_a_terminal_without_unicode_still_shows_the_figures():
    run = shardwise("list", "gpus", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert run.returncode == 0
    assert "h200-sxm" in run.stdout


def test_completion_offers_shipped_scenarios_and_files(small):
    from sim.cli.options import complete_file

    assert complete_file("qwen3_2") == [SHIPPED]
    assert complete_file("s.") == ["s.yaml"]
