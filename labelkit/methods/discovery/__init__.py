"""Category discovery from images of labeled and unlabeled classes: GCD, SimGCD and FlipClass."""
