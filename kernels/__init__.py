"""Numba kernels over contiguous arrays. They trust their input; callers check it."""
