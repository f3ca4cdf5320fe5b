"""The host's main package, as far as packs need it."""
