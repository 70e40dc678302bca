"""Signatures that people already call, by our operators. What another project defines differently is refused."""
