"""A fixture that installs plug-ins; a test file asks for it with ``pytest_plugins = ["plug_ins"]``."""

import sys

import pytest


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package into a folder on sys.path, with the metadata that pip would write."""

    def _install(name: str, entry_points: dict[str, str], source: str, group: str = "sim.strategies") -> None:
        (tmp_path / f"{name}.py").write_text(source)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"{kind} = {value}" for kind, value in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
        monkeypatch.syspath_prepend(str(tmp_path))

    yield _install
    for module in list(sys.modules):
        if module.startswith("shardwise_test_"):
            del sys.modules[module]
