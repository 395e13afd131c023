"""Read image files, and draw contact sheets and plots."""

import os
import sys

# matplotlib reads MPLBACKEND when it is imported, and fails if that backend is not installed. A notebook sets it for
# itself and all of its child processes; labelkit writes plots to files and needs no backend.
if not hasattr(sys, "ps1"):  # not in the notebook itself, which needs its backend
    os.environ.pop("MPLBACKEND", None)
