"""The named datasets in their official layouts, with a few tiny images.

What tests read instead of gigabytes. Images are flat colors or a few columns: nothing can be learned from them.
"""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from labelkit.data.named.benchmark_classes import read_benchmark_classes
from labelkit.data.named.masks import VOC_CLASSES
from PIL import Image
from scipy.io import savemat


def jpeg(value: int = 0) -> bytes:
    """A gray image of 12 x 10 pixels."""
    buffer = io.BytesIO()
    Image.new("RGB", (12, 10), (value, value, value)).save(buffer, "JPEG")
    return buffer.getvalue()


GRAY = jpeg(128)


def put(path: Path, content: bytes | str = GRAY) -> None:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


CUB_CLASSES = ("001.Auk", "002.Big_Bee_eater", "003.Crow")


def write_cub(root: Path, classes: Sequence[str] = CUB_CLASSES) -> list[str]:
    """Three images per class, the second of them for testing, in an order that is not that of their names.

    Returns:
        sample ids in the order of images.txt.
    """
    paths = [f"{name}/{name[4:]}_{number}.jpg" for name in classes for number in ("0046", "0009", "0002")]
    label = {name: i + 1 for i, name in enumerate(classes)}
    numbered = list(enumerate(paths, start=1))
    put(root / "images.txt", "".join(f"{i} {path}\n" for i, path in numbered))
    put(root / "image_class_labels.txt", "".join(f"{i} {label[path.split('/')[0]]}\n" for i, path in numbered))
    put(root / "train_test_split.txt", "".join(f"{i} {int('0009' not in path)}\n" for i, path in numbered))
    put(root / "classes.txt", "".join(f"{i} {name}\n" for name, i in label.items()))
    for i, path in numbered:
        put(root / "images" / path, jpeg(20 * i % 256))
    return [f"images/{path}" for path in paths]


CAR_CLASSES = ("AM General Hummer SUV 2000", "Acura RL Sedan 2012")


def write_annotations(path: Path, rows: Sequence[tuple[str, int]], *, labels: bool = True) -> None:
    """Write a list of Stanford Cars: file and class of each image."""
    fields = [(name, object) for name in ("bbox_x1", "class", "fname") if labels or name != "class"]
    table = np.empty(len(rows), dtype=fields)
    for i, (file, label) in enumerate(rows):
        table[i] = (39, label, file) if labels else (39, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"annotations": table})


def write_cars(
    root: Path,
    *,
    test_labels: str = "cars_test_annos_withlabels.mat",
    classes: Sequence[str] = CAR_CLASSES,
) -> None:
    """Two images of each class for training, the last class first, one for testing."""
    count = len(classes)
    train = [(f"{i + 1:05d}.jpg", count - i % count) for i in range(2 * count)]
    test = [(f"{i + 1:05d}.jpg", i + 1) for i in range(count)]
    write_annotations(root / "devkit/cars_train_annos.mat", train)
    write_annotations(root / test_labels, test)
    savemat(root / "devkit/cars_meta.mat", {"class_names": np.array([classes], dtype=object)})
    for folder, rows in (("cars_train", train), ("cars_test", test)):
        for file, label in rows:
            put(root / folder / file, jpeg(60 * label % 256))


VARIANTS = ("707-320", "A300B4", "Cessna 172", "DR-400")


def write_aircraft(root: Path, variants: Sequence[str] = VARIANTS) -> list[str]:
    """Two images of each variant for training, one for testing; variants.txt in another order than sorted.

    Returns:
        sample ids of the training images in the order of their list.
    """
    last = len(variants)
    train = [(f"{last + 5 - i}{number}", name) for i, name in enumerate(variants) for number in (2, 1)]
    test = [(f"500{i}", name) for i, name in enumerate(variants)]
    put(root / "data/images_variant_trainval.txt", "".join(f"{image} {name}\n" for image, name in train))
    put(root / "data/images_variant_test.txt", "".join(f"{image} {name}\n" for image, name in test))
    put(root / "data/variants.txt", "".join(f"{name}\n" for name in reversed(variants)))
    for i, (image, _) in enumerate(train + test):
        put(root / f"data/images/{image}.jpg", jpeg(20 * i % 256))
    return [f"data/images/{image}.jpg" for image, _ in train]


