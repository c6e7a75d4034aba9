"""A study on disk: what it is, and one Parquet file per part.

``study.json`` (the resolved study), ``manifest.json`` (version, digest, columns) and ``parts/00000.parquet`` ... Every
file appears in one step (written beside, synced, renamed), and a part is a pure function of the study. So killing a run
loses the parts in flight only, a second run of the same study continues, and two runs at once write the same bytes.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from sim import __version__
from sim.errors import InputError, Problem, not_installed
from sim.study.columns import FIGURES, PLACE
from sim.study.definition import Study
from sim.study.price import Rows

_TEMPORARY = ".part-"


def arrow() -> Any:
    """The module ``pyarrow``. Raises ``InputError`` that says how to install it."""
    try:
        import pyarrow
    except ImportError:
        raise not_installed("studies are kept as Parquet files, which need pyarrow", "study") from None
    return pyarrow


def encode(study: Study, rows: Rows) -> bytes:
    """Rows as a Parquet file: the same rows give the same bytes."""
    pa = arrow()
    import pyarrow.parquet as pq

    kinds = dict.fromkeys(study.columns.values(), "string") | PLACE | FIGURES
    schema = pa.schema([(name, pa.type_for_alias(kinds[name])) for name in rows])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(rows, schema=schema), sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


class StudyFolder:
    """A folder that holds, or will hold, the answers of a study."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.parts = self.path / "parts"

    def begin(self, study: Study) -> None:
        """Make the folder, or see that it is this study's.

        Raises
        ------
        InputError
            If it holds another study or was begun by another version, or cannot be written.
        """
        manifest = {"version": __version__, "digest": study.digest, "columns": [*study.columns, *PLACE, *FIGURES]}
        try:
            self.parts.mkdir(parents=True, exist_ok=True)
            if (self.path / "manifest.json").exists():
                self._same(manifest)
                return
            if any(self.parts.glob("*.parquet")):
                raise InputError(Problem("holds parts but no manifest; choose an empty folder", where=str(self.path)))
            self._write(self.path / "study.json", _json(study.resolved()))
            self._write(self.path / "manifest.json", _json(manifest))
        except OSError as error:
            raise InputError(Problem(f"cannot be written: {error.strerror}", where=str(self.path))) from None

    def _same(self, manifest: dict[str, Any]) -> None:
        found = self.manifest()
        for key, what in (("digest", "another study"), ("version", f"results of version {found.get('version')}")):
            if found.get(key) != manifest[key]:
                raise InputError(Problem(f"holds {what}; choose another folder, or remove it", where=str(self.path)))

    def manifest(self) -> dict[str, Any]:
        """What the folder says of itself. Raises ``InputError`` if it is no study."""
        try:
            found: dict[str, Any] = json.loads((self.path / "manifest.json").read_text())
        except (OSError, ValueError):
            raise InputError(Problem("is not the folder of a study", where=str(self.path))) from None
        return found

    def study(self) -> Study:
        """The study that was run. Raises ``InputError`` if it is no study."""
        self.manifest()
        return Study.model_validate_json((self.path / "study.json").read_text())

    def file(self, number: int) -> Path:
        """Where a part is kept."""
        return self.parts / f"{number:06d}.parquet"

    def has(self, number: int) -> bool:
        """Whether a part is done."""
        return self.file(number).exists()

    def keep(self, number: int, content: bytes) -> None:
        """Write a part in one step. Raises ``OSError`` if the disk refuses."""
        self._write(self.file(number), content)

    def finish(self) -> None:
        """Remove what runs that were killed left half-written."""
        for left in self._left():
            with suppress(OSError):
                left.unlink()

    def _left(self) -> Iterator[Path]:
        yield from self.path.glob(f"{_TEMPORARY}*")
        yield from self.parts.glob(f"{_TEMPORARY}*")

    def _write(self, path: Path, content: bytes) -> None:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=_TEMPORARY)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            os.replace(temporary, path)
        except FileNotFoundError:
            if not path.exists():  # another run that finished took our file for a leftover; it wrote the same bytes
                raise
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
