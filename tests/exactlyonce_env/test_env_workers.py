"""The helper thread: every range once, errors told, forked children served."""

from __future__ import annotations

import os
import threading
import time

import pytest

from exactlyonce_env.envs.workers import MAX_RANGES, run_shared


@pytest.mark.parametrize(("n", "least"), [(1, 1), (5, 8), (16, 1), (1000, 7), (4096, 256)])
def test_every_place_is_visited_once(n: int, least: int) -> None:
    for _ in range(20):
        ranges: list[tuple[int, int]] = []
        run_shared(lambda share, low, high, kept=ranges: kept.append((low, high)), n, least)
        ranges.sort()
        assert [low for low, _ in ranges] == [0, *(high for _, high in ranges[:-1])]
        assert ranges[-1][1] == n
        assert len(ranges) == max(1, min(MAX_RANGES, n // least))


def test_two_threads_share_and_each_has_its_own_number() -> None:
    seen: dict[int, set[int]] = {0: set(), 1: set()}
    both = threading.Barrier(2, timeout=30)

    def run(share: int, low: int, high: int) -> None:
        if not seen[share]:
            seen[share].add(threading.get_ident())
            both.wait()  # neither may finish the batch before the other has joined

    run_shared(run, 4, 1)
    assert seen[0] == {threading.get_ident()}
    assert len(seen[1]) == 1
    assert seen[0] != seen[1]


@pytest.mark.parametrize("share", [0, 1])
def test_an_error_reaches_the_caller_and_the_helper_lives_on(share: int) -> None:
    joined = [threading.Event(), threading.Event()]

    def run(mine: int, low: int, high: int) -> None:
        joined[mine].set()
        assert joined[1 - mine].wait(30)  # neither may take every range before the other has one
        if mine == share:
            raise RuntimeError(f"share {share}")

    with pytest.raises(RuntimeError, match=f"share {share}"):
        run_shared(run, 4, 1)
    done: list[int] = []
    run_shared(lambda mine, low, high: done.extend(range(low, high)), 8, 1)
    assert sorted(done) == list(range(8))


def test_many_callers_at_once() -> None:
    totals: list[int] = []

    def call() -> None:
        counted: list[int] = []
        for _ in range(50):
            run_shared(lambda mine, low, high: counted.append(high - low), 64, 4)
        totals.append(sum(counted))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert totals == [50 * 64] * 4


def test_a_late_helper_is_not_waited_for() -> None:
    """While the helper is busy with another batch, a caller does all the work alone."""
    release, busy = threading.Event(), threading.Event()

    def block(share: int, low: int, high: int) -> None:
        if share == 1:
            busy.set()
            release.wait(30)
        else:
            busy.wait(30)

    other = threading.Thread(target=run_shared, args=(block, 2, 1))
    other.start()
    assert busy.wait(30)
    shares: list[int] = []
    run_shared(lambda share, low, high: shares.append(share), 8, 1)
    assert shares == [0] * 8
    release.set()
    other.join(30)
    assert not other.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_helper_of_its_own() -> None:
    run_shared(lambda share, low, high: None, 2, 1)
    child = os.fork()
    if child == 0:
        done: list[int] = []
        run_shared(lambda share, low, high: done.append(high - low), 8, 1)
        os._exit(0 if sum(done) == 8 else 1)
    for _ in range(300):
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished:
            break
        time.sleep(0.1)
    assert finished == child
    assert os.waitstatus_to_exitcode(status) == 0