def write_imagenet(root: Path, names: Sequence[str], *, train: int = 2, val: int = 1) -> None:
    """Class folders with a few images each."""
    for split, count in (("train", train), ("val", val)):
        for name in names:
            for i in range(count):
                put(root / split / name / f"{name}_{i}.JPEG")


def imagenet_names(name: str = "imagenet_100") -> tuple[str, ...]:
    """Published class folders."""
    return read_benchmark_classes(name).folder_names


def write_herbarium(root: Path, classes: Sequence[str] = ("1", "10", "2")) -> None:
    """Two images per class for training, one for validation; file names repeat across classes."""
    for name in classes:
        for file in ("00000.jpg", "00001.jpg"):
            put(root / "small-train" / name / file)
        put(root / "small-validation" / name / "00000.jpg")


def write_svhn(root: Path, *, train: int = 6, test: int = 4) -> None:
    """Image i is gray i * 10 with its first row white; labels count down from 10, which is the digit 0."""
    for split, count in (("train", train), ("test", test)):
        pixels = np.stack([np.full((32, 32, 3), 10 * i % 256, np.uint8) for i in range(count)], axis=3)
        pixels[0] = 255
        root.mkdir(parents=True, exist_ok=True)
        savemat(root / f"{split}_32x32.mat", {"X": pixels, "y": (10 - np.arange(count) % 10)[:, None].astype(np.uint8)})


STL_CLASSES = ("airplane", "bird", "car")


def write_stl10(root: Path, *, train: int = 5, test: int = 3, unlabeled: int = 0) -> None:
    """Image i of a split has red i in its first column, green 7 in its first row, blue 9 everywhere."""
    root.mkdir(parents=True, exist_ok=True)
    put(root / "class_names.txt", "".join(f"{name}\n" for name in STL_CLASSES))
    for split, count in (("train", train), ("test", test), ("unlabeled", unlabeled)):
        if not count:
            continue
        images = np.zeros((count, 96, 96, 3), np.uint8)
        images[:, :, 0, 0] = np.arange(1, count + 1)[:, None] % 256
        images[:, 0, :, 1] = 7
        images[..., 2] = 9
        images.transpose(0, 3, 2, 1).tofile(root / f"{split}_X.bin")
        if split != "unlabeled":
            (np.arange(count, dtype=np.uint8) % 3 + 1).tofile(root / f"{split}_y.bin")


def write_tiny_imagenet(root: Path, names: Sequence[str], *, train: int = 2) -> None:
    """A few training images and one validation image per class, listed in reverse."""
    put(root / "wnids.txt", "".join(f"{name}\n" for name in reversed(names)))
    for name in names:
        for i in range(train):
            put(root / "train" / name / "images" / f"{name}_{i}.JPEG")
        put(root / "train" / name / f"{name}_boxes.txt", "")
    lines = [f"val_{i}.JPEG\t{name}\t0\t0\t9\t9\n" for i, name in enumerate(reversed(names))]
    put(root / "val/val_annotations.txt", "".join(lines))
    for i in range(len(names)):
        put(root / f"val/images/val_{i}.JPEG")
    put(root / "test/images/test_0.JPEG")


def write_imagenet_lt(lists: Path, images: Path, names: Sequence[str]) -> None:
    """One image of the last class for training, two of the others; one of each for validation and test."""
    write_imagenet(images, names, train=3)
    train = [(f"train/{name}/{name}_{i}.JPEG", label) for label, name in enumerate(names) for i in range(2)][:-1]
    val = [(f"train/{name}/{name}_2.JPEG", label) for label, name in enumerate(names)]
    test = [(f"val/{name}/{name}_0.JPEG", label) for label, name in enumerate(names)]
    for split, rows in (("train", train), ("val", val), ("test", test)):
        put(lists / f"ImageNet_LT_{split}.txt", "".join(f"{path} {label}\n" for path, label in rows))


