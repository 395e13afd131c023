"""Average precision by COCO's official code on files."""

import contextlib
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.evaluate.detection import collect_true_objects
from labelkit.data.object_images import compute_coco_scores
from labelkit.data.region_folders import load_coco_folder
from tests.miniature_sets import GRAY, put


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
    rows = dataset.rows_in_split("val")
    place = {100 - int(Path(dataset.sample_ids[row]).stem): i for i, row in enumerate(rows)}
    label = {entry["id"]: i for i, entry in enumerate(categories)}
    found = [
        {"image": place[image], "label": label[own], "box": box, "score": sure, "mask": runs}
        for image, own, box, sure, runs in results
    ]

    truth, sizes = collect_true_objects(dataset, rows, masks=True), {"num_images": len(rows), "num_classes": 3}

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
    for kind, entries in (("bbox", boxes), ("segm", shapes)):
        expected = [value if value >= 0 else math.nan for value in _official(tmp_path, entries, kind)]
        scores, per_class = compute_coco_scores(truth, found, **sizes, masks=kind == "segm")
        assert list(scores.values()) == pytest.approx(expected, nan_ok=True, abs=1e-12)
        assert 0 < scores["ap50"] <= 1
        # the mean of the classes that have objects is the score of all
        assert np.nanmean(per_class) == pytest.approx(scores["ap"])
    assert compute_coco_scores(collect_true_objects(dataset, rows, masks=False), [], **sizes, masks=False)[0]["ap"] == 0
