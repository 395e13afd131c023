"""Before the training: a network learns to name by how many quarter turns an image was turned.

Source: S. Gidaris et al., "Unsupervised Representation Learning by Predicting Image Rotations" (ICLR 2018); sgd with
its momentum and weight decay. The cosine of the learning rate is ours. All turns of an image are in one batch.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from labelkit.data.samplers import Stream, StreamSampler
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import DivergenceError
from labelkit.methods.few_labels.recipe import StudentNetwork
from labelkit.models.multi_head_network import NUM_ROTATIONS, rotations
from labelkit.models.seeding import seeded_init
from labelkit.training.method import Phase, TrainState
from labelkit.training.schedules import PhaseLearningRate

LR, MOMENTUM, WEIGHT_DECAY = 0.1, 0.9, 5e-4
#: epochs whose random numbers no training draws
_EPOCH = 1 << 29


def learn_rotations(
    network: StudentNetwork,
    state: TrainState,
    rows: NDArray[np.int64],
    view: ViewSpec,
    *,
    steps: int,
    batch_size: int,
    seed: int,
) -> float:
    """Train all of a network but its classifiers, and a classifier of turns that is thrown away.

    Args:
        network: to train.
        state: at the start of training.
        rows: images that can be read; no label is used.
        view: of an image before it is turned.
        steps: updates.
        batch_size: images of a batch, of which each is turned four ways.
        seed: of the classifier and of the order.

    Returns:
        Share of the turns that were named rightly in the last tenth of the updates, over all processes.

    Raises:
        DivergenceError: the loss is not finite.
    """
    sampler = StreamSampler([Stream("pretext", rows, batch_size)], steps=steps, seed=seed, phase=0)
    rate = PhaseLearningRate(LR, steps)
    # dropout and the like draw from torch's global generator
    with seeded_init(seed + 5):
        device = next(network.parameters()).device
        head = nn.Linear(network.embed_dim, NUM_ROTATIONS).to(device)
        trained = [*network.backbone.parameters(), *head.parameters()]
        optimizer = torch.optim.SGD(trained, lr=LR, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY)
        network.train()
        named = torch.zeros(2, dtype=torch.float64)
        for step, batch in enumerate(state.batches(Phase(1, (view,), sampler), _EPOCH)):
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
            images, turns = rotations(batch.images)
            logits = head(network.embed(images)).float()
            loss = F.cross_entropy(logits, turns)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call] # torch has no types
            state.average_gradients(trained)
            optimizer.step()
            if step >= steps - max(1, steps // 10):
                right = float((logits.argmax(1) == turns).sum())
                named += torch.tensor([right, len(turns)], dtype=torch.float64)
    if not bool(torch.isfinite(loss.detach())):
        raise DivergenceError("pretext", "the loss of naming turns is not finite", "Leave out --pretext-steps.")
    right, count = state.combine(named, "sum").tolist()
    return float(right / count)