def write_online_products(root: Path, kinds: Sequence[str] = ("chair", "lamp", "sofa")) -> None:
    """Two images of each class: the last of three classes for testing, the others for training."""
    header = "image_id class_id super_class_id path\n"
    rows = [
        (2 * i + j + 1, i + 1, f"{kind}_final/{111 * (i + 1)}_{j}.JPG") for i, kind in enumerate(kinds) for j in (0, 1)
    ]
    cut = 2 * (len(kinds) * 2 // 3)
    put(root / "Ebay_train.txt", header + "".join(f"{image} {label} 1 {path}\n" for image, label, path in rows[:cut]))
    put(root / "Ebay_test.txt", header + "".join(f"{image} {label} 1 {path}\n" for image, label, path in rows[cut:]))
    for image, _, path in rows:
        put(root / path, jpeg(30 * image % 256))


def write_in_shop(root: Path, *, items: int = 1) -> Path:
    """Some items for training, two images each, as many others as query and gallery, two images each.

    Returns:
        the list.
    """
    tested, trained = ([f"id_{2 * i + part:08d}" for i in range(items)] for part in (1, 2))
    rows = [(f"img/WOMEN/Tees/{item}/{i}.jpg", item, "train") for item in trained for i in range(2)]
    for part, numbers in (("query", (0, 1)), ("gallery", (2, 3))):
        rows += [(f"img/WOMEN/Tees/{item}/{i}.jpg", item, part) for item in tested for i in numbers]
    table = "".join(f"{path:<40} {item} {part}\n" for path, item, part in rows)
    put(root / "Eval/list_eval_partition.txt", f"{len(rows)}\nimage_name item_id evaluation_status\n{table}")
    for i, (path, _, _) in enumerate(rows):
        put(root / "Img" / path, jpeg(30 * i % 256))
    return root / "Eval/list_eval_partition.txt"


def mask_png(values: Sequence[int] = (0,), *, palette: bool = False, size: tuple[int, int] = (12, 10)) -> bytes:
    """A mask as large as ``jpeg()`` whose columns have the values in turn; with a palette, as VOC and DAVIS have."""
    columns = np.resize(np.array(values, dtype=np.uint8), size[0])
    image = Image.fromarray(np.tile(columns, (size[1], 1)))
    if palette:
        image.putpalette([(37 * i) % 256 for i in range(768)])
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def write_camvid(root: Path, *, tutorial: bool = False) -> None:
    """Two images in each split, one class per column; as folders of images and masks, or as the tutorial has them."""
    for split in ("train", "val", "test"):
        for i in range(2):
            images, masks = (split, f"{split}annot") if tutorial else (f"{split}/images", f"{split}/masks")
            put(root / images / f"{i}.jpg", jpeg(40 * i))
            put(root / masks / f"{i}.png", mask_png(range(12)))


def write_voc(root: Path) -> None:
    """Two images with a mask for training, one for validation, and one without mask that no list names."""
    for split, names in (("train", ("2007_000032", "2007_000039")), ("val", ("2007_000033",))):
        put(root / f"ImageSets/Segmentation/{split}.txt", "".join(f"{name}\n" for name in names))
        for name in names:
            put(root / f"JPEGImages/{name}.jpg")
            put(root / f"SegmentationClass/{name}.png", mask_png((0, 20, 255), palette=True))
    put(root / "JPEGImages/2007_000001.jpg")


def write_voc_classes(root: Path, *, train: int = 4, test: int = 4) -> None:
    """Image i has class i modulo 20 and the next one; the one after that is difficult."""
    for split, first, count in (("trainval", 100_000, train), ("test", 200_000, test)):
        names = [f"{first + i:06d}" for i in range(count)]
        for label, title in enumerate(VOC_CLASSES[1:]):
            after = [(label - i) % 20 for i in range(count)]
            values = [{0: 1, 1: 1, 2: 0}.get(place, -1) for place in after]
            lines = [f"{name} {value:2d}\n" for name, value in zip(names, values, strict=True)]
            put(root / f"ImageSets/Main/{title}_{split}.txt", "".join(lines))
        for i, name in enumerate(names):
            put(root / f"JPEGImages/{name}.jpg", jpeg(12 * i % 256))


ADE_CLASSES = ("wall", "building, edifice", "sky")


def write_ade20k(root: Path) -> None:
    """Two images for training, one for validation, three classes."""
    lines = [f"{i}\t0.1\t1\t1\t1\t{name}\n" for i, name in enumerate(ADE_CLASSES, start=1)]
    put(root / "objectInfo150.txt", "Idx\tRatio\tTrain\tVal\tStuff\tName\n" + "".join(lines))
    for split, names in (("training", ("ADE_train_1", "ADE_train_2")), ("validation", ("ADE_val_1",))):
        for name in names:
            put(root / f"images/{split}/{name}.jpg")
            put(root / f"annotations/{split}/{name}.png", mask_png((0, 1, 3)))


def write_cityscapes(root: Path) -> None:
    """One image of each of two cities, and one of a third for validation."""
    for split, city in (("train", "aachen"), ("train", "ulm"), ("val", "munster")):
        name = f"{city}_000000_000019"
        put(root / f"leftImg8bit/{split}/{city}/{name}_leftImg8bit.png", mask_png((90,)))
        put(root / f"gtFine/{split}/{city}/{name}_gtFine_labelIds.png", mask_png((0, 7, 8, 33, 9, 30)))
        put(root / f"gtFine/{split}/{city}/{name}_gtFine_color.png")


def write_coco_stuff(root: Path) -> None:
    """Two images for training, one for validation."""
    for split, names in (("train2017", ("000000000009", "000000000025")), ("val2017", ("000000000139",))):
        for i, name in enumerate(names):
            put(root / f"images/{split}/{name}.jpg", jpeg(90 + 40 * i))
            put(root / f"annotations/{split}/{name}.png", mask_png((0, 1, 90, 91, 181, 255)))


OBJECT_CLASSES = ("person", "bicycle", "car")


def write_coco(root: Path, *, train: int = 4, val: int = 2, classes: Sequence[str] = OBJECT_CLASSES) -> None:
    """Images of 160 x 128 pixels with a small, a medium and a large square each, and a crowd in each for validation.

    Classes are in turn; the numbers of their categories have gaps, as the official ones have.
    """
    categories = [{"id": 2 * i + 1, "name": name, "supercategory": "thing"} for i, name in enumerate(classes)]
    first = 1
    for split, count in (("train2017", train), ("val2017", val)):
        images: list[dict[str, object]] = []
        annotations: list[dict[str, object]] = []
        for number in range(first, first + count):
            name, shift = f"{number:012d}.jpg", number % 4
            squares = [(112 + shift, 100, 16), (108, 20 + shift, 40), (2 + shift, 10, 100)]
            images.append({"id": number, "file_name": name, "height": 128, "width": 160})
            put(root / split / name, _squares(squares, (160, 128)))
            for place, (left, top, side) in enumerate(squares):
                right, bottom = left + side, top + side
                annotations.append(
                    {
                        "id": 10 * number + place, "image_id": number, "bbox": [left, top, side, side],
                        "category_id": categories[(number + place) % len(classes)]["id"], "area": side * side,
                        "iscrowd": 0, "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
                    }
                )  # fmt: skip
            if split == "val2017":
                runs = {"size": [128, 160], "counts": [128 * 159, 128]}
                crowd = {"id": 10 * number + 9, "image_id": number, "bbox": [159, 0, 1, 128], "area": 128}
                annotations.append({**crowd, "category_id": categories[0]["id"], "iscrowd": 1, "segmentation": runs})
        first += count
        table = {"images": images, "annotations": annotations, "categories": categories}
        put(root / f"annotations/instances_{split}.json", json.dumps(table))


def _squares(squares: Sequence[tuple[int, int, int]], size: tuple[int, int]) -> bytes:
    """A JPEG of red squares (left, top, side) on a dark ground."""
    pixels = np.full((size[1], size[0], 3), 40, dtype=np.uint8)
    for left, top, side in squares:
        pixels[top : top + side, left : left + side] = (230, 60, 40)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def write_davis(root: Path, *, size: tuple[int, int] = (64, 48), num_frames: int = 4) -> None:
    """Two films for training, one for validation: two objects before a background that is darker.

    Object 1 moves to the right by two pixels in each frame, object 2 stays.
    """
    for split, films in (("train", ("bear", "bmx-bumps")), ("val", ("bike-packing",))):
        put(root / f"ImageSets/2017/{split}.txt", "".join(f"{film}\n" for film in films))
        for film in films:
            for i in range(num_frames):
                mask = np.zeros(size[::-1], dtype=np.uint8)
                mask[8:24, 8 + 2 * i : 24 + 2 * i] = 1
                mask[28:44, 40:56] = 2
                pixels = np.array([[30, 30, 40], [230, 60, 40], [40, 220, 230]], dtype=np.uint8)[mask]
                image, truth = io.BytesIO(), io.BytesIO()
                Image.fromarray(pixels).save(image, "JPEG", quality=95)
                colored = Image.fromarray(mask)
                colored.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0] + [0] * 759)
                colored.save(truth, "PNG")
                put(root / f"JPEGImages/480p/{film}/{i:05d}.jpg", image.getvalue())
                put(root / f"Annotations/480p/{film}/{i:05d}.png", truth.getvalue())


