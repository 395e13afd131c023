"""BN-Inception: its published numbers, and weights in the names of Caffe, computed layer by layer."""

import pytest
import torch
import torch.nn.functional as F
from labelkit.models.backbones.registry import build_backbone
from torch import Tensor

# channels of each convolution in Fig. 5 of the paper: 1x1; 3x3 after its 1x1; both 3x3 after theirs; after the pool
BLOCKS = {
    "3a": (192, "1x1:64 3x3_reduce:64 3x3:64 double_3x3_reduce:64 double_3x3_1:96 double_3x3_2:96 pool_proj:32"),
    "3b": (256, "1x1:64 3x3_reduce:64 3x3:96 double_3x3_reduce:64 double_3x3_1:96 double_3x3_2:96 pool_proj:64"),
    "3c": (320, "3x3_reduce:128 3x3:160 double_3x3_reduce:64 double_3x3_1:96 double_3x3_2:96"),
    "4a": (576, "1x1:224 3x3_reduce:64 3x3:96 double_3x3_reduce:96 double_3x3_1:128 double_3x3_2:128 pool_proj:128"),
    "4b": (576, "1x1:192 3x3_reduce:96 3x3:128 double_3x3_reduce:96 double_3x3_1:128 double_3x3_2:128 pool_proj:128"),
    "4c": (576, "1x1:160 3x3_reduce:128 3x3:160 double_3x3_reduce:128 double_3x3_1:160 double_3x3_2:160 pool_proj:128"),
    "4d": (608, "1x1:96 3x3_reduce:128 3x3:192 double_3x3_reduce:160 double_3x3_1:192 double_3x3_2:192 pool_proj:128"),
    "4e": (608, "3x3_reduce:128 3x3:192 double_3x3_reduce:192 double_3x3_1:256 double_3x3_2:256"),
    "5a": (
        1056,
        "1x1:352 3x3_reduce:192 3x3:320 double_3x3_reduce:160 double_3x3_1:224 double_3x3_2:224 pool_proj:128",
    ),
    "5b": (
        1024,
        "1x1:352 3x3_reduce:192 3x3:320 double_3x3_reduce:192 double_3x3_1:224 double_3x3_2:224 pool_proj:128",
    ),
}
OUTPUTS = dict(zip(BLOCKS, (256, 320, 576, 576, 576, 608, 608, 1056, 1024, 1024), strict=True))


@pytest.fixture(scope="module")
def converted() -> dict[str, Tensor]:
    """Random weights in the names and shapes of the file that others converted."""
    generator = torch.Generator().manual_seed(0)
    state: dict[str, Tensor] = {}

    def layer(name: str, inputs: int, outputs: int, kernel: int) -> None:
        fan = inputs * kernel**2
        state[f"{name}.weight"] = torch.randn(outputs, inputs, kernel, kernel, generator=generator) * (2 / fan) ** 0.5
        state[f"{name}.bias"] = torch.randn(outputs, generator=generator) * 0.1
        for kind in ("weight", "bias", "running_mean", "running_var"):
            values = torch.rand(1, outputs, generator=generator)
            state[f"{name}_bn.{kind}"] = values + 0.5 if kind in ("weight", "running_var") else values - 0.5

    layer("conv1_7x7_s2", 3, 64, 7)
    layer("conv2_3x3_reduce", 64, 64, 1)
    layer("conv2_3x3", 64, 192, 3)
    for block, (channels, text) in BLOCKS.items():
        before = channels
        for part in text.split():
            name, width = part.split(":")
            wide = name in ("3x3", "double_3x3_1", "double_3x3_2")
            layer(f"inception_{block}_{name}", before if wide else channels, int(width), 3 if wide else 1)
            before = int(width)
    state["last_linear.weight"], state["last_linear.bias"] = torch.zeros(1000, 1024), torch.zeros(1000)
    return state


