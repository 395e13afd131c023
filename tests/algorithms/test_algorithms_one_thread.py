from __future__ import annotations

import numpy as np
from labelkit.algorithms.one_thread import one_blas_thread
from threadpoolctl import threadpool_info, threadpool_limits


def test_blas_has_one_thread_inside_and_as_many_as_before_behind() -> None:
    np.ones((2, 2)) @ np.ones((2, 2))

    def threads() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        with one_blas_thread():
            assert threads() == {1}
        assert threads() == {2}
