"""Networks of DL2PA: published numbers of parameters, prototypes behind an assignment, class means by momentum."""

import pytest
import torch
from labelkit.methods.prototypes.dl2pa import PrototypeHead
from labelkit.models.headed import ClassifierNetwork


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def classifier(embed_dim: int | None, *, bn: bool = False) -> ClassifierNetwork:
    return ClassifierNetwork(
        "resnet32_hpn",
        lambda dim: PrototypeHead(10, dim),
        10,
        embed_dim=embed_dim,
        embedding_bn=bn,
        image_size=32,
        seed=0,
    )


@pytest.mark.parametrize(("dim", "parameters"), [(10, 487_386), (25, 488_361), (50, 489_986), (100, 493_236)])
def test_resnet32_with_a_projection_has_the_published_number_of_parameters(dim: int, parameters: int) -> None:
    assert count(classifier(dim)) == parameters


def test_without_a_width_there_is_no_projection() -> None:
    network = classifier(None)
    assert (network.embed_dim, count(network)) == (network.backbone.info.feature_dim, count(network.backbone))


def test_nothing_of_the_head_is_trained() -> None:
    network = classifier(8, bn=True)
    assert not list(network.head.parameters())
    assert {name for name, _ in network.head.named_buffers()} == {
        "prototypes", "assignment", "prices", "class_means", "seen"
    }  # fmt: skip
    assert isinstance(network.normalization, torch.nn.BatchNorm1d)


def test_scores_are_cosines_with_the_assigned_prototypes() -> None:
    head = PrototypeHead(3, 2)
    angles = torch.tensor([0.0, 2.0, 4.0]) * torch.pi / 3
    head.prototypes.copy_(torch.stack([angles.cos(), angles.sin()], dim=1))
    head.assignment.copy_(torch.tensor([2, 0, 1]))
    scores = head(torch.tensor([[-0.28, 0.96]]))
    # prototype scores -.28, .971384, -.691384 for the prototypes 0, 1, 2
    assert scores[0].tolist() == pytest.approx([-0.691384, -0.28, 0.971384], abs=1e-6)
    assert int(scores.argmax()) == 2


def test_a_class_mean_moves_by_momentum() -> None:
    head = PrototypeHead(2, 2)
    head.class_means[0] = torch.tensor([1.0, 0.0])
    head.seen[0] = 1
    head.update_means(torch.tensor([[0.0, 5.0]]), torch.tensor([0]))
    assert head.class_means[0].tolist() == pytest.approx((0.993884, 0.110432), abs=1e-6)
    assert head.seen.tolist() == [2, 0]
    assert not head.class_means[1].any()


def test_a_mixed_image_counts_for_both_labels_by_its_share() -> None:
    head = PrototypeHead(2, 2)
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    head.update_means(rows, torch.tensor([0, 1, 1, 0]), torch.tensor([0.7, 0.7, 0.3, 0.3]))
    expected = torch.nn.functional.normalize(torch.tensor([0.7, 0.3]), dim=0)
    assert head.class_means[0].tolist() == pytest.approx(expected.tolist())
    assert head.seen.tolist() == [2, 2]


def test_two_halves_of_a_batch_whose_sums_are_joined_give_the_mean_of_the_whole() -> None:
    torch.manual_seed(1)
    rows, labels = torch.randn(12, 4), torch.randint(0, 3, (12,))
    whole, parts = PrototypeHead(3, 4), [PrototypeHead(3, 4), PrototypeHead(3, 4)]
    whole.update_means(rows, labels)
    tables: list[torch.Tensor] = []
    for rank in (0, 1):  # what each process would add
        PrototypeHead(3, 4).update_means(
            rows[rank::2], labels[rank::2], combine=lambda table: tables.append(table) or table
        )
    for rank, head in enumerate(parts):
        head.update_means(rows[rank::2], labels[rank::2], combine=lambda table: tables[0] + tables[1])
        assert torch.allclose(head.class_means, whole.class_means, atol=1e-6)
        assert torch.equal(head.seen, whole.seen)
    assert torch.equal(parts[0].class_means, parts[1].class_means)
