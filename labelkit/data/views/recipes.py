"""View recipes: the augmentations of each method, as in its paper or code.

Sources: ``CVMI-Lab/SimGCD:data/augmentations`` (weak, test), the FlipClass paper App. D.2 (strong); others are named at
the functions. :class:`labelkit.data.views.spec.ViewSpec` defines the parameters. Everywhere, ``size`` is the side in
pixels; ``chiral`` images are not flipped, and only ``photographic`` ones get color changes.
"""

from dataclasses import replace
from typing import Any, Final, Literal

from labelkit.data.center_crop import Interpolation
from labelkit.data.views.colors import Pool
from labelkit.data.views.spec import ViewSpec

Domain = Literal["digits", "fine", "generic"]
ViewRecipe = Literal["digits", "cifar", "imagenet", "mocov2"]
SemiSupervisedRecipe = Literal["digits", "crop-flip"]
ClassificationRecipe = Literal["none", "digits", "crop-flip", "imagenet", "imagenet-jitter"]
MetricRecipe = Literal["none", "digits", "crop-flip", "box", "crop"]
DenseRecipe = Literal["dino", "paper", "none"]
StoredRecipe = Literal["crop", "box", "color", "digits"]

_SMALL_IMAGE: Final = 64


def blur_kernel_size(size: int) -> int:
    """Return the odd blur kernel size nearest to a tenth of the image size (23 for 224, 3 for 32)."""
    return max(2 * round((0.1 * size - 1) / 2) + 1, 1)


def test_view(size: int, domain: Domain = "generic") -> ViewSpec:  # noqa: PT028 - not a test, in spite of its name
    """Return the deterministic view used for embedding and scoring.

    Digits are resized; photos are resized to 8/7 of the size, then the center is cropped (256, 224).
    """
    return ViewSpec(size) if domain == "digits" else ViewSpec(size, resize_ratio=1 / 0.875)


def plain_view(size: int) -> ViewSpec:
    """Return the test view for images of unknown kind: small images are shown whole, others are center-cropped."""
    return test_view(size, "digits" if size <= _SMALL_IMAGE else "generic")


test_view.__test__ = False  # type: ignore[attr-defined] # keeps pytest from collecting it in tests that import it


def _digit_view(size: int, **moves: Any) -> ViewSpec:
    return ViewSpec(size, interpolation="bilinear", padding="zeros", **moves)


def weak_view(size: int, domain: Domain, *, chiral: bool) -> ViewSpec:
    """Return FlipClass's weak view (paper, D.2), which shifts digits by up to 2 of 32 pixels."""
    if domain == "digits":
        return _digit_view(size, shift_px=2 * size / 32)
    return simgcd_view(size, domain, chiral=chiral)


def strong_view(size: int, domain: Domain, *, chiral: bool) -> ViewSpec:
    """Return FlipClass's strong view for digits, fine-grained photos or generic photos."""
    kernel = blur_kernel_size(size)
    if domain == "digits":
        moved = _digit_view(size, zoom_range=(1.0, 1.67), shift_px=2 * size / 32, rotation_rad=0.2)
        return replace(moved, blur_prob=0.5, blur_kernel=kernel, brightness_range=(0.6, 1.4))
    fine = ViewSpec(
        size,
        area_range=(0.3, 1.0),
        hflip=0.0 if chiral else 0.5,
        blur_prob=0.5,
        blur_sigma=(0.1, 2.0),
        blur_kernel=kernel,
    )
    if domain == "fine":
        return fine
    return replace(fine, jitter_prob=0.8, jitter=(0.4, 0.4, 0.2, 0.1), gray_prob=0.2, solarize_prob=0.2)


def simgcd_view(size: int, domain: Domain, *, chiral: bool) -> ViewSpec:
    """Return the training transform used in the SimGCD code: resize, random crop, flip (its jitter has no effect)."""
    hflip = 0.0 if chiral or domain == "digits" else 0.5
    return ViewSpec(size, resize_ratio=1 / 0.875, crop="random", hflip=hflip)


