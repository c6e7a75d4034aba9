"""A report as JSON, CSV or a folder that holds all one needs to repeat it."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.errors import InputError, Problem
from sim.report import Report

_WORDS = re.compile(r"\w|\w[\w./ -]*\w", re.ASCII)
_NOT_IN_CSV = ("ranks", "breakdown", "causes", "collectives", "links", "parts", "by_draft_tokens")


def to_json(report: Report) -> str:
    """Write a report as JSON. Bytes and seconds are in the keys' names."""
    return json.dumps(report.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(report: Report) -> str:
    """Write one row per layout. Columns are the keys of the JSON joined by dots; lists are joined by ``; ``."""
    rows = [_flat(layout.model_dump(mode="json")) for layout in report.layouts]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if key in _NOT_IN_CSV:
            continue
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = "; ".join(map(str, value)) if isinstance(value, list) else value
    return flat


def to_yaml(data: Mapping[str, Any]) -> str:
    """Write plain data as YAML that reads back equal; innermost lists and mappings take one line each."""
    from ruamel.yaml import YAML
    from ruamel.yaml.nodes import ScalarNode
    from ruamel.yaml.representer import SafeRepresenter

    class Quoting(SafeRepresenter):
        """Quotes every text that is not plain words: the emitter alone leaves some bare that it cannot read."""

        def represent_str(self, data: str) -> ScalarNode:
            style = None if _WORDS.fullmatch(data) else "'" if data.isprintable() else '"'
            return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    Quoting.add_representer(str, Quoting.represent_str)
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = Quoting
    yaml.default_flow_style = None
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # keys stay in their order
    yaml.width = 4096
    yaml.allow_unicode = True
    text = io.StringIO()
    yaml.dump(dict(data), text)
    return text.getvalue()


def write_folder(folder: str | Path, report: Report) -> list[Path]:
    """Write ``report.json``, ``report.csv``, the resolved ``scenario.yaml`` and ``version.txt``; return them.

    The folder is made if need be. Files of an earlier run are replaced, each in one step, and only once all of
    the new ones are on disk.

    Raises
    ------
    InputError
        If the folder cannot be written.
    """
    return write_files(
        Path(folder),
        {
            "report.json": to_json(report),
            "report.csv": to_csv(report),
            "scenario.yaml": to_yaml(report.resolved),
            "version.txt": f"shardwise {report.version}\n",
        },
    )


def write_files(folder: Path, contents: Mapping[str, str]) -> list[Path]:
    """Write several files, all or none of them half-way. Raises ``InputError`` if that is not possible."""
    waiting: dict[Path, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
            waiting[Path(temporary)] = folder / name
            with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            Path(temporary).chmod(0o666 & ~_umask())
        for path in waiting.values():
            if path.is_dir():
                raise IsADirectoryError(0, f"{path.name} is a folder")
        for temporary_path, path in waiting.items():
            temporary_path.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        problem = Problem(f"cannot be written: {reason[:1].lower()}{reason[1:]}", where=str(folder))
        raise InputError(problem) from None
    finally:
        for temporary_path in waiting:
            temporary_path.unlink(missing_ok=True)
    return list(waiting.values())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
