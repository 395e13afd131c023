"""How many threads the libraries behind numpy use, as they say themselves."""

import pytest
from labelkit.algorithms import one_thread
from labelkit.algorithms.one_thread import one_blas_thread
from threadpoolctl import threadpool_info, threadpool_limits


def counts() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_libraries_use_one_thread_until_the_last_of_overlapping_blocks_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    # other tests may have loaded further libraries since they were looked for
    monkeypatch.setattr(one_thread, "_find_libraries", lambda: one_thread._loaded_libraries.__wrapped__(True))
    with threadpool_limits(2, user_api="blas"):
        if counts() != {2}:
            pytest.skip("the library behind numpy does not take a number of threads")
        with one_blas_thread:
            inside = counts()
        one_blas_thread.__enter__()
        one_blas_thread.__enter__()
        one_blas_thread.__exit__(None, None, None)
        after_the_first = counts()
        one_blas_thread.__exit__(None, None, None)
        after_the_last = counts()

    assert inside == after_the_first == {1}
    assert after_the_last == {2}