def by_hand(state: dict[str, Tensor], maps: Tensor) -> Tensor:
    """The graph, by the names of its layers alone."""

    def conv(name: str, maps: Tensor, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        maps = F.conv2d(maps, weight, state[f"{name}.bias"], stride, weight.shape[-1] // 2)
        mean, var, scale, shift = (
            state[f"{name}_bn.{kind}"][0] for kind in ("running_mean", "running_var", "weight", "bias")
        )
        return F.relu(F.batch_norm(maps, mean, var, scale, shift))

    maps = F.max_pool2d(conv("conv1_7x7_s2", maps, 2), 3, 2, ceil_mode=True)
    maps = F.max_pool2d(conv("conv2_3x3", conv("conv2_3x3_reduce", maps)), 3, 2, ceil_mode=True)
    for block in BLOCKS:
        name, stride = f"inception_{block}", 2 if block in ("3c", "4e") else 1
        three = conv(f"{name}_3x3", conv(f"{name}_3x3_reduce", maps), stride)
        twice = conv(f"{name}_double_3x3_1", conv(f"{name}_double_3x3_reduce", maps))
        twice = conv(f"{name}_double_3x3_2", twice, stride)
        if stride == 2:
            maps = torch.cat([three, twice, F.max_pool2d(maps, 3, 2, ceil_mode=True)], 1)
            continue
        pooled = F.max_pool2d(maps, 3, 1, 1) if block == "5b" else F.avg_pool2d(maps, 3, 1, 1)
        maps = torch.cat([conv(f"{name}_1x1", maps), three, twice, conv(f"{name}_pool_proj", pooled)], 1)
    return maps.mean((2, 3))


def test_the_network_has_the_published_number_of_parameters() -> None:
    """11,295,240 with a classifier of 1000 classes (pretrained-models.pytorch, imgclsmob)."""
    backbone = build_backbone("bn_inception")
    assert sum(parameter.numel() for parameter in backbone.parameters()) == 11_295_240 - 1025 * 1000
    assert backbone.info.feature_dim == 1024


@pytest.mark.parametrize("size", [224, 227])
def test_maps_have_the_sizes_of_the_paper(size: int) -> None:
    net = build_backbone("bn_inception", image_size=size).net.eval()
    shapes = {}
    for block in BLOCKS:
        net.get_submodule(f"inception{block}").register_forward_hook(
            lambda module, inputs, output, block=block: shapes.update({block: tuple(output.shape[1:])})
        )
    with torch.no_grad():
        net(torch.zeros(1, 3, size, size))
    sides = {"3a": 28, "3b": 28, "4e": 7, "5a": 7, "5b": 7}
    assert shapes == {block: (OUTPUTS[block], *2 * (sides.get(block, 14),)) for block in BLOCKS}


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "module.model."])
def test_converted_weights_give_what_their_graph_gives_of_caffe_s_images(
    converted: dict[str, Tensor], prefix: str
) -> None:
    backbone = build_backbone("bn_inception", image_size=64).eval()
    report = backbone.replace_weights({f"{prefix}{name}": value for name, value in converted.items()}, "file")
    photos = torch.randint(0, 256, (2, 3, 64, 64), generator=torch.Generator().manual_seed(1)).float()
    caffe = photos[:, [2, 1, 0]] - torch.tensor([104.0, 117.0, 128.0])[:, None, None]
    mean, std = (torch.tensor(values)[:, None, None] for values in (backbone.info.mean, backbone.info.std))
    with torch.no_grad():
        torch.testing.assert_close(
            backbone((photos / 255 - mean) / std), by_hand(converted, caffe), rtol=1e-3, atol=1e-4
        )
    assert all(name.endswith("num_batches_tracked") for name in report.missing)


@pytest.mark.parametrize(("size", "side"), [(240, 8), (60, 2), (57, 2)])
def test_odd_maps_are_halved_by_pools_as_by_convolutions(size: int, side: int) -> None:
    """240, 120, 60, 30, 15, 8 pixels; the pool takes the places that a convolution is centered on."""
    net = build_backbone("bn_inception", image_size=size).net.eval()
    with torch.no_grad():
        assert net.forward_features(torch.zeros(1, 3, size, size)).shape == (1, 1024, side, side)
    maps = torch.randn(1, 1, 5, 7, generator=torch.Generator().manual_seed(0))
    found = net.inception4e.pool(maps)[0, 0]
    for i, y in enumerate(range(0, 5, 2)):
        for j, x in enumerate(range(0, 7, 2)):
            assert found[i, j] == maps[0, 0, max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2].max()
