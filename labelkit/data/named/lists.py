"""Registered datasets of image files, with classes from official text files, MATLAB files or folder names.

Each function lists one dataset of `labelkit.data.registry.DATASETS` from its entry and its folder.
Contradictory lists raise ``KeyError``, ``ValueError`` or ``IndexError``, which the caller reports as damage.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from labelkit.data.datasets import ImageDataset, sort_by_bytes
from labelkit.data.named.benchmark_classes import read_benchmark_classes
from labelkit.data.named.layouts import (
    DatasetSpec,
    ListedImage,
    build_registered_dataset,
    describe_wrong_counts,
    list_images_by_class,
    read_key_value_file,
    read_lines,
    read_matlab,
)
from labelkit.errors import DatasetError, DatasetIncomplete
from labelkit.formatting import join_first_few


def read_cub(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read CUB-200-2011; class numbers are those in ``classes.txt`` minus 1."""
    paths, labels, flags, classes = (read_key_value_file(root / names[0]) for names in spec.required_files[:4])
    class_names = [classes[str(i + 1)] for i in range(len(classes))]
    rows = []
    for key, path in paths.items():
        label = int(labels[key]) - 1
        if path.split("/")[0] != class_names[label]:
            raise ValueError(f"image {key} is {path}, but its class is {class_names[label]}")
        rows.append(ListedImage(f"images/{path}", label, int(flags[key] != "1")))
    return build_registered_dataset(spec, root, rows, class_names)


