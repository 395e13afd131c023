"""CUDA without a GPU: tensors that have shape, type and device but no numbers, and CUDA's own rules of autocast.

What mixes devices or types that CUDA refuses to mix fails here too. Gradients need a driver: run under ``no_grad``.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

CUDA = torch.device("cuda", 0)


@contextmanager
def fake_cuda(precision: torch.dtype | None = None) -> Iterator[torch.device]:
    """Yield the device; all tensors made inside are fake.

    Args:
        precision: what autocast computes in; ``None``: there is none.
    """
    was = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        try:
            if precision is not None:
                # torch.autocast("cuda") looks for a GPU; the rules behind it do not
                torch.set_autocast_enabled("cuda", True)
                torch.set_autocast_dtype("cuda", precision)
            yield CUDA
        finally:
            torch.set_autocast_enabled("cuda", was[0])
            torch.set_autocast_dtype("cuda", was[1])
            torch.clear_autocast_cache()
