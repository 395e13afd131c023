"""SAN: the baseline inside of it, clusters that a run takes along, its losses, what it says about the assembly."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.data.batch import Batch
from labelkit.errors import ConfigError
from labelkit.methods.metric.assembly import assembly_terms, compute_term_weight, weighted_assembly_loss
from labelkit.methods.metric.options import SANConfig
from labelkit.methods.metric.pseudo_labels import PseudoLabels
from labelkit.options.presets import resolve_config
from labelkit.training.method import TrainState
from labelkit.training.monitors.retrieval import compute_similarity_spread
from tests.running import run_in_one_and_two_processes

Make = Callable[..., Any]


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["proxy-anchor", "cross-entropy"])
def test_class_vectors_are_trained_at_a_rate_of_their_own(make: Make, loss: str) -> None:
    setup = make("san", loss=loss, proxy_lr_scale=7, san_lr_scale=3, new_lr_scale=2, warm_epochs=1)
    groups = list(setup.method.parameter_groups())
    assert [group.get("lr_scale", 1) for group in groups] == [1, 2, 3, 7]
    assert [group["weight_decay"] for group in groups] == [5e-4, 5e-4, 0, 5e-4]
    named = {id(parameter) for group in groups for parameter in group["params"]}
    assert named == {id(parameter) for parameter in setup.method.parameters() if parameter.requires_grad}
    before = {name: value.clone() for name, value in setup.method.state_dict().items()}
    setup.trainer.config = setup.trainer.config.model_copy(update={"stop_after_steps": 4})
    setup.trainer.fit()
    after = setup.method.state_dict()
    backbone = [name for name, _ in setup.method.network.backbone.named_parameters()]
    # the backbone rests in the first epoch, class vectors do not
    assert all(torch.equal(before[f"network.backbone.{name}"], after[f"network.backbone.{name}"]) for name in backbone)
    assert any(not torch.equal(before[name], after[name]) for name in before if name.startswith("classes"))


def steps(setup: Any, *rows: Any) -> Iterator[Any]:
    """The loss of a step on random images, one for each list of rows; and these images."""
    generator = torch.Generator().manual_seed(0)
    spec = setup.method.network.input_spec
    for numbers in rows:
        images = torch.randn(len(numbers), spec.channels, spec.size, spec.size, generator=generator)
        batch = Batch((images,), setup.method.labels[numbers], numbers, ())
        yield setup.method.training_step(batch).loss, images


def test_a_queue_holds_what_the_network_made_in_each_step(make: Make) -> None:
    setup = make("san", memory="queue", san=False)
    method = setup.method.eval()
    assert method.slow is None
    made = []
    for _, images in steps(setup, torch.arange(4), torch.arange(10, 14)):
        made.append(method.network(images).embeddings.detach())
        with torch.no_grad():
            for parameter in method.network.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    torch.testing.assert_close(method.memory.embeddings[:8], torch.cat(made))


def test_xbm_is_the_contrastive_loss_of_the_batch_and_of_the_queue(make: Make) -> None:
    setup = make("san", memory="queue", san=False, loss="contrastive", memory_loss="contrastive")
    method, known = setup.method.eval(), torch.nonzero(setup.method.labels >= 0)[:, 0]
    method.state = TrainState(epoch=1)
    rows = [known[:8], known[4:12]]
    (_, first), (loss, second) = steps(setup, *rows)
    z = [torch.nn.functional.normalize(method.network(one).embeddings).detach().double() for one in (first, second)]
    batch = contrastive_by_loops(z[1], z[1], rows[1], rows[1], method.labels, own=0)
    memory = contrastive_by_loops(z[1], torch.cat(z), rows[1], torch.cat(rows), method.labels, own=8)
    assert float(loss.detach()) == pytest.approx(batch + memory, abs=1e-5)
    assert min(batch, memory) > 0.1


def contrastive_by_loops(anchors: Any, references: Any, mine: Any, theirs: Any, labels: Any, *, own: int) -> float:
    """1 - S of positives and (S - 0.5)+ of negatives, each the mean of those above 0; reference i + own is i."""
    attracted, repelled = [], []
    for i, row in enumerate(mine.tolist()):
        for j, other in enumerate(theirs.tolist()):
            similarity = float(anchors[i] @ references[j])
            if j == i + own or min(int(labels[row]), int(labels[other])) < 0:
                continue
            if labels[row] == labels[other]:
                attracted.append(max(0.0, 1 - similarity))
            else:
                repelled.append(max(0.0, similarity - 0.5))
    means = [[value for value in values if value > 0] for values in (attracted, repelled)]
    return sum(sum(values) / len(values) for values in means if values)


def test_terms_grow_between_two_moments() -> None:
    config = resolve_config(SANConfig, preset="digits", overrides={"term_ramp": "0.1,0.5"}).config
    assert [compute_term_weight(config, done) for done in (0, 0.1, 0.3, 0.5, 1)] == pytest.approx([0, 0, 0.5, 1, 1])
    at_once = resolve_config(SANConfig, preset="digits", overrides={"term_ramp": "0,0"}).config
    assert compute_term_weight(at_once, 0) == 1


@pytest.mark.parametrize("trained", ["predictor", "network"])
def test_terms_of_the_assembly_train_the_predictor_alone_unless_asked(make: Make, trained: str) -> None:
    weights = {"entropy_weight": 0.3, "correlation_weight": 0.2, "coherence_weight": 0.1}
    setup = make("san", san_diagonal=0.5, term_ramp=(0, 0), memory="none", term_gradients=trained, **weights)
    method, batch = setup.method.train(), next(setup.batches())
    predictor = method.network.assembly
    torch.manual_seed(0)
    for parameter in predictor.votes.parameters():
        # at zero the votes do not depend on the maps
        torch.nn.init.normal_(parameter, std=0.1)
    inside, before = list(predictor.parameters()), list(method.network.backbone.net.block1.parameters())
    terms = assembly_terms(method.config, method.network(batch.images).assembly)
    total = sum(weights[f"{name}_weight"] * term for name, term in terms.items())
    expected = torch.autograd.grad(total, [*inside, *before])

    found = weighted_assembly_loss(
        method.config, assembly_terms(method.config, method.network(batch.images).assembly), predictor
    )
    found.backward()

    assert found.item() == pytest.approx(total.item(), rel=1e-6)
    for parameter, gradient in zip(inside, expected, strict=False):
        torch.testing.assert_close(parameter.grad, gradient)
    for parameter, gradient in zip(before, expected[len(inside) :], strict=True):
        assert gradient.any()
        assert (parameter.grad is None) == (trained == "predictor")
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, gradient)


def test_an_epoch_tells_what_the_assembly_does(make: Make) -> None:
    setup = make("san", epochs=1)
    metrics = setup.trainer.fit().metrics
    found = {name.removeprefix("assembly/"): value for name, value in metrics.items() if "/" in name}
    assert 0 < found["diagonal"] < 1
    assert found["sources"] > 1
    assert 0 < found["entropy"] < 1
    assert found["effect"] > 0
    assert {"recall_at_1", "map_at_r", "similarity_sd"} <= metrics.keys()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"mode": "unsupervised", "num_clusters": 65}, "65 exceeds the number of images (64)"),
        ({"mode": "unsupervised", "num_clusters": 7}, "7 clusters are too few: a batch contains 8"),
        ({"batch_size": 16}, "a batch contains 8 classes, but only 5 classes have labels"),
        ({"memory": "momentum", "batch_size": 10, "images_per_class": 5, "memory_size": 9}, "at least batch_size"),
        ({"mode": "unsupervised", "loss": "proxy-anchor"}, "requires labels"),
        ({"term_ramp": "0.5,0.1"}, "two fractions in ascending order"),
        ({"batch_size": 5}, "must be a multiple"),
        ({"batch_size": 4, "images_per_class": 4}, "at least 2 * images_per_class"),
        ({"san_before": "layer9"}, "no stage 'layer9'"),
        ({"san_before": "pool"}, "has no stage"),
        ({"recall_ks": "4,2"}, "positive and increasing"),
    ],
)
def test_options_that_do_not_fit_are_refused(make: Make, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make("san", **options)
    assert problem in str(refusal.value)


def test_centroids_are_means_of_embeddings_whatever_was_clustered() -> None:
    labels = PseudoLabels(8, 2, 3, refresh_epochs=5, seed=0)
    labels.rows = np.array([0, 2, 3, 5, 6])
    points = torch.tensor([[0.0], [0.1], [9.0], [9.1], [9.2]])
    embeddings = torch.arange(15.0).reshape(5, 3)
    record = labels.recluster(points, embeddings, TrainState())
    ids = labels.cluster_ids
    assert ids[[1, 4, 7]].tolist() == [-1, -1, -1]
    assert ids[0] == ids[2]
    assert ids[3] == ids[5] == ids[6] != ids[0]
    assert torch.allclose(labels.centroids[ids[0]], embeddings[:2].mean(0))
    assert torch.allclose(labels.centroids[ids[3]], embeddings[2:].mean(0))
    assert record == {"singles": 0, "moved": 0}
    assert not labels.is_due(0)
    assert labels.is_due(5)
    assert not labels.is_due(6)


def test_equal_embeddings_have_no_spread() -> None:
    assert compute_similarity_spread(np.ones((5, 3), dtype=np.float32)) == pytest.approx(0, abs=1e-12)
    assert compute_similarity_spread(np.eye(2, dtype=np.float32)) == 0
    assert compute_similarity_spread(np.array([[1, 0], [1, 0], [0, 1]], dtype=np.float32)) == pytest.approx(
        np.sqrt(2) / 3
    )


TWO_PROCESSES = """
import sys, torch
from labelkit.training.devices import Runtime
from labelkit.training.distributed import gather_batch
from labelkit.methods.metric.losses import MultiSimilarityLoss

