"""Category discovery, where some classes have labels and others have none: GCD, SimGCD and FlipClass."""
