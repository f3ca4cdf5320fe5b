"""Parts of networks that packs build their own networks of."""