def write_cifar(root: Path, *, num_classes: int, train: int = 6, test: int = 2) -> None:
    """CIFAR-10 or CIFAR-100 as extracted images; these are columns whose places tell their class."""
    for split, per_class in (("train", train), ("test", test)):
        for label in range(num_classes):
            pixels = np.zeros((32, 32, 3), np.uint8)
            pixels[:, label % 32] = 200
            pixels[:, :, 1] += label // 32 * 60
            image = io.BytesIO()
            Image.fromarray(pixels).save(image, "PNG")
            for i in range(per_class):
                put(root / split / f"class_{label:02d}" / f"{i}.png", image.getvalue())


def _numbered(count: int) -> list[str]:
    return [f"class_{i:04d}" for i in range(count)]


def write_folders(root: Path, *, num_classes: int = 20) -> None:
    """Class folders in train/ and val/, as anybody's own images are: four images of each class and one."""
    for split, count in (("train", 4), ("val", 1)):
        for label in range(num_classes):
            for i in range(count):
                put(root / split / f"class_{label:04d}" / f"{i}.jpg", jpeg((12 * label + i) % 256))


def write_class_vectors(path: Path, names: Sequence[str], *, dim: int = 200) -> None:
    """A text file of made-up word vectors by class name, as word2vec and GloVe have them."""
    vectors = np.random.default_rng(0).standard_normal((len(names), dim)).round(3)
    lines = [f"{name.replace(' ', '_')} {' '.join(map(str, row))}" for name, row in zip(names, vectors, strict=True)]
    put(path, "\n".join(lines) + "\n")


