"""``python -m labelkit`` is ``labelkit``."""

from labelkit.cli.main import run

if __name__ == "__main__":
    run()
