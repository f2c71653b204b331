from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from evaluation.columns import COLUMN_NAMES, COLUMNS
from evaluation.manifest import new_manifest, read_manifest, write_manifest
from evaluation.store import open_run, open_writer
from exactlyonce_env.errors import UserError

DTYPES = {"bool": np.bool_, "int32": np.int32, "int64": np.int64, "float64": np.float64}
MODES = np.array(["timeout_pre", "timeout_post", "timeout_late"])


def manifest(worlds=((0, 100),), policies=("guard", "wait:300"), **changes):
    arguments = {"preset": "late-tail", "config": {"name": "late-tail"}, "seed": 7}
    return new_manifest(
        **{**arguments, **changes}, worlds=worlds, policies=policies, command=["exactlyonce"]
    )


def episodes(policy: str, start: int, stop: int) -> dict[str, np.ndarray]:
    """Columns that depend on policy and world alone, as real episodes do."""
    worlds = np.arange(start, stop)
    salt = sum(policy.encode())
    columns = {
        column.name: ((worlds * 31 + salt + k) % 2).astype(DTYPES[column.kind])
        for k, column in enumerate(COLUMNS)
        if column.kind in DTYPES
    }
    columns["elapsed_s"] = np.sqrt(worlds + salt)
    columns["mode"] = MODES[(worlds + 1) * 7 % 3]
    return {**columns, "world": worlds}


def evaluate(folder: Path, plan, *, part_size: int = 32, parts: int | None = None) -> None:
    """Do what a runner does; `parts` interrupts after that many."""
    with open_writer(folder, plan) as run:
        todo = [
            (policy, part)
            for policy in plan.policies
            for part in run.missing_parts(policy, part_size)
        ]
        for done, (policy, part) in enumerate(todo):
            if done == parts:
                raise KeyboardInterrupt
            run.write_part(policy, episodes(policy, *part))


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in (folder / "episodes").rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_layout_and_contents_of_a_run(tmp_path) -> None:
    folder = tmp_path / "new" / "run"
    evaluate(folder, manifest())
    assert sorted(files(folder)) == [
        f"episodes/policy={name}/part-{first:09d}-{last:09d}.parquet"
        for name in ("guard", "wait%3A300")
        for first, last in ((0, 31), (32, 63), (64, 95), (96, 99))
    ]
    run = open_run(folder)
    assert run.policies == ("guard", "wait:300")
    assert run.manifest.status == "complete"
    assert run.manifest.ended_utc >= run.manifest.started_utc
    table = run.table()
    assert table.column_names == list(COLUMN_NAMES)
    assert table.column("policy").to_pylist() == ["guard"] * 100 + ["wait:300"] * 100
    assert table.column("world").to_pylist() == [*range(100)] * 2
    for policy in run.policies:
        stored = run.arrays(policy)
        for name, values in episodes(policy, 0, 100).items():
            np.testing.assert_array_equal(stored[name], values, err_msg=name)


def test_reading_takes_policies_in_run_order_and_only_the_columns_asked_for(tmp_path) -> None:
    evaluate(tmp_path, manifest(policies=("b", "a", "c")))
    run = open_run(tmp_path)
    table = run.table(["c", "b"], ["reward", "policy"])
    assert table.column_names == ["reward", "policy"]
    assert table.column("policy").to_pylist() == ["b"] * 100 + ["c"] * 100
    assert set(run.arrays("a", ["world", "mode"])) == {"world", "mode"}
    assert run.dataset("a").count_rows() == 100
    assert run.table([]).num_rows == 0


def test_an_interrupted_and_resumed_run_is_the_same_byte_for_byte(tmp_path) -> None:
    evaluate(tmp_path / "straight", manifest())
    resumed = tmp_path / "resumed"
    for parts in (1, 0, 3, 2):
        with pytest.raises(KeyboardInterrupt):
            evaluate(resumed, manifest(), parts=parts)
        assert read_manifest(resumed / "manifest.json").status == "interrupted"
    evaluate(resumed, manifest())
    assert files(resumed) == files(tmp_path / "straight")
    assert open_run(resumed).table().equals(open_run(tmp_path / "straight").table())
    record = open_run(resumed).manifest
    assert (record.status, len(record.earlier)) == ("complete", 4)


def test_other_part_sizes_and_extensions_give_the_same_table(tmp_path) -> None:
    evaluate(tmp_path / "straight", manifest(), part_size=100)
    grown = tmp_path / "grown"
    evaluate(grown, manifest(worlds=[(40, 50)], policies=["guard"]), part_size=7)
    evaluate(grown, manifest(worlds=[(0, 10), (40, 50)], policies=["guard"]), part_size=3)
    evaluate(grown, manifest(), part_size=64)
    assert open_run(grown).table().equals(open_run(tmp_path / "straight").table())
    assert open_run(grown).manifest.worlds == ((0, 100),)


