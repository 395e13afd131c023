"""Average precision: VOC's by hand and by loops, COCO's by its official code on files."""

from __future__ import annotations

import contextlib
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.evaluate.detection import score_detections, true_objects
from labelkit.data.region_folders import load_coco_folder
from labelkit.protocols.detection.average_precision import average_precision, iou, voc_hits, voc_scores
from tests.miniature_sets import GRAY, put

SQUARES = np.array([[0.0, 0, 10, 10], [20, 20, 30, 30], [40, 0, 50, 10]])


def _boxes(
    rows: list[tuple[int, np.ndarray[Any, Any], float]], ignored: tuple[int, ...] = (), label: int = 0
) -> list[dict[str, Any]]:
    return [
        {"image": image, "label": label, "box": box, "score": sure, "ignored": place in ignored}
        for place, (image, box, sure) in enumerate(rows)
    ]


def test_overlaps_are_shares_of_what_two_boxes_cover() -> None:
    others = np.array([[5.0, 0, 15, 10], [10, 10, 20, 20], [0, 0, 10, 10]])
    assert iou(SQUARES[0], others).tolist() == pytest.approx([50 / 150, 0, 1])


def test_a_ranking_by_hand_has_the_precision_of_both_rules() -> None:
    # 3 boxes; right, wrong, right: recalls 1/3, 1/3, 2/3 with precisions 1, 1/2, 2/3
    hits = np.array([True, False, True])
    assert average_precision(hits, 3, eleven_points=False) == pytest.approx(1 / 3 + 2 / 9)
    # recalls of 0 to 0.3 have 1, those of 0.4 to 0.6 have 2/3, the other four nothing
    assert average_precision(hits, 3, eleven_points=True) == pytest.approx((4 + 3 * 2 / 3) / 11)
    # 3 of 10 boxes reach the point 0.3, although 0.3 has no exact number
    assert average_precision(np.ones(3, bool), 10, eleven_points=True) == pytest.approx(4 / 11)
    assert average_precision(np.ones(3, bool), 3, eleven_points=True) == 1
    assert average_precision(np.zeros(0, bool), 3, eleven_points=False) == 0
    assert math.isnan(average_precision(hits, 0, eleven_points=False))


def test_a_box_is_found_once_by_the_surest_and_difficult_ones_count_for_nothing() -> None:
    truth = _boxes([(0, SQUARES[0], 1), (0, SQUARES[1], 1), (1, SQUARES[0], 1)], ignored=(1,))
    found = _boxes(
        [(0, SQUARES[0], 0.3), (0, SQUARES[0], 0.9), (0, SQUARES[1], 0.8), (1, SQUARES[2], 0.7), (1, SQUARES[0], 0.1)]
    )
    hits, wanted = voc_hits(truth, found)
    # in order: right; difficult, left out; wrong place; found already; right
    assert (hits.tolist(), wanted) == ([True, False, False, True], 2)


def test_classes_without_boxes_are_left_out_of_the_mean() -> None:
    full, other = (_boxes([(0, SQUARES[0], 1)], label=label) for label in (0, 1))
    scores, per_class = voc_scores(full, full + other, 2)
    assert scores == {"ap50_11_point": 1.0, "ap50": 1.0}
    assert per_class[0] == 1
    assert math.isnan(per_class[1])
    assert math.isnan(voc_scores([], full, 1)[0]["ap50"])


def _official(folder: Path, results: list[dict[str, Any]], kind: str) -> list[float]:
    """COCO's own path: its file, and results as it wants them."""
    coco = pytest.importorskip("pycocotools.coco", reason="needs the extra coco")
    evaluation = pytest.importorskip("pycocotools.cocoeval")
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO(str(folder / "annotations/instances_val2017.json"))
        scorer = evaluation.COCOeval(truth, truth.loadRes(results), kind)
        scorer.evaluate()
        scorer.accumulate()
        scorer.summarize()
    return [float(value) for value in scorer.stats[:6]]


