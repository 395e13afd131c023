"""Renew what is recorded: the keys of ``--json``."""

import json
import os
import tempfile

from generate.json_keys import RECORD, command_lines, record

with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    RECORD.write_text(json.dumps(record(command_lines()), indent=1) + "\n")
