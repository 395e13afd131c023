"""The network of a training run, or a named backbone, as a PyTorch module."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.api.functions import log_messages
from labelkit.commands.common.networks import EmbeddingNetwork, build_embedding_network
from labelkit.data.center_crop import compute_center_boxes
from labelkit.data.decode import BadImageError, EncodedImage, read_image_file
from labelkit.data.views.transforms import resize_box
from labelkit.errors import DatasetError
from labelkit.options.model import ModelConfig
from labelkit.options.presets import resolve_config

Images = Sequence[str | os.PathLike[str] | NDArray[np.uint8]]


class Network(nn.Module):
    """PyTorch module that embeds images exactly like `labelkit embed`, bit for bit.

    It can be fine-tuned, taken apart or moved to a GPU like any other module. Use :func:`load_network` to create it.

    Attributes:
        network: the wrapped module, with ``embed`` (b, c, s, s) to (b, d) and ``classify`` (b, d) to logits.
        size: side length of a preprocessed image in pixels.
        channels: number of color channels, 1 or 3.
        dim: embedding dimension.
        mean, std: normalization per channel, for values in ``[0, 1]``.
        source: description of where the weights come from.
    """

    def __init__(self, model: EmbeddingNetwork) -> None:
        super().__init__()
        spec = model.network.input_spec
        self.network = model.network
        self._view = model.view
        self.size, self.channels, self.dim = model.view.size, spec.channels, model.network.embed_dim
        self.mean, self.std = tuple(spec.mean), tuple(spec.std)
        self.source = model.source

    def forward(self, images: Tensor) -> Tensor:
        """Return the unnormalized embeddings (b, dim) of preprocessed float images (b, c, size, size)."""
        return self.network.embed(images)

    def prepare(self, image: str | os.PathLike[str] | NDArray[np.uint8]) -> Tensor:
        """Resize, center-crop and normalize an image for the network, returning (c, size, size) float32.

        Args:
            image: path of an image file, or (h, w, c) uint8 pixels with the network's number of channels.

        Raises:
            DatasetError: the file is not a readable image, or the pixels have the wrong shape or data type.
        """
        pixels = self._pixels(image)
        height, width, _ = pixels.shape
        (box,) = compute_center_boxes(self._view.size, self._view.resized_side, [height], [width])
        cut = torch.from_numpy(np.array(resize_box(pixels, box, self._view).transpose(2, 0, 1))).float().div_(255)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (cut - mean) / std

    def embed(self, images: Images, *, batch_size: int = 64) -> Tensor:
        """Preprocess and embed images without gradients, returning (n, dim) float32 on the CPU.

        Args:
            images: as for :meth:`prepare`.
            batch_size: number of images per forward pass.

        Raises:
            DatasetError: as :meth:`prepare`.
        """
        place = next(iter(self.network.parameters()), torch.zeros(0)).device
        was_training = self.training
        self.eval()
        rows = []
        with torch.inference_mode():
            for start in range(0, len(images), batch_size):
                batch = torch.stack([self.prepare(image) for image in images[start : start + batch_size]])
                rows.append(self(batch.to(place)).float().cpu())
        self.train(was_training)
        return torch.cat(rows) if rows else torch.zeros(0, self.dim)

    def _pixels(self, image: str | os.PathLike[str] | NDArray[np.uint8]) -> NDArray[np.uint8]:
        if isinstance(image, np.ndarray):
            if image.ndim != 3 or image.shape[2] != self.channels or image.dtype != np.uint8 or not image.size:
                problem = f"the array has shape {image.shape} and data type {image.dtype}"
                raise DatasetError("image", problem, f"Pass a uint8 array of shape (h, w, {self.channels}).")
            return image
        try:
            return EncodedImage(read_image_file(Path(image))).decode_reduced(1 if self.channels == 1 else 3)[0]
        except BadImageError as error:
            problem = f"cannot be read as an image: {error.reason}"
            raise DatasetError(str(image), problem, "Pass a readable image, such as a JPEG or PNG file.") from error


def load_network(
    checkpoint: str | os.PathLike[str] | None = None,
    *,
    backbone: str | None = None,
    pretrained: bool = False,
    weights: str | os.PathLike[str] | None = None,
    random_weights: bool = False,
    image_size: int | None = None,
    seed: int = 0,
) -> Network:
    """Load a network like `labelkit embed` with the same options, in evaluation mode on the CPU.

    Args:
        checkpoint: run folder from `labelkit train`, or a checkpoint in it.
        backbone: name of a backbone to use instead; default: the best backbone with weights on this machine (``auto``).
        pretrained: whether to use published weights.
        weights: file with weights for the backbone.
        random_weights: whether to use random weights.
        image_size: input size in pixels.
        seed: random seed for the weights of an untrained network.

    Raises:
        ConfigError: options cannot be combined, or the backbone is unknown.
        CheckpointError: the run or its weights are unusable.
    """
    given = {
        "checkpoint": checkpoint,
        "backbone": backbone,
        "pretrained": pretrained or None,
        "weights": weights,
        "random_weights": random_weights or None,
        "image_size": image_size,
        "seed": seed or None,
    }
    options = {name: value for name, value in given.items() if value is not None}
    config = resolve_config(ModelConfig, overrides=options, origins={name: name for name in options}).config
    with log_messages():
        return Network(build_embedding_network(config, 3)).eval()
