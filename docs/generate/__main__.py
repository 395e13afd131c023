"""Renew what is recorded: the keys of ``--json``, of all commands, or of the training of the given methods."""

import json
import os
import sys
import tempfile

from generate.json_keys import RECORD
from generate.recording import command_lines, record, train_line

methods = sys.argv[1:]
kept = json.loads(RECORD.read_text()) if methods else {}
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    found = record(map(train_line, methods) if methods else command_lines())
RECORD.write_text(json.dumps(kept | found, indent=1) + "\n")
