"""Many small products and factorizations on one thread.

With more, the threads of BLAS wait for each other between the products, and do it by spinning: where other work runs on
the machine, 17 regressions of 200 rows took five times the processor time, and no less time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let the BLAS of numpy and scipy use one thread inside."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield
