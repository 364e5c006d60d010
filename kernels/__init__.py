"""Compiled kernels. They trust their input: the modules above check it.

A kernel is a function of arrays and scalars. `rsm_fast.kernels.jit.kernel` is the one
decorator; nothing else in the project calls Numba's.
"""