@pytest.mark.parametrize("seed", range(5))
def test_random_detections_score_as_cocos_code_scores_them_from_files(tmp_path: Path, seed: int) -> None:
    mask = pytest.importorskip("pycocotools.mask", reason="needs the extra coco")
    rng = np.random.default_rng(seed)
    height, width, count = 150, 200, 4
    categories = [{"id": 5 * i + 3, "name": f"class {i}"} for i in range(3)]
    images, annotations, results = [], [], []
    for number in range(1, count + 1):
        images.append({"id": 100 - number, "file_name": f"{number}.jpg", "height": height, "width": width})
        put(tmp_path / f"val2017/{number}.jpg", GRAY)
        for _ in range(int(rng.integers(1, 6))):
            left, top = rng.integers(0, 100, 2).tolist()
            w, h = (int(side) for side in rng.choice([12, 40, 100], 2))
            w, h = min(w, width - left), min(h, height - top)
            category = int(rng.choice([entry["id"] for entry in categories]))
            corners = [left, top, left + w, top, left + w, top + h, left, top + h]
            crowd = bool(rng.random() < 0.2)
            inside = np.zeros((height, width), dtype=np.uint8, order="F")
            inside[top : top + h, left : left + w] = 1
            runs = {"size": [height, width], "counts": mask.encode(inside)["counts"].decode()}
            annotations.append(
                {
                    "id": len(annotations) + 1, "image_id": 100 - number, "category_id": category,
                    "bbox": [left, top, w, h], "area": 0.9 * w * h, "iscrowd": int(crowd),
                    "segmentation": runs if crowd else [corners],
                }
            )  # fmt: skip
            for _ in range(int(rng.integers(0, 3))):
                box = np.array([left, top, left + w, top + h]) + rng.normal(0, 4, 4)
                moved = box.clip(0, [width, height] * 2).round()
                if (moved[2:] - moved[:2]).min() < 1:
                    continue
                own = category if rng.random() < 0.8 else categories[0]["id"]
                inside = np.zeros((height, width), dtype=np.uint8, order="F")
                inside[int(moved[1]) : int(moved[3]), int(moved[0]) : int(moved[2])] = 1
                results.append((100 - number, own, moved, float(rng.random()), mask.encode(inside)))
    table = {"images": images, "annotations": annotations, "categories": categories}
    put(tmp_path / "annotations/instances_val2017.json", json.dumps(table))
    dataset = load_coco_folder(tmp_path)
    rows = dataset.in_split("val")
    place = {100 - int(Path(dataset.sample_ids[row]).stem): i for i, row in enumerate(rows)}
    label = {entry["id"]: i for i, entry in enumerate(categories)}
    found = [
        {"image": place[image], "label": label[own], "box": box, "score": sure, "mask": runs}
        for image, own, box, sure, runs in results
    ]

    ours = score_detections(dataset, true_objects(dataset, rows, masks=True), found, len(rows), masks=True)

    boxes = [
        {
            "image_id": image, "category_id": own, "score": sure,
            "bbox": [float(side) for side in (box[0], box[1], box[2] - box[0], box[3] - box[1])],
        }
        for image, own, box, sure, _ in results
    ]  # fmt: skip
    shapes = [
        {"image_id": image, "category_id": own, "score": sure, "segmentation": runs}
        for image, own, _, sure, runs in results
    ]
    for part, kind, entries in (("box", "bbox", boxes), ("mask", "segm", shapes)):
        expected = [value if value >= 0 else math.nan for value in _official(tmp_path, entries, kind)]
        assert list(ours[part][0].values()) == pytest.approx(expected, nan_ok=True, abs=1e-12)
        assert 0 < ours[part][0]["ap50"] <= 1
        # the mean of the classes that have objects is the score of all
        assert np.nanmean(ours[part][1]) == pytest.approx(ours[part][0]["ap"])
    assert (
        score_detections(dataset, true_objects(dataset, rows, masks=False), [], len(rows), masks=False)["box"][0]["ap"]
        == 0
    )
