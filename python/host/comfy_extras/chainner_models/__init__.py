"""Models that make pictures larger."""
