"""Sets with boxes: COCO's JSON and VOC's XML in their official layouts, and what is wrong with damaged ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.data.datasets import ImageDataset, ImageObjects
from labelkit.data.object_images import ExamplePlan, encode_outline, rasterize_outlines, read_example
from labelkit.data.registry import load_dataset
from labelkit.errors import DatasetError
from PIL import Image
from tests.miniature_sets import put, write_coco

VAL = "coco/annotations/instances_val2017.json"


def test_coco_lists_images_boxes_and_classes_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    write_coco(tmp_path / "coco")
    dataset = load_dataset("coco_2017", data_root=tmp_path)
    assert dataset.split_names == ("train", "val")
    assert [len(dataset.rows_in_split(split)) for split in dataset.split_names] == [4, 2]
    assert dataset.object_classes == ("person", "bicycle", "car")
    assert dataset.objects is not None
    row = dataset.sample_ids.index("val2017/000000000005.jpg")
    objects = dataset.objects.read(row)
    # a square of 16, 40 and 100 pixels each, one pixel to the right in image 5, and a crowd
    assert objects.boxes.tolist() == [[113, 100, 129, 116], [108, 21, 148, 61], [3, 10, 103, 110], [159, 0, 160, 128]]
    assert objects.labels.tolist() == [2, 0, 1, 0]
    assert objects.ignored.tolist() == [False, False, False, True]
    assert objects.find_trainable_objects().tolist() == [0, 1, 2]
    assert objects.areas.tolist() == [256, 1600, 10_000, 128]
    assert dataset.objects.sizes[row].tolist() == [128, 160]
    assert dataset.objects.has_outlines
    part = dataset.select([row])
    assert part.objects is not None
    assert part.objects.read(0).boxes.tolist() == objects.boxes.tolist()


def test_a_folder_of_ones_own_is_read_alike_and_its_splits_are_its_files(tmp_path: Path) -> None:
    for split in ("train", "holdout"):
        boxes = [
            {"image_id": 7, "category_id": 1, "bbox": [1, 2, 3, 4]},
            {"image_id": 7, "category_id": 1, "bbox": [0, 0, 0, 2]},
        ]
        table = {"categories": [{"id": 1, "name": "bolt"}], "images": [{"id": 7, "file_name": f"{split}.jpg"}]}
        put(tmp_path / f"annotations/instances_{split}.json", json.dumps({**table, "annotations": boxes}))
        put(tmp_path / f"images/{split}.jpg")
    dataset = load_dataset(str(tmp_path), data_root=tmp_path)
    assert dataset.split_names == ("holdout", "train")
    assert dataset.objects is not None
    objects = dataset.objects.read(0)
    assert objects.boxes.tolist() == [[1, 2, 4, 6], [0, 0, 0, 2]]
    assert objects.areas.tolist() == [12, 0]
    assert objects.find_trainable_objects().tolist() == [0]  # a box without area teaches nothing
    assert not dataset.objects.has_outlines


def _change(key: str, place: int, **values: object) -> Callable[[dict[str, Any]], object]:
    return lambda table: table[key][place].update(values)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.pop("categories"), "has no categories"),
        (lambda table: table.update(categories=[]), "has no categories"),
        (lambda table: table.update(annotations={}), "annotations: Input should be a valid array"),
        (lambda table: table["annotations"].append(3), "annotations.8: Input should be an object"),
        (_change("categories", 1, name="person"), "contains two categories with the same name"),
        (_change("categories", 1, name="tandem"), "its categories differ from those of instances_train2017.json"),
        (_change("images", 0, id=6), "lists image 6 twice"),
        (_change("images", 0, height="128"), "images.0.height: Input should be a valid integer"),
        (_change("images", 0, file_name="gone.jpg"), "missing: val2017/gone.jpg"),
        (_change("annotations", 0, image_id=99), "annotation 50 refers to image 99, which is not in the file"),
        (_change("annotations", 0, category_id=2), "annotation 50 refers to category 2, which is not in the file"),
        (_change("annotations", 0, bbox=[1, 2, 3]), "annotations.0.bbox.3: Field required"),
        (
            _change("annotations", 0, bbox=[1, 2, -3, 4]),
            "annotations.0.bbox.2: Input should be greater than or equal to 0",
        ),
        # right and bottom in place of width and height
        (
            _change("annotations", 0, bbox=[113, 100, 129, 116]),
            "annotation 50: bbox [113.0, 100.0, 129.0, 116.0] is mostly outside its image of 160 x 128 pixels",
        ),
    ],
)
def test_a_damaged_json_is_refused_with_its_place(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    write_coco(tmp_path / "coco")
    table = json.loads((tmp_path / VAL).read_text())
    change(table)
    (tmp_path / VAL).write_text(json.dumps(table))
    with pytest.raises(DatasetError) as caught:
        load_dataset("coco_2017", data_root=tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_box_may_pass_the_border_by_less_than_its_half(tmp_path: Path) -> None:
    write_coco(tmp_path / "coco")
    table = json.loads((tmp_path / VAL).read_text())
    _change("annotations", 0, bbox=[-3, 120, 20, 12])(table)
    (tmp_path / VAL).write_text(json.dumps(table))
    dataset = load_dataset("coco_2017", data_root=tmp_path)
    assert dataset.objects is not None
    row = dataset.sample_ids.index("val2017/000000000005.jpg")
    assert dataset.objects.read(row).boxes[0].tolist() == [-3, 120, 17, 132]


@pytest.fixture
def listed(tmp_path: Path) -> ImageDataset:
    write_coco(tmp_path / "coco")
    return load_dataset("coco_2017", data_root=tmp_path)


def test_a_mirrored_image_takes_its_boxes_and_masks_along(listed: ImageDataset) -> None:
    assert listed.objects is not None
    objects = listed.objects.read(0).select(np.array([0, 2]))
    plan = ExamplePlan.for_image(listed, 0, objects=objects, masks=True)
    straight = read_example(listed.source, 3, plan)
    mirrored = read_example(
        listed.source, 3, ExamplePlan.for_image(listed, 0, objects=objects, masks=True, mirror=True)
    )
    assert mirrored[0].equal(straight[0].flip(-1))
    assert mirrored[1]["masks"].equal(straight[1]["masks"].flip(-1))
    for image, target in (straight, mirrored):
        for box, mask in zip(target["boxes"].int().tolist(), target["masks"], strict=True):
            left, top, right, bottom = box
            assert mask.sum() == mask[top:bottom, left:right].sum() == (right - left) * (bottom - top)
            # the squares are red
            assert image[0, top + 2 : bottom - 2, left + 2 : right - 2].min() > 150
    assert straight[1]["labels"].tolist() == (objects.labels + 1).tolist()


@pytest.mark.parametrize(
    "outline",
    [[[1, 1, 4, 1, 4, 3, 1, 3]], {"size": [5, 6], "counts": [6, 2, 3, 2, 3, 2, 12]}],
)
def test_outlines_of_both_kinds_become_masks(outline: object) -> None:
    (mask,) = rasterize_outlines([outline], 5, 6)
    expected = np.zeros((5, 6), dtype=np.uint8)
    expected[1:3, 1:4] = 1
    assert mask.tolist() == expected.tolist()
    # what COCO writes in place of the numbers
    counts = encode_outline(outline, 5, 6)["counts"]
    text = {"size": [5, 6], "counts": counts.decode()}
    assert rasterize_outlines([text], 5, 6)[0].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("outline", "said"),
    [
        ([[1, 1, 2, 2]], "must be a list of polygons"),
        ([], "must be a list of polygons"),
        ([[1, 1, 4, 1, 4, "3"]], "must be a list of polygons"),
        ({"size": [6, 5], "counts": [30]}, "run lengths for 5 rows and 6 columns"),
        ({"size": [5, 6], "counts": [29]}, "must sum to 30, got 29"),
        ({"size": [5, 6], "counts": None}, "a list of integers or a string"),
        (3, "must be polygons, or run lengths"),
    ],
)
def test_what_is_no_outline_is_refused(listed: ImageDataset, outline: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rasterize_outlines([outline], 5, 6)
    objects = ImageObjects(np.ones((1, 4)), np.zeros(1, np.int64), np.zeros(1, np.bool_), np.ones(1), (outline,))
    with pytest.raises(DatasetError, match=r"jpg: .*Correct its annotation"):
        read_example(listed.source, 3, ExamplePlan.for_image(listed, 0, objects=objects, masks=True))


def test_an_image_of_another_size_than_its_annotation_is_refused(listed: ImageDataset) -> None:
    assert listed.root is not None
    with Image.open(listed.root / listed.sample_ids[0]) as image:
        image.resize((80, 64)).save(listed.root / listed.sample_ids[0])
    with pytest.raises(DatasetError, match="the image has 80 x 64 pixels, but its annotation says 160 x 128"):
        read_example(listed.source, 3, ExamplePlan.for_image(listed, 0))