def test_a_process_killed_while_writing_loses_only_that_part(tmp_path, run_python) -> None:
    code = f"""
        import os, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import pyarrow.parquet as pq
        from pathlib import Path
        from test_store import episodes, manifest
        from evaluation.store import open_writer

        run = open_writer({str(tmp_path)!r}, manifest())
        run.write_part("guard", episodes("guard", 0, 32))

        def die(table, path, **options):
            Path(path).write_bytes(b"PAR1 half")
            os._exit(9)

        pq.write_table = die
        run.write_part("guard", episodes("guard", 32, 64))
    """
    assert run_python("-c", textwrap.dedent(code)).returncode == 9
    leftovers = list(tmp_path.rglob("*.tmp"))
    assert len(leftovers) == 1
    run = open_run(tmp_path)
    assert (run.manifest.status, run.missing("guard")) == ("running", ((32, 100),))
    assert run.table().num_rows == 32  # the half-written file is not seen

    with open_writer(tmp_path, manifest()) as writer:
        assert not leftovers[0].exists()
        assert writer.finished_parts("guard") == ((0, 32),)
        assert writer.manifest.earlier[0].status == "interrupted"
    evaluate(tmp_path, manifest())
    evaluate(tmp_path / "straight", manifest())
    assert open_run(tmp_path).table().equals(open_run(tmp_path / "straight").table())


def test_more_policies_keep_what_is_there(tmp_path) -> None:
    evaluate(tmp_path, manifest(policies=["guard"]))
    before = files(tmp_path)
    evaluate(tmp_path, manifest(policies=["rules"]))
    after = files(tmp_path)
    assert before.items() < after.items()
    assert open_run(tmp_path).policies == ("guard", "rules")


def test_status_says_whether_every_policy_has_every_world(tmp_path) -> None:
    with open_writer(tmp_path, manifest()) as run:
        run.write_part("guard", episodes("guard", 0, 100))
    assert open_run(tmp_path).manifest.status == "interrupted"
    assert open_run(tmp_path).missing("guard") == ()
    assert open_run(tmp_path).missing("wait:300") == ((0, 100),)
    with pytest.raises(RuntimeError, match="defect"), open_writer(tmp_path, manifest()):
        raise RuntimeError("defect")
    assert open_run(tmp_path).manifest.status == "failed"


def test_missing_parts_are_cut_at_multiples_of_the_part_size(tmp_path) -> None:
    with open_writer(tmp_path, manifest(worlds=[(5, 25), (40, 42)], policies=["p"])) as run:
        assert run.missing_parts("p", 10) == ((5, 10), (10, 20), (20, 25), (40, 42))
        run.write_part("p", episodes("p", 12, 14))
        assert run.missing_parts("p", 10) == ((5, 10), (10, 12), (14, 20), (20, 25), (40, 42))
        assert run.finished_parts("p") == ((12, 14),)
        with pytest.raises(UserError, match="part_size"):
            run.missing_parts("p", 0)


@pytest.mark.parametrize("change", [{"seed": 8}, {"config": {"name": "other"}}])
def test_a_folder_with_another_run_is_refused_and_left_alone(tmp_path, change) -> None:
    evaluate(tmp_path, manifest())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="choose another folder") as refusal:
        open_writer(tmp_path, manifest(**change))
    assert "\n" not in str(refusal.value)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    evaluate(tmp_path, manifest())  # the refusal has let go of the folder


def test_a_folder_with_other_things_is_refused(tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"has 'notes\.txt' but no manifest\.json"):
        open_writer(tmp_path, manifest())
    with pytest.raises(UserError, match="is a file"):
        open_writer(tmp_path / "notes.txt", manifest())
    with pytest.raises(UserError, match="cannot write into"):
        open_writer(tmp_path / "notes.txt" / "run", manifest())
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_second_writer_is_refused_while_the_first_one_writes(tmp_path) -> None:
    first = open_writer(tmp_path, manifest())
    with pytest.raises(UserError, match="being written by another command"):
        open_writer(tmp_path, manifest())
    first.close()
    open_writer(tmp_path, manifest()).close()


def test_a_part_of_another_run_is_refused(tmp_path) -> None:
    evaluate(tmp_path / "one", manifest())
    evaluate(tmp_path / "two", manifest(seed=8))
    name = "episodes/policy=guard/part-000000000-000000031.parquet"
    (tmp_path / "one" / name).write_bytes((tmp_path / "two" / name).read_bytes())
    with pytest.raises(UserError, match="is of another run: its seed is 8"):
        open_writer(tmp_path / "one", manifest())