runtime = Runtime(device="cpu", threads=1)
torch.manual_seed(0)
images, labels = torch.randn(8, 5), torch.arange(8) % 3
weight = torch.randn(5, 4, requires_grad=True)
own = slice(runtime.rank, None, runtime.world_size)
embeddings = gather_batch(images[own] @ weight)
loss = MultiSimilarityLoss()(embeddings, gather_batch(labels[own]))
loss.backward()
gradient = runtime.combine(weight.grad, "sum") / runtime.world_size
if runtime.is_main:
    torch.save({"embeddings": embeddings.detach(), "loss": loss.detach(), "gradient": gradient}, sys.argv[1])
runtime.close()
"""


@pytest.mark.slow
def test_two_processes_have_the_loss_and_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    one, two = run_in_one_and_two_processes(TWO_PROCESSES, tmp_path)
    for key, value in one.items():
        torch.testing.assert_close(value, two[key], rtol=0, atol=1e-6)


def test_the_main_process_clusters_and_the_others_are_told() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(20, 2, generator=generator)
    sums: list[torch.Tensor] = []
    main, other = (PseudoLabels(20, 3, 2, refresh_epochs=1, seed=0) for _ in range(2))
    first = main.recluster(points, points, TrainState(combine=lambda value, how: sums.append(value) or value))
    # what the other has is added to that
    told = TrainState(is_main=False, combine=lambda value, how: value + sums.pop(0))
    second = other.recluster(points, points, told)
    assert torch.equal(other.cluster_ids, main.cluster_ids)
    assert torch.equal(other.centroids, main.centroids)
    assert second == first
