"""HDF5 files, written and read without trusting them: the way into labelkit of h5py."""