MINIATURES: Final[Mapping[str, Callable[[Path], object]]] = {
    "cifar10": lambda root: write_cifar(root / "cifar10", num_classes=10, train=20),
    "cifar100": lambda root: write_cifar(root / "cifar100", num_classes=100, train=4, test=1),
    "svhn": lambda root: write_svhn(root / "svhn", train=200, test=20),
    "stl10": lambda root: write_stl10(root / "stl10_binary", train=60, test=20),
    "cub": lambda root: write_cub(root / "CUB_200_2011", [f"{i + 1:03d}.Bird_{i + 1}" for i in range(200)]),
    "scars": lambda root: write_cars(root / "stanford_cars", classes=_numbered(196)),
    "aircraft": lambda root: write_aircraft(root / "fgvc-aircraft-2013b", _numbered(100)),
    "sop": lambda root: write_online_products(root / "Stanford_Online_Products", _numbered(330)),
    "in_shop": lambda root: write_in_shop(root / "In-shop Clothes Retrieval Benchmark", items=16),
    "coco_stuff_27": lambda root: write_coco_stuff(root / "cocostuff/dataset"),
    "voc_2012": lambda root: write_voc(root / "VOCdevkit/VOC2012"),
    "voc_2007_classes": lambda root: write_voc_classes(root / "VOCdevkit/VOC2007", train=24, test=24),
    "ade20k": lambda root: write_ade20k(root / "ADEChallengeData2016"),
    "cityscapes": lambda root: write_cityscapes(root / "cityscapes"),
    "davis_2017": lambda root: write_davis(root / "DAVIS"),
    "coco_2017": lambda root: write_coco(root / "coco"),
}
"""What writes the miniature of a named dataset into a data root."""


def make_miniature(name: str, data_root: Path) -> str:
    """Write the miniature of a named dataset, unless it is there.

    Sets whose number of images is checked (ImageNet, Herbarium 19) are stood in for by class folders.

    Args:
        name: of the dataset.
        data_root: where named sets lie.

    Returns:
        what ``--dataset`` says.
    """
    place, done, write = data_root / name, data_root / f".{name}", MINIATURES.get(name)
    if not done.exists():
        write_folders(place) if write is None else write(data_root)
        done.write_text("")
    return str(place) if write is None else name
