"""Parts of the networks for LTX video."""
