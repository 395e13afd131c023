"""Speed against named peers; ``make bench``."""
