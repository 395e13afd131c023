"""What draws: image files to pixels, contact sheets, masks, matches and plots."""

import os
import sys

# matplotlib reads it when it is imported, and refuses a backend that is not installed. A notebook sets its own for
# itself and all that it starts; plots of labelkit are files and need none.
if not hasattr(sys, "ps1"):  # else this is the notebook, whose plots are to stay in it
    os.environ.pop("MPLBACKEND", None)
