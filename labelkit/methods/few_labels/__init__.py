"""Learning from a few labels per class: supervised, Mean Teacher, MixMatch, FreeMatch, Snowball and LMCS."""
