import numpy as np
import pytest
from labelkit.algorithms import projection
from labelkit.algorithms.projection import embed_by_tsne, principal_directions, project_to_principal_plane
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE, trustworthiness


def test_plane_is_that_of_scikit_learn_up_to_sign(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((60, 5)) * [5, 3, 1, 1, 0.5] + 7
    points, shares = project_to_principal_plane(rows)
    expected = PCA(2).fit(rows)

    np.testing.assert_allclose(np.abs(points), np.abs(expected.transform(rows)), atol=1e-9)
    np.testing.assert_allclose(shares, expected.explained_variance_ratio_, atol=1e-9)


@pytest.mark.parametrize("varying", [0, 2, 5])
def test_fewer_rows_than_directions_are_completed_at_right_angles(rng: np.random.Generator, varying: int) -> None:
    rows = rng.standard_normal((6, varying)) @ rng.standard_normal((varying, 40)) + 3
    directions, shares = projection.principal_directions(rows, 12)

    np.testing.assert_allclose(directions.T @ directions, np.eye(12), atol=1e-12)
    assert (directions[np.abs(directions).argmax(axis=0), np.arange(12)] > 0).all()
    assert (shares[varying:] == 0).all()
    centered = rows - rows.mean(axis=0)
    np.testing.assert_allclose(centered @ directions @ directions.T, centered, atol=1e-12)
    if varying:
        expected = PCA(varying).fit(rows)
        np.testing.assert_allclose(shares[:varying], expected.explained_variance_ratio_, atol=1e-12)
        np.testing.assert_allclose(np.abs(directions[:, :varying].T), np.abs(expected.components_), atol=1e-9)
    again, _ = projection.principal_directions(rows, 12)
    assert (again == directions).all()


def test_neighbors_stay_neighbors_in_a_t_sne_plane(rng: np.random.Generator) -> None:
    rows = np.repeat(np.eye(3) * 20, 15, axis=0) + rng.normal(0, 0.1, (45, 3))
    points = embed_by_tsne(rows, seed=0)
    distances = np.linalg.norm(points[:, None] - points, axis=2) + np.diag(np.full(45, np.inf))

    assert (distances.argmin(axis=1) // 15).tolist() == (np.arange(45) // 15).tolist()


def test_rows_on_components_are_those_of_scikit_learn_up_to_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (np.random.default_rng(0).standard_normal((50, 7)) * np.arange(1, 8) + 20).astype(np.float32)
    fitted = PCA(n_components=3).fit(rows[:40])
    # blocks of 8 rows
    monkeypatch.setattr(
        projection, "iterate_blocks", lambda x: ((slice(i, i + 8), x[i : i + 8]) for i in range(0, len(x), 8))
    )

    mean, directions = projection.fit_principal_components(rows[:40], 3)
    places = projection.project_rows(rows, mean, directions)

    np.testing.assert_allclose(mean, fitted.mean_, rtol=1e-6)
    np.testing.assert_allclose(np.abs(places), np.abs(fitted.transform(rows)), atol=1e-3)
    with pytest.raises(ValueError, match=r"1 to 7 directions are possible for shape \(50, 7\), got 8"):
        projection.fit_principal_components(rows, 8)


@pytest.mark.slow
def test_half_of_the_steps_lead_to_a_map_as_trustworthy_as_scikit_learn_s_own(rng: np.random.Generator) -> None:
    rows = load_digits().data[rng.permutation(1797)[:200]].astype(np.float32)
    trusted = [
        trustworthiness(rows, points, n_neighbors=5)
        for points in (embed_by_tsne(rows, seed=0), TSNE(init="pca", random_state=0).fit_transform(rows))
    ]

    # two principal directions have 0.83
    assert trusted[0] > trusted[1] - 0.01


def test_a_few_directions_of_wide_rows_are_those_of_the_singular_values(rng: np.random.Generator) -> None:
    rows = rng.normal(size=(700, 600)) * np.linspace(3, 1, 600)

    directions, shares = principal_directions(rows, 20)

    _, singular, others = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.abs(np.sum(directions * others[:20].T, axis=0)), 1, atol=1e-6)
    np.testing.assert_allclose(shares, (singular**2 / np.square(singular).sum())[:20], rtol=1e-8)
