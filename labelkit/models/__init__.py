"""Networks: backbones, heads, the paired forward pass, EMA teachers, and loading of weights."""
