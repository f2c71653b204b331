"""A run on disk: episodes in parquet, one row per policy and world, beside their manifest.

`evaluation.run_folder` has the layout. A part holds consecutive worlds of one policy and appears in
one step, so an interrupted run loses only the part being computed. The folders follow the Hive
convention: pandas, polars and DuckDB read `RUN/episodes` as it is.

Ranges of world ids are half-open everywhere: `(start, stop)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evaluation.columns import COLUMN_NAMES, episode_schema, episode_table, to_numpy
from evaluation.manifest import (
    Manifest,
    Status,
    continue_manifest,
    ended,
    read_manifest,
    write_manifest,
)
from evaluation.run_folder import (
    FolderLock,
    list_parts,
    manifest_path,
    part_path,
    policy_folder,
    remove_temporary,
    require_run_or_empty,
)
from evaluation.world_ranges import WorldRange, format_ranges, subtract_ranges
from exactlyonce_env.errors import UserError
from exactlyonce_env.files import write_atomically

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset

_METADATA_PREFIX = "exactlyonce."


class RunWriter:
    """The one writer of a run folder; made by `open_writer`, closed by `close` or `with`.

    Leaving the `with` block records the status: `complete` when every policy has every world,
    `interrupted` when some are lacking or on Ctrl-C, `failed` on any other error.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        finished: dict[str, list[WorldRange]],
        lock: FolderLock,
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self._finished = finished
        self._lock = lock

    def finished_parts(self, policy: str) -> tuple[WorldRange, ...]:
        """List the policy's finished parts as sorted half-open world ranges, one per file.

        Raises UserError when the run does not list the policy.
        """
        return tuple(sorted(self._parts_of(policy)))

    def missing_parts(self, policy: str, part_size: int) -> tuple[WorldRange, ...]:
        """List the half-open ranges still to be evaluated, cut at multiples of `part_size`.

        The cuts do not depend on what is finished, so an interrupted run resumed with the same
        part size ends with the same files, byte for byte, as one that was never interrupted.
        """
        if part_size < 1:
            raise UserError(f"part_size must be at least 1 world, got {part_size}")
        return tuple(
            (max(start, cut), min(stop, cut + part_size))
            for start, stop in self._missing(policy)
            for cut in range(start - start % part_size, stop, part_size)
        )

    def write_part(self, policy: str, columns: Mapping[str, NDArray[Any]] | NDArray[Any]) -> Path:
        """Write the episodes of one policy on consecutive worlds as one finished part.

        `columns` has every column of `evaluation.columns.COLUMNS` except `policy`: a mapping of
        (n,) arrays or one (n,) structured array. Returns the path of the new file.

        Raises UserError for an unlisted policy, worlds that are not consecutive, not of this run or
        already finished, for columns that `episode_table` refuses, and when the disk refuses.
        """
        import pyarrow.parquet as pq

        if self.manifest.status != "running":
            raise UserError(f"{self.folder} is closed for writing")
        parts = self._parts_of(policy)
        table = episode_table(policy, columns)
        worlds = to_numpy(table.column("world"))
        part = (int(worlds[0]), int(worlds[-1]) + 1)
        if not np.array_equal(worlds, np.arange(*part)):
            raise UserError(f"a part needs consecutive worlds, got {worlds.size} of {part}")
        if subtract_ranges([part], self.manifest.worlds):
            held = format_ranges(self.manifest.worlds)
            raise UserError(f"worlds {part[0]}:{part[1]} are not all in this run's {held}")
        if subtract_ranges([part], parts) != (part,):
            raise UserError(f"policy {policy!r} already has worlds of {part[0]}:{part[1]}")
        table = table.replace_schema_metadata(_part_metadata(self.manifest))
        path = part_path(self.folder, policy, part)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(
                path, lambda temporary: pq.write_table(table, temporary, compression="zstd")
            )
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from error
        parts.append(part)
        return path

    def close(self, status: Status | None = None) -> None:
        """Record the end of this command and let go of the folder; again is harmless.

        Without a status it is `complete` or `interrupted`, by whether all episodes are there.
        """
        if self.manifest.status != "running":
            return
        lacking = any(self._missing(policy) for policy in self.manifest.policies)
        self.manifest = ended(self.manifest, status or ("interrupted" if lacking else "complete"))
        try:
            write_manifest(self.manifest, manifest_path(self.folder))
        finally:
            self._lock.release()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.close("interrupted" if issubclass(kind, KeyboardInterrupt) else "failed")

    def _missing(self, policy: str) -> tuple[WorldRange, ...]:
        return subtract_ranges(self.manifest.worlds, self._parts_of(policy))

    def _parts_of(self, policy: str) -> list[WorldRange]:
        if policy not in self.manifest.policies:
            known = ", ".join(self.manifest.policies)
            raise UserError(f"policy {policy!r} is not in this run, it has: {known}")
        return self._finished.setdefault(policy, [])


