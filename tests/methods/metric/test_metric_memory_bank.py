"""The memory against pytorch-metric-learning's, and what refilling leaves of it."""

import pytest
import torch
import torch.nn.functional as F
from labelkit.methods.metric.losses import MultiSimilarityLoss
from labelkit.methods.metric.pseudo_labels import MemoryBank

DIM, BATCH = 6, 4


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for step in range(count):
        embeddings = F.normalize(torch.randn(BATCH, DIM, generator=generator), dim=1)
        made.append((embeddings, torch.tensor([0, 0, 1, 1]), torch.arange(BATCH) + BATCH * step))
    return made


@pytest.mark.parametrize("size", [12, 10], ids=["whole batches", "a batch that wraps around"])
def test_the_loss_over_the_memory_is_the_librarys(size: int) -> None:
    from pytorch_metric_learning.losses import CrossBatchMemory
    from pytorch_metric_learning.losses import MultiSimilarityLoss as Library
    from pytorch_metric_learning.miners import MultiSimilarityMiner

    library = CrossBatchMemory(Library(), DIM, size, MultiSimilarityMiner(epsilon=0.1))
    memory, loss = MemoryBank(size, DIM), MultiSimilarityLoss()
    labels_of = torch.tensor([0, 0, 1, 1]).repeat(6)
    for embeddings, labels, rows in batches(6):
        kept, kept_rows, own = memory.enqueue(embeddings, rows)
        ours = loss(embeddings, labels, kept, labels_of[kept_rows], own)
        assert float(ours) == pytest.approx(float(library(embeddings, labels)), abs=1e-6)


def test_refilling_forgets_what_was_there() -> None:
    memory = MemoryBank(4, 1)
    memory.enqueue(torch.full((3, 1), 9.0), torch.tensor([7, 8, 9]))
    memory.refill(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]))
    _, kept_rows, _ = memory.enqueue(torch.tensor([[2.0]]), torch.tensor([2]))
    assert kept_rows.tolist() == [0, 1, 2]
    memory.refill(torch.arange(6.0)[:, None], torch.arange(6))
    assert memory.rows.tolist() == [2, 3, 4, 5]
