"""Speed of the kernels and of the vector side, against named peers in the same run."""