def read_cars(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read Stanford Cars; class numbers are those in the devkit minus 1.

    The combined edition (car_ims/, cars_annos.mat) is not supported: it numbers the images differently, so that
    published splits cannot be reproduced from it.
    """
    meta, *lists = (_find_first_file(root, names) for names in spec.required_files[2:])
    class_names = [str(name) for name in read_matlab(meta, "class_names")[0]]
    rows = []
    for split, (path, folder) in enumerate(zip(lists, ("cars_train", "cars_test"), strict=True)):
        (table,) = read_matlab(path, "annotations")
        fields = table.dtype.names or ()
        if not {"fname", "class"} <= set(fields):
            problem = f"expected the fields fname and class, found {', '.join(fields) or 'none'}"
            raise DatasetError(str(path), problem, "Use the version of the file that contains labels.")
        rows += [ListedImage(f"{folder}/{row['fname']}", int(row["class"]) - 1, split) for row in table]
    return build_registered_dataset(spec, root, rows, class_names)


def read_aircraft(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read FGVC-Aircraft with the splits ``train`` (trainval) and ``test``; classes are the variants, sorted."""
    parts = [read_key_value_file(root / names[0]) for names in spec.required_files[:2]]
    # Classes are numbered by their rank in trainval, as in the released code of the benchmark.
    class_names = sorted(set(parts[0].values()))
    rows = [
        ListedImage(f"data/images/{image}.jpg", class_names.index(variant), split)
        for split, part in enumerate(parts)
        for image, variant in part.items()
    ]
    return build_registered_dataset(spec, root, rows, class_names)


def read_online_products(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read Stanford Online Products; class numbers are those in its lists minus 1, and splits share no classes."""
    rows: list[ListedImage] = []
    kinds: dict[int, str] = {}
    for split, (name,) in enumerate(spec.required_files):
        for line in read_lines(root / name)[1:]:
            _, number, _, path = line.split()
            label = int(number) - 1
            kinds[label] = path.split("_final/")[0].split("/")[0]
            rows.append(ListedImage(path, label, split))
    class_names = [f"{kinds[label]}/{label + 1}" for label in range(len(kinds))]
    return build_registered_dataset(spec, root, rows, class_names)


def read_in_shop(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read In-Shop with each item as a class; training items come first, followed by those of query and gallery."""
    path = _find_first_file(root, spec.required_files[0])
    images = next(name for name in spec.required_files[1] if (root / name).is_dir())
    count, _, *lines = read_lines(path)  # the first two lines: the number of images, and the column names
    if int(count) != len(lines):
        raise ValueError(f"{path.name} lists {len(lines):,} images, but its first line says {count}")
    items: tuple[set[str], set[str]] = (set(), set())
    found = []
    for line in lines:
        image, item, part = line.split()
        split = tuple(spec.num_images).index(part)
        items[split > 0].add(item)
        found.append((images + image.removeprefix("img/"), item, split))
    if both := items[0] & items[1]:
        raise ValueError(f"{min(both)} is in both the training split and the query or gallery set")
    class_names = [*sorted(items[0]), *sorted(items[1])]
    number = {item: i for i, item in enumerate(class_names)}
    rows = [ListedImage(image, number[item], split) for image, item, split in found]
    return build_registered_dataset(spec, root, rows, class_names)


def read_imagenet(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read ImageNet-1k or ImageNet-100, with classes in the order of the WordNet ids that name their folders.

    The folder may hold all 1,000 classes or only the 100. Source of the 100 classes:
    ``sgvaze/generalized-category-discovery:data/imagenet.py``.
    """
    names = read_benchmark_classes(spec.name).folder_names
    files = {split: list_images_by_class(root / split, frozenset(names)) for split in spec.num_images}
    return _class_folders(spec, root, files, names)


def read_herbarium(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read Herbarium 2019 (small edition); classes are the folders in ``small-train``, sorted as text."""
    files = {names[0].rstrip("/"): list_images_by_class(root / names[0]) for names in spec.required_files}
    train, val = files.values()
    names = sort_by_bytes(name for name, images in train.items() if images)
    if extra := sorted(set(val) - set(names)):
        raise ValueError(f"small-validation contains classes that small-train does not: {join_first_few(extra)}")
    return _class_folders(spec, root, files, names)


def read_tiny_imagenet(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read ImageNet-200 (Tiny ImageNet) without its unlabeled test images; classes are the sorted WordNet ids.

    Papers that pool its 110,000 labeled images and draw 10,000 of them for testing do not publish the draw.
    ``--pool-splits --holdout 0.0909090909`` makes such a draw, 50 of each class; otherwise the 10,000 images of its own
    validation split are held out.
    """
    names = sorted(filter(None, read_lines(root / "wnids.txt")))
    rank = {name: i for i, name in enumerate(names)}
    rows = [
        ListedImage(f"train/{name}/images/{file}", label, 0)
        for name, label in rank.items()
        for file in list_images_by_class(root / "train" / name)["images"]
    ]
    for line in filter(None, read_lines(root / "val/val_annotations.txt")):
        file, name, *_ = line.split("\t")
        rows.append(ListedImage(f"val/images/{file}", rank[name], 1))
    _check_image_counts(spec, root, rows)
    return build_registered_dataset(spec, root, rows, names)


def read_imagenet_lt(spec: DatasetSpec, root: Path) -> ImageDataset:
    """Read ImageNet-LT, the long-tailed ImageNet-1k, from its own file lists and the ImageNet-1k folders."""
    names = read_benchmark_classes(spec.name).folder_names
    rows = []
    for split, (file,) in enumerate(spec.required_files):
        for sample_id, label in read_key_value_file(root / file).items():
            if names[int(label)] not in sample_id.split("/"):
                raise ValueError(f"{file}: {sample_id} has label {label}, whose folder is {names[int(label)]}/")
            rows.append(ListedImage(sample_id, int(label), split))
    above = root.parent
    named = [base / name for base in (above, root, above.parent) for name in ("imagenet", "ILSVRC2012", "imagenet_1k")]
    for images in (root, *named, above):
        if (images / "train").is_dir() and (images / "val").is_dir():
            return build_registered_dataset(spec, images, rows, names)
    problem = f"the lists are in {root}, but there is no imagenet/ with train/ and val/ in {above}"
    place = f"imagenet/train/<wnid>/ and imagenet/val/<wnid>/ in {above}"
    remedy = f"Download ILSVRC 2012 from https://image-net.org/download.php and unpack it as {place}."
    raise DatasetIncomplete(spec.name, problem, remedy)


def _class_folders(
    spec: DatasetSpec, root: Path, files: Mapping[str, Mapping[str, Sequence[str]]], names: Sequence[str]
) -> ImageDataset:
    """List the sorted class folders ``names`` as ``torchvision.datasets.ImageFolder`` numbers them.

    ``files``: folder of each split, in the order of the splits -> class folder -> file names.
    """
    rows = [
        ListedImage(f"{folder}/{name}/{file}", label, split)
        for split, (folder, classes) in enumerate(files.items())
        for label, name in enumerate(names)
        for file in classes.get(name, ())
    ]
    rows.sort(key=lambda row: row.sample_id)  # published splits are drawn in this order
    _check_image_counts(spec, root, rows)
    return build_registered_dataset(spec, root, rows, names)


def _check_image_counts(spec: DatasetSpec, root: Path, rows: Iterable[ListedImage]) -> None:
    """Reject folders whose number of images differs from the published one, since no list of files is published."""
    counts = Counter(row.split for row in rows)
    found = {split: counts[i] for i, split in enumerate(spec.num_images)}
    if problem := describe_wrong_counts(found, spec.num_images):
        raise DatasetIncomplete(str(root), problem, spec.remedy(root.parent))


def _find_first_file(root: Path, names: Sequence[str]) -> Path:
    return next(root / name for name in names if (root / name).is_file())