def sela_view(size: int, recipe: ViewRecipe, *, chiral: bool, photographic: bool = True) -> ViewSpec:
    """Return the training view of SeLa.

    ``cifar`` and ``imagenet``: a random box of 20 to 100% (8 to 100%) of the area, color jitter of strength 0.4 in all
    four properties, grayscale with probability 0.2 (released code). ``mocov2``: MoCo v2's view, with blur (the code's
    later models). ``digits``: scale 0.8 to 1.2, rotation of 0.25 rad, shift of 15% of half a side (ours; spec. 4).
    """
    if recipe == "digits":
        return _digit_view(size, zoom_range=(0.8, 1.2), shift_px=0.15 * size / 2, rotation_rad=0.25)
    hflip, color = 0.0 if chiral else 0.5, 1.0 if photographic else 0.0
    view = ViewSpec(
        size,
        area_range=(0.08, 1.0) if recipe == "imagenet" else (0.2, 1.0),
        hflip=hflip,
        jitter_prob=color,
        jitter=(0.4, 0.4, 0.4, 0.4),
        gray_prob=0.2 * color,
    )
    if recipe != "mocov2":
        return view
    kernel = blur_kernel_size(size)
    return replace(view, jitter_prob=0.8 * color, jitter=(0.4, 0.4, 0.4, 0.1), blur_prob=0.5, blur_kernel=kernel)


def siamese_views(
    size: int,
    *,
    crop: Literal["independent", "same", "none"],
    scale: tuple[float, float],
    flip: float,
    jitter: float,
    gray: float,
    blur: float,
) -> tuple[ViewSpec, ViewSpec]:
    """Return the two views of SimCLR, each step of which is optional (CoTAP, App. B.1).

    The crop is a random box for each view, the same box for both, or the whole image; ``scale`` is the fraction of the
    image's area in a box. The other numbers are probabilities: of a horizontal flip, of color jitter of strength 0.5
    (0.4 for brightness, contrast and saturation, 0.1 for hue), of conversion to grayscale, and of blur.
    """
    view = ViewSpec(
        size,
        area_range=None if crop == "none" else scale,
        hflip=flip,
        jitter_prob=jitter,
        jitter=(0.4, 0.4, 0.4, 0.1),
        gray_prob=gray,
        blur_prob=blur,
        blur_kernel=blur_kernel_size(size),
    )
    return view, replace(view, box_as=0) if crop == "same" else view


def multi_crop_views(
    sizes: tuple[int, int],
    num_local: int,
    recipe: DenseRecipe,
    *,
    global_scale: tuple[float, float],
    local_scale: tuple[float, float],
    min_overlap: tuple[float, float] | None = None,
    chiral: bool,
    photographic: bool = True,
) -> tuple[ViewSpec, ...]:
    """Return the multi-crop views of DINO: two large and several small crops.

    Each view has its own box and is flipped independently. If boxes must overlap, an image is flipped in all of its
    views or in none, so that positions in one view can be found in another.

    ``sizes`` are the sides of a large and of a small view; a large view shows a fraction ``global_scale`` of the
    image's area, each of ``num_local`` small ones ``local_scale``. ``min_overlap`` is the minimum overlap of the large
    views, and of small with large ones, as a fraction of the image. Recipes: ``dino``: jitter, grayscale, blur,
    solarize; ``paper``: without solarize; ``none``: no color changes.
    """
    colors = float(photographic and recipe != "none")

    def view(size: int, scale: tuple[float, float], blur: float, solarize: float) -> ViewSpec:
        return ViewSpec(
            size,
            area_range=scale,
            hflip=0.0 if chiral else 0.5,
            jitter_prob=0.8 * colors,
            jitter=(0.4, 0.4, 0.2, 0.1),
            gray_prob=0.2 * colors,
            blur_prob=blur if recipe != "none" else 0.0,
            blur_kernel=blur_kernel_size(size),
            solarize_prob=solarize * colors if recipe == "dino" else 0.0,
        )

    first, second = view(sizes[0], global_scale, 1.0, 0.0), view(sizes[0], global_scale, 0.1, 0.2)
    small = view(sizes[1], local_scale, 0.5, 0.0)
    if min_overlap is not None:
        first = replace(first, mirror_as=0)
        second = replace(second, mirror_as=0, anchors=(0,), min_overlap=min_overlap[0])
        small = replace(small, mirror_as=0, anchors=(0, 1), min_overlap=min_overlap[1])
    return (first, second, *[small] * num_local)


