"""Odd files, odd terminals, odd plug-ins: one clear line and an exit code, never a traceback."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from sim.cli.app import execute
from sim.documents import MOST_BYTES
from sim.plugins import PluginWarning

pytest_plugins = ["plug_ins"]
HEAD = "model: qwen3-235b-a22b\ngpu: h200-sxm\nworkload: {batch: 8, context: 4k}\n"
TP8 = "layouts: [{strategy: tp, tp: 8}]\n"
TINY = "pattern: [{count: 1, layer: {attention: null, ffn: {kind: dense, width: 8}}}]"
GPU = "gpu: {name: g, architecture: a, memory_bytes: 80 GB, sources: {}, pcie_bandwidth: 64 GB/s, "
STRATEGY = """
import sys
from typing import ClassVar
from strategies.tp import TensorParallel

class Odd(TensorParallel):
    kind: ClassVar[str] = "odd"
    {body}
"""
TOPOLOGY = """
from typing import ClassVar
from topologies.ring import Ring

class Odd(Ring):
    kind: ClassVar[str] = "odd"
    {body}
"""
ODD_STRATEGY = "strategy plug-in 'odd' of shardwise_test_r (shardwise_test_r:Odd) failed: "
ODD_TOPOLOGY = "topology plug-in 'odd' of shardwise_test_r (shardwise_test_r:Odd) failed: "


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(HEAD + TP8)
    return tmp_path


@pytest.fixture
def errors(folder, capsys):
    """Check a text as a file, and return the lines about it."""

    def _errors(text: str) -> list[str]:
        (folder / "s.yaml").write_text(text, encoding="utf-8")
        assert execute(["check", "s.yaml"]) == 2
        return capsys.readouterr().err.splitlines()

    return _errors


def shell(command: str) -> subprocess.CompletedProcess[str]:
    text = command.replace("shardwise", f"{sys.executable} -W error -m sim")
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEAD + TP8 + "topology: 0\n", "s.yaml:5:1: topology: must be for example hgx-8 or {kind: nvl72}, not 0"),
        (HEAD + TP8 + "topology: []\n", "s.yaml:5:1: topology: must be for example hgx-8 or {kind: nvl72}, not a list"),
        (HEAD + TP8 + "precision: 0\n", "s.yaml:5:1: precision: must be keys such as weights, not 0"),
        (HEAD + TP8 + "name: {}\n", "s.yaml:5:1: name: must be text (in quotes if it looks like a number), not {}"),
        (HEAD + TP8 + "name: '  '\n", "s.yaml:5:1: name: must be printable text on one line"),
        (HEAD + "layouts: [0]\n", "s.yaml:4:11: layouts.0: must be keys such as {strategy: tp, tp: 8}, not 0"),
        (
            HEAD + "layouts: [{strategy: tp, tp: 8, tag: ' '}]\n",
            "s.yaml:4:33: layouts.0.tag: must be printable text on one line",
        ),
        (HEAD + TP8 + '"a\\e[31m\\nb": 1\n', r"s.yaml:5:1: a\x1b[31m\nb: unknown key 'a\x1b[31m\nb'; known keys: name"),
        (
            HEAD + TP8 + "topology: {kind: cluster, nodes: 2, latency: 1e308}\n",
            "s.yaml:5:37: topology.latency: must be at most 1, not 1e+308",
        ),
        (
            HEAD.replace("qwen3-235b-a22b", f'{{name: "a\\e[31m", hidden: 8, vocab: 8, {TINY}}}') + TP8,
            "s.yaml:1:9: model.name: must be printable text on one line",
        ),
        (
            HEAD.replace("qwen3-235b-a22b", f"{{name: x, hidden: 8, vocab: 8, quantisation: fp7, {TINY}}}") + TP8,
            "s.yaml:1:39: model.quantisation: 'fp7' is not a number format; choose one of fp32",
        ),
        (
            HEAD.replace("qwen3-235b-a22b", f"{{name: x, hidden: true, vocab: 8, {TINY}}}") + TP8,
            "s.yaml:1:18: model.hidden: must be a number, not true",
        ),
        (
            HEAD.replace("gpu: h200-sxm", GPU + "bandwidth: 1 TB/s, peak: {bf16: 1e15}, constants: ../gpus/l40s}")
            + TP8,
            "gpu.constants: '../gpus/l40s' has no fitted constants; known: a100, b200, gb200, h100, h200",
        ),
        (
            HEAD.replace("gpu: h200-sxm", GPU + "bandwidth: 1e-300, peak: {bf16: 1e15}, constants: h200}") + TP8,
            "gpu.bandwidth: must be from 1e+06 to 1e+21 a second, not 1e-300",
        ),
        (
            HEAD.replace("gpu: h200-sxm", GPU + "bandwidth: 1 TB/s, peak: {bf16: 0}, constants: h200}") + TP8,
            "s.yaml:2:118: gpu.peak.bf16: must be more than 0, not 0",
        ),
        (
            HEAD.replace("gpu: h200-sxm", GPU + "bandwidth: 1 TB/s, peak: {}, constants: h200}") + TP8,
            "gpu.peak: must say the rate of bf16",
        ),
    ],
)
def test_what_a_scenario_cannot_mean_is_said_when_it_is_read(text, expected, errors):
    found = errors(text)
    assert any(expected in line for line in found)
    assert not any(phrase in line for line in found for phrase in ("pydantic", "Input should", "Traceback"))


def test_a_model_file_is_read_as_strictly_as_a_scenario(folder, capsys):
    (folder / "s.yaml").write_text(HEAD.replace("qwen3-235b-a22b", "m.yaml") + TP8)
    bomb = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
        f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    for text, expected in (
        (bomb, "m.yaml:1:8: holds more than 100,000 values once its aliases are written out"),
        ("#" * (MOST_BYTES + 1), "m.yaml: is larger than 1,048,576 bytes; is it a model?"),
        ("name: x\nhidden: -1\nvocab: 8\n" + TINY, "m.yaml:2:1: hidden: must be at least 1, not -1"),
    ):
        (folder / "m.yaml").write_text(text)
        assert execute(["check", "s.yaml"]) == 2
        assert capsys.readouterr().err.splitlines() == [expected]


def test_no_file_is_read_without_end(capsys):
    assert execute(["check", "/dev/zero"]) == 2
    assert execute(["import-model", "/dev/zero"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "/dev/zero: is larger than 1,048,576 bytes; is it a scenario?"
    assert lines[1] == "/dev/zero: is larger than 16,777,216 bytes; is it a config.json?"


def test_odd_paths_are_quoted_on_one_line(folder, capsys):
    assert execute(["check", "", "a\nb.yaml", "\udcff.yaml", ".", "s.yaml"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["''", r"a\nb.yaml", r"\udcff.yaml", "."]


def test_a_model_path_may_hold_blanks_and_its_name_must_be_printable(folder, capsys):
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128}
    config |= {"num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 3, "vocab_size": 100}
    (folder / "my model").mkdir()
    (folder / "my model" / "config.json").write_text(json.dumps(config))
    (folder / "s.yaml").write_text(HEAD.replace("qwen3-235b-a22b", "my model") + TP8)
    assert execute(["check", "s.yaml"]) == 0
    assert execute(["import-model", "my model", "--name", "a\x1b"]) == 2
    assert capsys.readouterr().err == "--name: must be printable text on one line\n"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can try another user")
def test_what_may_not_be_read_or_written_says_so(folder, capsys):
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    (closed / "s.yaml").write_text(HEAD + TP8)
    for parent in (folder, *folder.parents):
        if not os.stat(parent).st_mode & 0o001:
            os.chmod(parent, 0o711)
    execute(["check", "s.yaml"])
    capsys.readouterr()
    os.seteuid(65534)
    try:
        assert execute(["check", "closed/s.yaml"]) == 2
        assert execute(["compare", "s.yaml", "--out", "closed/x"]) == 2
        assert execute(["import-model", "closed/config.json"]) == 2
    finally:
        os.seteuid(0)
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()] == ["permission denied"] * 3


def test_a_closed_or_full_stdout_ends_in_order(folder):
    closed = shell("shardwise check s.yaml >&-; echo rc=$? >&2; shardwise check no.yaml 2>&-; echo rc=$?")
    assert (closed.stdout, closed.stderr) == ("rc=2\n", "rc=0\n")
    full = shell("shardwise list gpus > /dev/full")
    assert (full.returncode, full.stderr) == (2, "stdout: no space left on device\n")


def test_a_real_interrupt_is_one_line(folder):
    tags = "".join(f"  - {{strategy: tp, tp: 8, tag: t{i}}}\n" for i in range(2000))
    (folder / "s.yaml").write_text(f"{HEAD}layouts:\n{tags}")
    command = [sys.executable, "-m", "sim", "compare", "s.yaml", "--out", "results"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1.0)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=30)
    assert (run.returncode, out, err) == (130, "", "interrupted\n")
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("def check(self, *_): raise ValueError('boom\\nbang')", "ValueError: boom bang (shardwise_test_r.py, line 8)"),
        ("def check(self, *_): return ['x']", "AttributeError: 'str' object has no attribute 'key' (scenario_parts.py"),
        ("def check(self, *_): sys.exit(0)", "SystemExit: 0 (shardwise_test_r.py, line 8)"),
        ("def cut(self, model): return None", "AttributeError: 'NoneType' object has no attribute"),
        ("def gpus(self, model): return 'many'", "TypeError: '>' not supported between"),
        (
            "def attention(self, b, x): return 1 / 0",
            "ZeroDivisionError: division by zero (shardwise_test_r.py, line 8)",
        ),
        ("def attention(self, b, x): return None", "AttributeError: 'NoneType' object has no attribute"),
        ("def attention(self, b, x): return open('/no')", "FileNotFoundError: [Errno 2] No such file or directory: "),
        ("def pieces(self, sequences): return (1.5,)", "ValidationError: LayoutReport pieces must be a whole number"),
        ("def stages(self, model): return self.stages(model)", "RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_a_strategy_that_misbehaves_is_named(body, failure, folder, install, capsys):
    install("shardwise_test_r", {"odd": "shardwise_test_r:Odd"}, STRATEGY.format(body=body))
    (folder / "s.yaml").write_text(HEAD + "layouts: [{strategy: tp, tp: 4}, {strategy: odd, tp: 8}]\n")
    assert execute(["compare", "s.yaml"]) == 1
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith(ODD_STRATEGY + failure)
    assert printed.out == ""


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("def build(self, gpu): raise KeyError('link')", "KeyError: 'link' (shardwise_test_r.py, line 7)"),
        ("def build(self, gpu): return None", "TypeError: build returned None instead of a Fabric"),
        ("def build(self, gpu): return Ring(gpus=4).build(gpu)", "TypeError: build connects 4 GPUs, gpu_count says 8"),
        ("gpu_count: ClassVar[str] = 'eight'", "TypeError: '<=' not supported"),
    ],
)
def test_a_topology_that_misbehaves_is_named_and_the_other_files_are_checked(body, failure, folder, install, capsys):
    install("shardwise_test_r", {"odd": "shardwise_test_r:Odd"}, TOPOLOGY.format(body=body), "sim.topologies")
    (folder / "t.yaml").write_text(HEAD + TP8 + "topology: odd\n")
    assert execute(["check", "t.yaml", "s.yaml"]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith(f"t.yaml: {ODD_TOPOLOGY}{failure}")
    assert printed.out == "s.yaml: ok, 1 layouts: tp8\n"


@pytest.mark.filterwarnings("default")
def test_a_plug_in_that_quits_on_import_is_left_out(folder, install, capsys):
    install("shardwise_test_r", {"odd": "shardwise_test_r:Odd"}, "import sys\nsys.exit('bye')\n")
    assert execute(["list", "strategies"]) == 0
    printed = capsys.readouterr()
    assert "wide_ep" in printed.out
    assert printed.err.endswith("is left out: SystemExit: bye\n")


def test_metadata_that_cannot_be_read_leaves_the_built_ins(folder, monkeypatch):
    from sim import plugins

    def broken(group: str) -> None:
        raise TypeError("missing '='")

    monkeypatch.setattr(plugins, "entry_points", broken)
    monkeypatch.syspath_prepend(str(folder))
    from sim.catalog.topologies import topology_names

    with pytest.warns(PluginWarning, match="no plug-in can be used: TypeError: missing '='"):
        assert "hgx" in topology_names()


def test_our_own_bugs_are_not_blamed_on_a_plug_in(folder, monkeypatch):
    import sim.run

    def bug(_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(sim.run, "compare", bug)
    with pytest.raises(KeyError):
        execute(["compare", "s.yaml"])
