"""Reading images and drawing: pixels of image files, contact sheets, masks, matches and plots."""

import os
import sys

# matplotlib reads MPLBACKEND when it is imported, and fails if that backend is not installed. A notebook sets it for
# itself and all processes that it starts; labelkit writes its plots to files and needs no backend.
if not hasattr(sys, "ps1"):  # otherwise this is the notebook itself, which needs its backend
    os.environ.pop("MPLBACKEND", None)
