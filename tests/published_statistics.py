"""What publications say of the networks, with the place: numbers of parameters and multiply-adds.

`Figure` says how a published network differs from ours where it does, so that the numbers can be held against counts.
Numbers stand as they are printed there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from labelkit.cli.list_backbones import NetworkCounts

_UNITS: Final = {"": 1, "M": 10**6, "G": 10**9}
_NUMBER: Final = re.compile(r"([\d,]+)(?:\.(\d+))?(?: ([MG]))?")


@dataclass(frozen=True, slots=True)
class Figure:
    """A published size of a network.

    Attributes:
        network: our name, without the tag of weights.
        source: publication and place.
        parameters: as printed, such as ``"0.46 M"``; empty: not published there.
        multiply_adds: likewise.
        outputs: of the linear classifier that is counted there; 0: none.
        image_size: side of its images in pixels, if not ours.
        more_parameters: what the published network has and ours has not; negative: the reverse.
        more_multiply_adds: likewise.
        why: the difference between the networks, or between the ways to count.
        counted_otherwise: names of the numbers that cannot agree, since the source counts in another way.
    """

    network: str
    source: str
    parameters: str = ""
    multiply_adds: str = ""
    outputs: int = 0
    image_size: int | None = None
    more_parameters: int = 0
    more_multiply_adds: int = 0
    why: str = ""
    counted_otherwise: frozenset[str] = frozenset()

    def difference(self, number: str) -> str:
        """Return why a number is another than ours, in the network or in the way to count; empty: it is not."""
        return self.why if not self.counted_otherwise or number in self.counted_otherwise else ""

    def printed(self) -> dict[str, str]:
        """Numbers that the source prints, by name."""
        both = {"parameters": self.parameters, "multiply_adds": self.multiply_adds}
        return {name: text for name, text in both.items() if text}

    def expected(self, counts: NetworkCounts) -> dict[str, int]:
        """Return what the source should have printed, by what we count in our network and the stated differences.

        Args:
            counts: of our network at ``image_size``, whose output are its features.
        """
        features = counts.output[0]
        return {
            "parameters": counts.parameters + (features + 1) * self.outputs + self.more_parameters,
            "multiply_adds": counts.multiply_adds + features * self.outputs + self.more_multiply_adds,
        }


def stated(text: str) -> tuple[float, float]:
    """Return a printed number, and the worth of its last digit: ``"0.46 M"`` gives (460000, 10000).

    Raises:
        ValueError: it is not written like this.
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a number like 0.46 M")
    whole, decimals, unit = found[1].replace(",", ""), found[2] or "", _UNITS[found[3] or ""]
    return float(f"{whole}.{decimals or 0}") * unit, unit / 10 ** len(decimals)


def agrees(count: int, text: str) -> bool:
    """Tell whether a count, rounded or cut off to the digits of a printed number, is that number."""
    value, digit = stated(text)
    wanted = round(value / digit)
    return wanted in (round(count / digit), int(count / digit))


_HE: Final = "He et al., CVPR 2016, Table 6"
_TORCHVISION: Final = "torchvision, metadata of its weights"
_OPTION_B: Final = "chenyaofo/pytorch-cifar-models, README"
_SHORTCUTS: Final = "its two shortcuts of another width are 1x1 convolutions (option B), ours pad (option A)"
_STRIDE: Final = "its bottlenecks stride in the first 1x1 convolution, ours in the 3x3 (torchvision's)"
# 1x1 convolutions of 4 c to 2 c channels at 1/4 of the places, in the first blocks of three stages
_STRIDE_WORK: Final = -3 * 256 * 128 * (56 * 56 - 28 * 28)
_GROUPS: Final = (256 * 48 * 25, 384 * 192 * 9, 256 * 192 * 9)
_GROUPS_WHY: Final = "it has two groups in convolutions 2, 4 and 5, and no batch normalization"
_DISSERTATION: Final = "lmcs, Sec. 3.4.1 of the text"
_ZOPH: Final = "Zoph et al., CVPR 2018, Table 1"
_SPLIT: Final = "Zhao et al. (SplitNet), README of the code"
_DINO: Final = "Caron et al., ICCV 2021, Table 1"
_DINOV2: Final = "facebookresearch/dinov2, README"
_SWIN: Final = "Liu et al. (Swin), ICCV 2021, Table 1"
_LITE: Final = "tensorflow/tpu, efficientnet/lite, README"
_LITE_TORCH: Final = "d-li14/efficientnet-lite.pytorch, README"
_LITE_WHY: Final = "4 to 6 % more than the products alone, which a second source counts as we do"
_OF_WORK: Final = frozenset({"multiply_adds"})


