"""Class tokens of several blocks are those that the blocks give, behind the last norm."""

from typing import Any

import pytest
import torch
from labelkit.models.inference import BackboneNetwork
from labelkit.models.side_by_side import ConcatenatedTokenViT, parse_concatenated_layer

NAME = "vit_nano_p8_32"


@torch.no_grad()
@pytest.mark.parametrize(("blocks", "mean_patch"), [(1, True), (3, False), (4, True)])
def test_tokens_are_those_of_each_block_behind_the_last_norm(blocks: int, mean_patch: bool) -> None:
    network = BackboneNetwork(NAME, seed=3).eval()
    net: Any = network.backbone.net
    for parameter in net.norm.parameters():  # not the identity that it starts as
        parameter.add_(torch.rand_like(parameter))
    images = torch.rand(2, 3, 32, 32)
    seen: list[torch.Tensor] = []
    hooks = [block.register_forward_hook(lambda _, __, tokens: seen.append(tokens)) for block in net.blocks]
    whole = network.embed(images)
    for hook in hooks:
        hook.remove()
    assert len(seen) == 4

    joined = ConcatenatedTokenViT(network, blocks, mean_patch=mean_patch)
    found = joined.embed(images)

    wanted = [net.norm(tokens)[:, 0] for tokens in seen[-blocks:]]
    if mean_patch:
        wanted.append(sum(net.norm(seen[-1])[:, place] for place in range(1, 17)) / 16)
    torch.testing.assert_close(found, torch.cat(wanted, dim=1))
    assert found.shape[1] == joined.embed_dim == 48 * len(wanted)
    # the class token of the last block is what the network itself embeds by
    torch.testing.assert_close(found[:, 48 * (blocks - 1) : 48 * blocks], whole)
    assert parse_concatenated_layer(joined.identity["layer"]) == (blocks, mean_patch)
    assert joined.input_spec == network.input_spec