def test_a_part_whose_name_lies_is_refused(tmp_path) -> None:
    evaluate(tmp_path, manifest())
    parts = tmp_path / "episodes" / "policy=guard"
    (parts / "part-000000096-000000099.parquet").rename(parts / "part-000000096-000000098.parquet")
    with pytest.raises(UserError, match="has 4 rows, its name says otherwise"):
        open_writer(tmp_path, manifest())


def test_a_torn_part_is_an_error_to_read_and_made_anew_by_the_next_command(tmp_path) -> None:
    evaluate(tmp_path, manifest())
    whole = files(tmp_path)
    torn = tmp_path / "episodes" / "policy=guard" / "part-000000032-000000063.parquet"
    torn.write_bytes(torn.read_bytes()[:100])
    with pytest.raises(UserError, match="cannot be read: run the same command again"):
        open_run(tmp_path).table()
    evaluate(tmp_path, manifest())
    assert files(tmp_path) == whole


def test_what_a_part_may_not_hold(tmp_path) -> None:
    with open_writer(tmp_path, manifest()) as run:
        run.write_part("guard", episodes("guard", 10, 20))
        with pytest.raises(UserError, match=r"not in this run, it has: guard, wait:300"):
            run.write_part("rules", episodes("rules", 0, 10))
        gap = {name: values[[0, 2]] for name, values in episodes("guard", 0, 3).items()}
        with pytest.raises(UserError, match="consecutive"):
            run.write_part("guard", gap)
        with pytest.raises(UserError, match="not all in this run's 0:100"):
            run.write_part("guard", episodes("guard", 95, 105))
        with pytest.raises(UserError, match="already has worlds of 15:25"):
            run.write_part("guard", episodes("guard", 15, 25))
        (tmp_path / "episodes" / "policy=wait%3A300").write_text("in the way")
        with pytest.raises(UserError, match="cannot write"):
            run.write_part("wait:300", episodes("wait:300", 0, 10))
        (tmp_path / "episodes" / "policy=wait%3A300").unlink()
    with pytest.raises(UserError, match="closed for writing"):
        run.write_part("guard", episodes("guard", 30, 40))
    assert open_run(tmp_path).table().num_rows == 10


def test_reading_what_is_not_there(tmp_path) -> None:
    with pytest.raises(UserError, match=r"no run folder: it has no manifest\.json"):
        open_run(tmp_path)
    evaluate(tmp_path, manifest())
    run = open_run(tmp_path)
    with pytest.raises(UserError, match=r"no policy 'rules', it has: guard, wait:300"):
        run.table("rules")
    with pytest.raises(UserError, match="unknown column 'speed', choose from: policy, world"):
        run.table(columns=["speed"])


def test_a_run_without_episodes_reads_as_empty(tmp_path) -> None:
    open_writer(tmp_path, manifest()).close()
    run = open_run(tmp_path)
    assert run.table().num_rows == 0
    assert run.arrays("guard", ["reward"])["reward"].dtype == np.float64
    assert run.dataset().count_rows() == 0


def test_any_policy_name_has_a_folder_of_its_own(tmp_path) -> None:
    names = ("a:1", "a-1", "a_1", "a/1", "a%3A1", "..", "Δ ü")
    evaluate(tmp_path, manifest(worlds=[(0, 2)], policies=names))
    run = open_run(tmp_path)
    assert run.table(columns=["policy"]).column("policy").to_pylist() == [
        name for name in names for _ in range(2)
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", "episodes"}


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_a_policy_name_no_folder_can_carry_is_refused_before_anything_is_made(
    tmp_path, name: str
) -> None:
    with pytest.raises(UserError, match="as a folder name"):
        open_writer(tmp_path / "run", manifest(policies=["guard", name]))
    assert not (tmp_path / "run").exists()


def test_hive_readers_read_the_episodes_as_they_are(tmp_path) -> None:
    evaluate(tmp_path, manifest())
    table = pq.read_table(tmp_path / "episodes")
    assert table.num_rows == 200
    assert set(table.column("policy").to_pylist()) == {"guard", "wait:300"}


def test_a_run_of_another_version_is_refused(tmp_path) -> None:
    write_manifest(replace(manifest(), package_version="0.0.1"), tmp_path / "manifest.json")
    with pytest.raises(UserError, match=r"written by version 0\.0\.1"):
        open_writer(tmp_path, manifest())