def _lite(number: int, size: int, published: tuple[str, str], counted: tuple[str, str]) -> tuple[Figure, Figure]:
    name = f"tf_efficientnet_lite{number}"
    return (
        Figure(name, _LITE, *published, outputs=1000, image_size=size, why=_LITE_WHY, counted_otherwise=_OF_WORK),
        Figure(name, _LITE_TORCH, *counted, outputs=1000, image_size=size),
    )


def _cifar(depth: int, published: str, option_b: tuple[str, str] | None = None) -> tuple[Figure, ...]:
    name = f"resnet{depth}_cifar"
    first = Figure(name, _HE, published, outputs=10)
    if option_b is None:
        return (first,)
    second = Figure(
        name,
        _OPTION_B,
        *option_b,
        outputs=10,
        more_parameters=16 * 32 + 32 * 64 + 2 * (32 + 64),
        more_multiply_adds=2 * 16 * 32 * 16 * 16,
        why=_SHORTCUTS,
    )
    return first, second


FIGURES: Final = (
    *_cifar(20, "0.27 M", ("0.27 M", "40.81 M")),
    *_cifar(32, "0.46 M", ("0.47 M", "69.12 M")),
    *_cifar(44, "0.66 M", ("0.66 M", "97.44 M")),
    *_cifar(56, "0.85 M"),
    *_cifar(110, "1.7 M"),
    Figure("resnet18_3x3", "open-mmlab/mmpretrain, configs/resnet, CIFAR-10", "11.17 M", "0.56 G", outputs=10),
    Figure(
        "alexnet_sela",
        "Krizhevsky et al., NIPS 2012, Abstract",
        "60 M",
        outputs=1000,
        more_parameters=-sum(_GROUPS) - 2 * (96 + 256 + 384 + 384 + 256),
        why=_GROUPS_WHY,
    ),
    Figure(
        "alexnet_sela",
        "Sze et al., Proc. IEEE 2017, Table II",
        "61 M",
        "724 M",
        outputs=1000,
        more_parameters=-sum(_GROUPS) - 2 * (96 + 256 + 384 + 384 + 256),
        more_multiply_adds=-_GROUPS[0] * 27 * 27 - sum(_GROUPS[1:]) * 13 * 13,
        why=_GROUPS_WHY,
    ),
    Figure(
        "alexnet_small_sela",
        _TORCHVISION,
        "61,100,840",
        "0.714 G",
        outputs=1000,
        more_parameters=-2 * (64 + 192 + 384 + 256 + 256),
        why="it has no batch normalization",
    ),
    Figure("resnet50_sela", _TORCHVISION, "25,557,032", "4.089 G", outputs=1000),
    Figure(
        "resnet50v2_sela",
        "timm, model card of resnetv2_50.a1h_in1k",
        "25.5 M",
        "4.1 G",
        outputs=1000,
        more_parameters=2 * 2048,
        why="it has a normalization before the pool, which SeLa's code has not",
    ),
    Figure(
        "convnet13",
        _DISSERTATION,
        "3.13 M",
        outputs=10,
        more_parameters=6 * 128 + 3 * 256 + 512 + 10,
        why="it has weight normalization: a gain for each filter; ours with it is convnet13_wn",
    ),
    Figure("convnet13_wn", _DISSERTATION, "3.13 M", outputs=10, more_parameters=10, why="a gain for each class"),
    Figure("resnet26_shake", _ZOPH, "26.2 M", outputs=10),
    Figure("resnet26_shake", _SPLIT, "26.2 M", "3.78 G", outputs=10),
    Figure("resnet26_shake_w32", _ZOPH, "2.9 M", outputs=10),
    Figure("wrn28_2", _DISSERTATION, "1.47 M", outputs=10),
    Figure("wrn16_2", "Zagoruyko and Komodakis (attention transfer), ICLR 2017, Table 1", "0.7 M", outputs=10),
    Figure("googlenet", _TORCHVISION, "6,624,904", "1.498 G", outputs=1000, image_size=224),
    Figure(
        "googlenet",
        "netscope, GoogLeNet of BVLC's Caffe",
        "6,998,552",
        outputs=1000,
        # 16 weights more for each pair of channels of the nine 5x5 convolutions; one bias in place of scale and shift
        more_parameters=16 * 23_808 - 7_280,
        why="its third branches are 5x5 convolutions, torchvision's and ours 3x3; biases and no batch normalization",
    ),
    Figure(
        "bn_inception",
        "osmr/imgclsmob, pytorch, README",
        "11,295,240",
        "2,048.06 M",
        outputs=1000,
        image_size=224,
        why="0.8 % more than the products alone; its ResNet-18 has 0.3 % more",
        counted_otherwise=_OF_WORK,
    ),
    Figure("resnet18", "He et al., CVPR 2016, Table 1", "", "1.8 G", outputs=1000),
    Figure("resnet18", _TORCHVISION, "11,689,512", "1.814 G", outputs=1000),
    Figure(
        "resnet50",
        "He et al., CVPR 2016, Table 1",
        "",
        "3.8 G",
        outputs=1000,
        more_multiply_adds=_STRIDE_WORK,
        why=_STRIDE,
    ),
    Figure("resnet50", _TORCHVISION, "25,557,032", "4.089 G", outputs=1000),
    Figure("resnet50", _DINO, "23 M"),
    Figure(
        "resnet101",
        "He et al., CVPR 2016, Table 1",
        "",
        "7.6 G",
        outputs=1000,
        more_multiply_adds=_STRIDE_WORK,
        why=_STRIDE,
    ),
    Figure("resnet101", _TORCHVISION, "44,549,160", "7.801 G", outputs=1000),
    Figure("swin_tiny_patch4_window7_224", "microsoft/Swin-Transformer, README", "28 M", "4.5 G", outputs=1000),
    Figure("swin_tiny_patch4_window7_224", _TORCHVISION, "28,288,354", "4.491 G", outputs=1000),
    Figure("vit_small_patch16_224", _DINO, "21 M"),
    Figure("vit_small_patch16_224", _SWIN + " (DeiT-S)", "22 M", "4.6 G", outputs=1000),
    Figure("vit_small_patch8_224", _DINO, "21 M"),
    Figure("vit_base_patch16_224", _DINO, "85 M"),
    Figure("vit_base_patch16_224", _SWIN + " (DeiT-B)", "86 M", "17.5 G", outputs=1000),
    Figure("vit_base_patch16_224", _TORCHVISION, "86,567,656", "17.564 G", outputs=1000),
    Figure("vit_base_patch8_224", _DINO, "85 M"),
    Figure("vit_small_patch14_dinov2", _DINOV2, "21 M", image_size=224),
    Figure("vit_small_patch14_reg4_dinov2", _DINOV2, "21 M", image_size=224),
    Figure("vit_base_patch14_dinov2", _DINOV2, "86 M", image_size=224),
    Figure("vit_base_patch14_reg4_dinov2", _DINOV2, "86 M", image_size=224),
    *_lite(0, 224, ("4.7 M", "407 M"), ("4.652 M", "0.385 G")),
    *_lite(1, 240, ("5.4 M", "631 M"), ("5.417 M", "0.600 G")),
    *_lite(2, 260, ("6.1 M", "899 M"), ("6.092 M", "0.860 G")),
)
"""Published sizes, several for a network where sources print other numbers."""

_OURS: Final = "ours, for machines without a GPU"
