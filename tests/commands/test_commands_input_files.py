"""A slip in the name of an input is answered before anything large is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

LARGE = ("torch", "torchvision", "timm", "sklearn", "scipy", "h5py", "faiss", "cv2", "matplotlib")
PROGRAM = """
import sys
from labelkit.cli.main import main
code = main(sys.argv[2:])
print([name for name in sys.argv[1].split(",") if name in sys.modules], code)
"""


def answer(folder: Path, *words: str) -> tuple[str, str]:
    """What a command line prints and says, its last line the large packages that it loaded and the exit code."""
    command = [sys.executable, "-c", PROGRAM, ",".join(LARGE), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("evaluate knn --index nosuch.h5", "Create a store with `labelkit embed --dataset DATA --out nosuch.h5`."),
        ("discover answer --index nosuch.h5", "nosuch.h5: does not exist"),
        ("cluster k-means --index nosuch.h5 --num-clusters 3", "labelkit embed --dataset DATA --out nosuch.h5"),
        ("retrieve --index nosuch.h5 --query photo.jpg", "nosuch.h5: does not exist"),
        ("report --index nosuch.h5 --out page.html", "nosuch.h5: does not exist"),
        ("embed --dataset nosuch --out photos.h5", "nosuch: is neither a known dataset nor a folder or CSV"),
        ("embed --dataset digit --out photos.h5", "Did you mean digits"),
        ("train simgcd --dataset nosuch --out run", "nosuch: is neither a known dataset nor a folder or CSV"),
        ("train dino --dataset none --scene-dataset nosuch --out run", "nosuch: is neither a known dataset"),
        ("embed --dataset digits --checkpoint nosuch --out photos.h5", "nosuch: does not exist. Train first"),
    ],
)
def test_a_name_that_is_not_there_is_said_before_anything_large_is_loaded(tmp_path: Path, line: str, said: str) -> None:
    told, error = answer(tmp_path, *line.split())
    assert said in " ".join(error.split())
    assert told.splitlines()[-1] == "[] 3"
