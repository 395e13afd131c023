"""``labelkit reproduce``: the published tables as commands, run and set beside what was published."""