class Run:
    """A run opened for reading; made by `open_run`. Files are read when a table is asked for."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    @property
    def policies(self) -> tuple[str, ...]:
        """Policies of the run, in the order they were asked for."""
        return self.manifest.policies

    def missing(self, policy: str) -> tuple[WorldRange, ...]:
        """List the half-open ranges of worlds that the policy lacks; empty when complete."""
        parts = list_parts(self.folder, self._known(policy)[0])
        return subtract_ranges(self.manifest.worlds, parts)

    def table(
        self, policy: str | Sequence[str] | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Read episodes as an Arrow table, by policy in the run's order, then by world.

        `policy` is one name, several, or None for all; `columns` None for all. Only the columns
        asked for are read.

        Raises UserError for an unknown policy or column, or a damaged file.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = _known_columns(columns)
        schema = pa.schema([episode_schema().field(name) for name in names])
        tables = []
        for path in self._files(policy):
            try:
                part = pq.ParquetFile(path).read(columns=names)
            except (pa.ArrowException, OSError) as error:
                raise UserError(
                    f"{path} cannot be read: run the same command again to make it anew"
                ) from error
            tables.append(part.select(names).cast(schema))
        if not tables:
            return schema.empty_table()
        return pa.concat_tables(tables).unify_dictionaries()

    def arrays(self, policy: str, columns: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """Read columns of one policy as (n,) NumPy arrays sorted by world; labels as `str`.

        Raises UserError as `table` does.
        """
        table = self.table(policy, columns)
        return {name: to_numpy(table.column(name)) for name in table.column_names}

    def dataset(self, policy: str | Sequence[str] | None = None) -> pyarrow.dataset.Dataset:
        """Open the same rows as a `pyarrow.dataset`, for runs larger than memory."""
        import pyarrow.dataset

        files = [str(path) for path in self._files(policy)]
        return pyarrow.dataset.dataset(files, schema=episode_schema(), format="parquet")

    def _files(self, policy: str | Sequence[str] | None) -> list[Path]:
        return [
            part_path(self.folder, name, part)
            for name in self._known(policy)
            for part in list_parts(self.folder, name)
        ]

    def _known(self, policy: str | Sequence[str] | None) -> tuple[str, ...]:
        if policy is None:
            return self.policies
        asked = {policy} if isinstance(policy, str) else set(policy)
        unknown = sorted(asked - set(self.policies))
        if unknown:
            raise UserError(
                f"{self.folder} has no policy {unknown[0]!r}, it has: {', '.join(self.policies)}"
            )
        return tuple(name for name in self.policies if name in asked)


def open_run(folder: str | Path) -> Run:
    """Open a run folder for reading.

    Raises UserError when the folder holds no run.
    """
    path = Path(folder)
    if not manifest_path(path).is_file():
        raise UserError(f"{path} is no run folder: it has no manifest.json")
    return Run(path, read_manifest(manifest_path(path)))


def open_writer(folder: str | Path, manifest: Manifest) -> RunWriter:
    """Start a run in `folder`, or go on with the one that is there.

    A run is continued when code version, configuration and seed are the same and no world is
    dropped. New policies and, if all policies of the run are asked for again, new worlds are added
    to it. Half-written files of an interrupted command are removed.

    Raises UserError, with nothing changed, when the folder holds something else, a run that does
    not fit, or is being written by another command.
    """
    path = Path(folder)
    for policy in manifest.policies:
        policy_folder(path, policy)  # refuses a bad name before anything is written
    try:
        require_run_or_empty(path)
        path.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(path)
    except OSError as error:
        raise UserError(f"cannot write into {path}: {error.strerror}") from error
    try:
        if manifest_path(path).exists():
            manifest = continue_manifest(read_manifest(manifest_path(path)), manifest, path)
        remove_temporary(path)
        finished = {name: _verified_parts(path, name, manifest) for name in manifest.policies}
        write_manifest(manifest, manifest_path(path))
    except BaseException:
        lock.release()
        raise
    return RunWriter(path, manifest, finished, lock)


def _verified_parts(folder: Path, policy: str, manifest: Manifest) -> list[WorldRange]:
    """List finished parts whose footer says what their name says; remove unreadable ones.

    A file can be torn only if the machine stopped before its bytes reached the disk.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    verified = []
    expected = _part_metadata(manifest)
    for part in list_parts(folder, policy):
        path = part_path(folder, policy, part)
        try:
            footer = pq.read_metadata(path)
        except (pa.ArrowException, OSError):
            path.unlink()
            continue
        found = {key.decode(): value.decode() for key, value in (footer.metadata or {}).items()}
        for key, value in expected.items():
            if found.get(key) != value:
                name = key.removeprefix(_METADATA_PREFIX)
                raise UserError(f"{path} is of another run: its {name} is {found.get(key)}")
        if footer.num_rows != part[1] - part[0]:
            raise UserError(f"{path} has {footer.num_rows} rows, its name says otherwise")
        verified.append(part)
    return verified


def _part_metadata(manifest: Manifest) -> dict[str, str]:
    """Say where a part comes from, with nothing that changes when a run is extended."""
    return {
        f"{_METADATA_PREFIX}package_version": manifest.package_version,
        f"{_METADATA_PREFIX}config_sha256": manifest.config_sha256,
        f"{_METADATA_PREFIX}seed": str(manifest.seed),
    }


def _known_columns(columns: Iterable[str] | None) -> list[str]:
    names = list(COLUMN_NAMES if columns is None else columns)
    unknown = [name for name in names if name not in COLUMN_NAMES]
    if unknown:
        raise UserError(f"unknown column {unknown[0]!r}, choose from: {', '.join(COLUMN_NAMES)}")
    return names