def classification_view(size: int, recipe: ClassificationRecipe, *, chiral: bool) -> ViewSpec:
    """Return the training view of a classifier.

    ``crop-flip``: padded by 4 black pixels, cropped and flipped (He et al., CIFAR); ``imagenet``: a random box of 8 to
    100% of the area, flipped; ``imagenet-jitter``: also jitter of strength 0.4 except for hue (long-tailed ImageNet);
    ``digits``: scale 0.8 to 1.2, rotation of 0.25 rad, shift of 15% of half a side (ours); ``none``: only resized.
    """
    hflip = 0.0 if chiral else 0.5
    if recipe == "none":
        return ViewSpec(size)
    if recipe == "digits":
        # edge pixels are repeated: with black padding, accuracy on digits was lower by up to 2 points
        return replace(sela_view(size, "digits", chiral=chiral), padding="border")
    if recipe == "crop-flip":
        return ViewSpec(size, shift_px=4, whole_pixels=True, hflip=hflip, interpolation="bilinear", padding="zeros")
    jitter = (0.4, 0.4, 0.4, 0.0) if recipe == "imagenet-jitter" else (0.0, 0.0, 0.0, 0.0)
    return ViewSpec(size, area_range=(0.08, 1.0), hflip=hflip, jitter_prob=float(any(jitter)), jitter=jitter)


def metric_view(size: int, recipe: MetricRecipe, *, chiral: bool) -> ViewSpec:
    """Return the training view of metric learning.

    ``box``: a random box of 16 to 100% of the area, flipped (``MalongTech/research-ms-loss``); ``crop``: a random
    square of the image after resizing as in `metric_test_view`, flipped; the others as in `classification_view`.
    """
    if recipe == "box":
        return ViewSpec(size, area_range=(0.16, 1.0), hflip=0.0 if chiral else 0.5)
    if recipe == "crop":
        return replace(metric_test_view(size, whole=False), crop="random", hflip=0.0 if chiral else 0.5)
    return classification_view(size, recipe, chiral=chiral)


def metric_test_view(size: int, *, whole: bool) -> ViewSpec:
    """Return the test view of metric learning: the whole image, or a center crop after resizing to 256 pixels.

    Published tables use the center of 227 or 224 pixels; other sizes keep the ratio of the latter.
    """
    if whole:
        return ViewSpec(size)
    return ViewSpec(size, resize_ratio=256 / 227 if size == 227 else 256 / 224)


def stored_view(
    size: int, recipe: StoredRecipe, *, interpolation: Interpolation, chiral: bool, photographic: bool = True
) -> ViewSpec:
    """Return the image transform used for the cached embeddings on which heads are trained.

    ``crop``: the training view of SimGCD; ``box``: that of metric learning, a random box of 16 to 100% of the area;
    ``color``: FlipClass's strong view, a box of 30 to 100%, color changes and blur; ``digits``: as in
    `classification_view`. All but the last include a flip. ``interpolation`` is that of the network's input images.
    """
    if recipe == "digits":
        return classification_view(size, "digits", chiral=chiral)
    if recipe == "color":
        view = strong_view(size, "generic" if photographic else "fine", chiral=chiral)
    else:
        view = metric_view(size, "box", chiral=chiral)
    if recipe == "crop":
        view = simgcd_view(size, "generic", chiral=chiral)
    return replace(view, interpolation=interpolation)


def semi_supervised_views(
    size: int, recipe: SemiSupervisedRecipe, *, chiral: bool, photographic: bool = True
) -> tuple[ViewSpec, ViewSpec]:
    """Return the weak view and the strong view for semi-supervised training.

    Weak, ``crop-flip``: shifted by up to an eighth of the side in whole pixels, with reflection padding, and flipped;
    ``digits``: shifted by up to an eighth, with black padding. Strong: the weak view, two RandAugment operations, and
    Cutout of up to half the side (FixMatch). For photos, all operations may be drawn and the square is gray; otherwise,
    it is black.
    """
    if recipe == "digits":
        weak = _digit_view(size, shift_px=size / 8)
        photographic = False
    else:
        weak = ViewSpec(
            size,
            shift_px=size // 8,
            whole_pixels=True,
            hflip=0.0 if chiral else 0.5,
            interpolation="bilinear",
            padding="reflection",
        )
    pool: Pool = "photo" if photographic else "plain"
    fill = 0.5 if photographic else 0.0
    return weak, replace(weak, random_operations=2, operation_pool=pool, cutout=0.5, cutout_fill=fill)
