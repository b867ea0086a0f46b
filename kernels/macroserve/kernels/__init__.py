"""The package has the Triton kernels of the hybrid cache, one operation per file, each beside its
torch reference."""
