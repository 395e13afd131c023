"""Balanced assignment: n samples to k clusters whose sizes are given, by entropic optimal transport.

What is for what:
    - ``solver.solve``: all samples of a data set, to a chosen error. Sizes are met to ``tol``.
    - ``batch.batch_assignments``: targets of a training step, by three iterations. Sizes are met roughly.
    - ``prior.balanced_labels``: exact sizes, by linear assignment; at most 8,000 samples.

``solve`` can move its potentials in three ways (``ascent``):
    - scaling (``sinkhorn``): the published iteration, and the only one with the official rule or a soft prior. Sharp
      scores need thousands of passes.
    - L-BFGS (``lbfgs``): the same solution in far fewer passes; sharp scores take tens. ``auto`` is this, after a
      softer problem where scores are very sharp.
    - Newton (``newton``): the fewest passes to many digits, each of cost n k^2; at most 512 clusters. Tests take it as
      the reference.

``solve`` can make a pass over the scores in two forms (``passes``), and neither replaces the other:
    - kernel: the exponentials are stored, and a pass is two products of a matrix and a vector. A whole solve of 8,000 x
      1,000 scores takes half the time of the log form, since an exponential costs several times as much as both
      products.
    - log: the exponentials are taken again in each pass, and nothing of size n x k is stored. Scores may be larger
      than memory, or of any range.

The other files: ``scores`` reads rows in blocks from tensors, files or a linear layer; ``workers`` shares blocks among
threads; ``prior`` makes the sizes.
"""
